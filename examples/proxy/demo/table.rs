//! The table at the end.

use std::fmt::Write;

use super::Row;

const PAGE: f64 = 4096.0;

const HEADINGS: [&str; 8] =
    ["relay", "moved by", "MB", "MB/s", "CPU s/GB", "calls/MB", "ring enters/MB", "pages in flight"];

const LEGEND: &str = "\
CPU is that of the relaying process alone, the kernel's workers for its ring included; a GB is 10^9 bytes.
Calls are the system calls that wait for bytes or move them. Pages in flight are the 4 KiB pages that one hop
takes along: on average, of the most that its pipe or buffer holds.";

/// All rows, in columns as wide as they need.
pub(super) fn render(rows: &[Row]) -> String {
    let mut lines = vec![HEADINGS.map(str::to_owned)];
    lines.extend(rows.iter().map(cells));
    let widths: Vec<usize> =
        (0..HEADINGS.len()).map(|column| lines.iter().map(|line| line[column].len()).max().unwrap_or(0)).collect();
    let mut text = String::from("\n");
    for line in &lines {
        for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
            // Words to the left, numbers to the right. Writing to a string cannot fail.
            let _written = if column < 2 { write!(text, "{cell:<width$}  ") } else { write!(text, "{cell:>width$}  ") };
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text + "\n" + LEGEND + "\n"
}

fn cells(row: &Row) -> [String; HEADINGS.len()] {
    let report = &row.report;
    let megabytes = row.bytes as f64 / 1e6;
    let spliced = report.hops_spliced as f64 / report.hops.max(1) as f64;
    let moved_by = match spliced {
        1.0 => "splice".to_owned(),
        0.0 => "copy".to_owned(),
        _ => format!("splice {:.0} %", spliced * 100.0),
    };
    let pages = report.bytes as f64 / report.hops.max(1) as f64 / PAGE;
    let pages_max = if spliced > 0.0 { report.pipe_bytes as f64 / PAGE } else { super::COPY_BYTES as f64 / PAGE };
    [
        row.name.to_owned(),
        moved_by,
        format!("{megabytes:.0}"),
        format!("{:.0}", megabytes / row.wall.as_secs_f64()),
        format!("{:.3}", report.cpu_ns as f64 / row.bytes as f64),
        format!("{:.1}", report.calls as f64 / megabytes),
        report.enters.map_or_else(|| "-".to_owned(), |enters| format!("{:.1}", enters as f64 / megabytes)),
        format!("{pages:.0} of {pages_max:.0}"),
    ]
}
