//! One cell as a table: a line for each way of relaying.

use crate::cells::{Cell, TWINS};
use crate::harness::{Row, Spread, ratio};
use crate::load::Kind;

/// Prints the rows of one cell; each way's ratio is to the hand-written loop that costs least here.
pub(crate) fn print(cell: &Cell, rows: &[Row]) {
    let Some(first) = rows.first() else { return };
    let twin = better_twin(cell, rows);
    let to =
        twin.map_or_else(String::new, |twin| format!("; ratio within a round to {}, the better twin", twin.variant));
    println!("\n{}: {}", cell.case, cell.title());
    println!("  {}: median of {} (min to max){to}", cell.cost(), first.spread.runs);
    let columns = columns(cell.load.kind);
    let heads: String = columns.iter().map(|(_, head, _)| format!(" {head:>11}")).collect();
    println!("  {:<18} {:>29} {:>7}{heads}", "", cell.cost(), "ratio");
    let mut variants: Vec<&str> = rows.iter().map(|row| row.variant).collect();
    variants.dedup();
    for variant in variants {
        let cost = rows.iter().find(|row| row.variant == variant && row.metric == cell.cost());
        let to_twin = cost.zip(twin).and_then(|(cost, twin)| ratio(cost, twin));
        let to_twin = to_twin.map_or_else(dash, |ratio| format!("{:.2}", ratio.median));
        let digits = if cell.load.kind == Kind::Bulk { 3 } else { 1 };
        let cost = cost.map_or_else(dash, |Row { spread: Spread { median, min, max, .. }, .. }| {
            format!("{median:.digits$} ({min:.digits$} to {max:.digits$})")
        });
        let line: String = columns.iter().map(|column| format!(" {:>11}", text(rows, variant, column))).collect();
        println!("  {variant:<18} {cost:>29} {to_twin:>7}{line}");
    }
}

/// The hand-written loop that costs least in this cell.
fn better_twin<'a>(cell: &Cell, rows: &'a [Row]) -> Option<&'a Row> {
    rows.iter()
        .filter(|row| row.metric == cell.cost() && TWINS.contains(&row.variant))
        .min_by(|one, other| one.spread.median.total_cmp(&other.spread.median))
}

/// Metric, head and digits after the point of each column beside the cost.
fn columns(kind: Kind) -> &'static [(&'static str, &'static str, usize)] {
    match kind {
        Kind::PingPong => &[
            ("requests_per_s", "requests/s", 0),
            ("mb_per_s", "MB/s", 1),
            ("p50_us", "p50 us", 0),
            ("p99_us", "p99 us", 0),
            ("enters_per_request", "enters/req", 2),
            ("calls_per_request", "calls/req", 2),
            ("threads", "threads", 0),
        ],
        Kind::Bulk => &[
            ("mb_per_s", "MB/s", 0),
            ("enters_per_mb", "enters/MB", 2),
            ("calls_per_mb", "calls/MB", 2),
            ("threads", "threads", 0),
        ],
        Kind::Tail => &[
            ("p50_us", "p50 us", 0),
            ("burst_p50_us", "burst p50", 0),
            ("burst_p99_us", "burst p99", 0),
            ("cpu_s_per_gb", "CPU s/GB", 3),
            ("threads", "threads", 0),
        ],
        Kind::Idle => &[
            ("threads", "threads", 0),
            ("pipes", "pipes", 0),
            ("cpu_percent", "CPU %", 2),
            ("first_us", "first us", 0),
            ("p99_us", "p99 us", 0),
        ],
    }
}

fn text(rows: &[Row], variant: &str, (metric, _, digits): &(&str, &str, usize)) -> String {
    let row = rows.iter().find(|row| row.variant == variant && row.metric == *metric);
    row.map_or_else(dash, |row| format!("{:.digits$}", row.spread.median))
}

fn dash() -> String {
    "-".to_owned()
}
