//! Draws rows as a curve, one line for each variant, as an SVG file.

use std::io;
use std::ops::Range;
use std::path::Path;

use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

use crate::harness::Row;

/// One line: the name of its variant, and its points.
type Line<'a> = (&'a str, Vec<(f64, f64)>);

/// Draws the medians of `rows` over the number that `x_of` finds in a row, on a logarithmic axis of base 2.
///
/// There must be at least one row.
#[allow(dead_code, reason = "each benchmark draws in one of the two ways")]
pub(crate) fn draw(
    path: &Path,
    title: &str,
    x_label: &str,
    y_label: &str,
    rows: &[Row],
    x_of: impl Fn(&Row) -> f64,
) -> io::Result<()> {
    let lines = lines(rows, x_of);
    let y_range = 0.0..range(&lines, |(_, y)| y).end * 1.1;
    let corner = SeriesLabelPosition::UpperLeft;
    plot(path, [title, x_label, y_label], &lines, y_range, |y| format!("{y:.0}"), corner)
        .map_err(|error| refused(path, &*error))
}

/// As [`draw`], but with a logarithmic axis of base 10 for the medians, which must be above 0. For lines that fall: the
/// legend is on the right.
#[allow(dead_code, reason = "each benchmark draws in one of the two ways")]
pub(crate) fn draw_logarithmic(
    path: &Path,
    title: &str,
    x_label: &str,
    y_label: &str,
    rows: &[Row],
    x_of: impl Fn(&Row) -> f64,
) -> io::Result<()> {
    let lines = lines(rows, x_of);
    let Range { start, end } = range(&lines, |(_, y)| y);
    let y_range = (start * 0.8..end * 1.25).log_scale();
    let corner = SeriesLabelPosition::UpperRight;
    plot(path, [title, x_label, y_label], &lines, y_range, |y| format!("{y}"), corner)
        .map_err(|error| refused(path, &*error))
}

fn lines(rows: &[Row], x_of: impl Fn(&Row) -> f64) -> Vec<Line<'_>> {
    let mut lines: Vec<Line> = Vec::new();
    for row in rows {
        let point = (x_of(row), row.spread.median);
        match lines.iter_mut().find(|(variant, _)| *variant == row.variant) {
            Some((_, points)) => points.push(point),
            None => lines.push((row.variant, vec![point])),
        }
    }
    lines
}

/// The smallest and the largest of one coordinate.
fn range(lines: &[Line], coordinate: impl Fn((f64, f64)) -> f64) -> Range<f64> {
    let values = || lines.iter().flat_map(|(_, points)| points).map(|point| coordinate(*point));
    values().fold(f64::INFINITY, f64::min)..values().fold(0.0, f64::max)
}

fn plot<Y>(
    path: &Path,
    [title, x_label, y_label]: [&str; 3],
    lines: &[Line],
    y_range: Y,
    y_text: impl Fn(&f64) -> String,
    legend: SeriesLabelPosition,
) -> Result<(), Box<dyn std::error::Error>>
where
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let Range { start: left, end: right } = range(lines, |(x, _)| x);
    let canvas = SVGBackend::new(path, (900, 540)).into_drawing_area();
    canvas.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&canvas)
        .caption(title, ("sans-serif", 20))
        .margin(14)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d((left..right.max(left * 2.0)).log_scale().base(2.0), y_range)?;
    chart
        .configure_mesh()
        .x_desc(x_label)
        .y_desc(y_label)
        .x_labels(16)
        .light_line_style(TRANSPARENT)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&y_text)
        .draw()?;
    for (index, (variant, points)) in lines.iter().enumerate() {
        let color = Palette99::pick(index).to_rgba();
        chart
            .draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(2)).point_size(3))?
            .label(*variant)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(legend)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    canvas.present()?;
    Ok(())
}

fn refused(path: &Path, error: &dyn std::error::Error) -> io::Error {
    io::Error::other(format!("the curve {} could not be drawn: {error}", path.display()))
}
