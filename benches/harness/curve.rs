//! Draws rows as a curve, one line for each variant, as an SVG file.

use std::io;
use std::path::Path;

use plotters::prelude::*;

use crate::harness::Row;

/// Draws the medians of `rows` over the number that `x_of` finds in a row, on a logarithmic axis of base 2.
///
/// There must be at least one row.
pub(crate) fn draw(
    path: &Path,
    title: &str,
    x_label: &str,
    y_label: &str,
    rows: &[Row],
    x_of: impl Fn(&Row) -> f64,
) -> io::Result<()> {
    let mut lines: Vec<(&str, Vec<(f64, f64)>)> = Vec::new();
    for row in rows {
        let point = (x_of(row), row.spread.median);
        match lines.iter_mut().find(|(variant, _)| *variant == row.variant) {
            Some((_, points)) => points.push(point),
            None => lines.push((row.variant, vec![point])),
        }
    }
    let points = || lines.iter().flat_map(|(_, points)| points.iter().copied());
    let left = points().map(|(x, _)| x).fold(f64::INFINITY, f64::min);
    let right = points().map(|(x, _)| x).fold(0.0, f64::max);
    let top = points().map(|(_, y)| y).fold(0.0, f64::max);
    plot(path, [title, x_label, y_label], &lines, left..right.max(left * 2.0), top * 1.1)
        .map_err(|error| io::Error::other(format!("the curve {} could not be drawn: {error}", path.display())))
}

fn plot(
    path: &Path,
    [title, x_label, y_label]: [&str; 3],
    lines: &[(&str, Vec<(f64, f64)>)],
    x_range: std::ops::Range<f64>,
    top: f64,
) -> Result<(), Box<dyn std::error::Error>> {
    let canvas = SVGBackend::new(path, (900, 540)).into_drawing_area();
    canvas.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&canvas)
        .caption(title, ("sans-serif", 20))
        .margin(14)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(x_range.log_scale().base(2.0), 0.0..top)?;
    chart
        .configure_mesh()
        .x_desc(x_label)
        .y_desc(y_label)
        .x_labels(16)
        .light_line_style(TRANSPARENT)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| format!("{y:.0}"))
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
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    canvas.present()?;
    Ok(())
}
