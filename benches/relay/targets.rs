//! What was hoped for, and what came of it.

use crate::cells::{Cell, FORCED, IDLE_CONNECTIONS};
use crate::harness::{Row, Spread, ratio};
use crate::load::Kind;

/// The most that the route which chooses itself may cost over the best forced one, as a geometric mean of all cells.
const CHOICE_MEAN: f64 = 1.05;

/// As above, in the worst cell.
const CHOICE_WORST: f64 = 1.15;

/// In this cell, `auto` may cost at most this part of the cheapest of these.
type CostTarget = (&'static str, &'static [&'static str], f64);

const COST_TARGETS: [CostTarget; 14] = [
    ("bulk-1", &["epoll-splice"], 0.80),
    ("bulk-64", &["epoll-splice"], 0.80),
    ("bulk-1", &["epoll-splice-lowat"], 1.00),
    ("bulk-64", &["epoll-splice-lowat"], 1.00),
    ("bulk-1", &["tokio"], 0.12),
    ("bulk-64", &["tokio"], 0.12),
    ("rr-64-100", &["epoll-rw"], 0.95),
    ("rr-4096-100", &["epoll-rw"], 0.95),
    ("rr-16384-100", &["epoll-splice", "epoll-rw"], 1.05),
    ("rr-65536-100", &["epoll-splice", "epoll-rw"], 1.05),
    ("rr-64-100", &["tokio"], 0.75),
    ("rr-4096-100", &["tokio"], 0.75),
    ("rr-16384-100", &["tokio"], 0.75),
    ("rr-65536-100", &["tokio"], 0.75),
];

/// The most that the 99th percentile of a short message may be behind that of the plain splicing loop, in us.
const TAIL_BEHIND_US: f64 = 1000.0;

/// Of `auto` among silent connections: metric, the most it may be, and in words.
const IDLE_TARGETS: [(&str, f64, &str); 5] = [
    ("kib_per_connection", 8.0, "KiB of its own memory for each connection"),
    ("threads", 4.0, "threads"),
    // The pipe that all of them have spoken through, one after the other, may lie in a pool.
    ("pipes", 1.0, "pipes in all"),
    // A look at the clock of a sleeping process differs by nothing; what rounds to 0 is 0.
    ("cpu_percent", 0.05, "% of a CPU"),
    ("first_us", 10_000.0, "us until the first that speaks is answered"),
];

/// Prints every target with what was measured, met or missed; those whose cells were not measured are left out.
pub(crate) fn print(cells: &[Cell], rows: &[Row], is_smoke: bool) {
    if rows.is_empty() {
        return;
    }
    println!("\ntargets (ratios are within a round: median, min to max)");
    if is_smoke {
        println!("  of a smoke run, which measures too little for any of it to mean much:");
    }
    print_choice(cells, rows);
    for (case, others, bar) in COST_TARGETS {
        let Some(cell) = cells.iter().find(|cell| cell.case == case) else { continue };
        let Some(auto) = find(rows, case, "auto", cell.cost()) else { continue };
        let others: Vec<&Row> = others.iter().filter_map(|other| find(rows, case, other, cell.cost())).collect();
        let Some(other) = cheapest(&others) else { continue };
        if let Some(ratio) = ratio(auto, other) {
            let Spread { median, min, max, .. } = ratio;
            let sentence =
                format!("{case}: auto is {median:.2} ({min:.2} to {max:.2}) of {} (bar {bar:.2})", other.variant);
            verdict(median <= bar, &sentence);
        }
    }
    print_tail(rows);
    // With fewer connections there is more of what they share for each of them.
    let is_idle = |cell: &&Cell| cell.load.kind == Kind::Idle && cell.load.connections == IDLE_CONNECTIONS;
    for cell in cells.iter().filter(is_idle) {
        for (metric, bar, words) in IDLE_TARGETS {
            if let Some(row) = find(rows, &cell.case, "auto", metric) {
                let value = row.spread.median;
                verdict(value <= bar, &format!("{}: auto has {value:.2} {words} (bar {bar})", cell.case));
            }
        }
    }
    print_batching(cells, rows);
}

/// The route that chooses itself, beside the forced ones.
fn print_choice(cells: &[Cell], rows: &[Row]) {
    let mut choices: Vec<(f64, &str, &str)> = Vec::new();
    for cell in cells.iter().filter(|cell| matches!(cell.load.kind, Kind::PingPong | Kind::Bulk)) {
        let Some(auto) = find(rows, &cell.case, "auto", cell.cost()) else { continue };
        let forced: Vec<&Row> =
            FORCED.iter().filter_map(|variant| find(rows, &cell.case, variant, cell.cost())).collect();
        let Some(best) = cheapest(&forced) else { continue };
        if let Some(ratio) = ratio(auto, best) {
            choices.push((ratio.median, &cell.case, best.variant));
        }
    }
    let Some((worst, case, best)) = choices.iter().max_by(|one, other| one.0.total_cmp(&other.0)) else { return };
    let mean = (choices.iter().map(|(ratio, ..)| ratio.ln()).sum::<f64>() / choices.len() as f64).exp();
    let count = choices.len();
    verdict(
        mean <= CHOICE_MEAN,
        &format!("auto over the best forced route: {mean:.3}, geometric mean of {count} cells (bar {CHOICE_MEAN:.2})"),
    );
    verdict(
        *worst <= CHOICE_WORST,
        &format!(
            "auto over the best forced route: {worst:.3} in the worst cell, {case}, over {best} (bar {CHOICE_WORST:.2})"
        ),
    );
}

fn print_tail(rows: &[Row]) {
    let p99 = |variant| find(rows, "tail", variant, "p99_us").map(|row| row.spread.median);
    if let (Some(auto), Some(twin)) = (p99("auto"), p99("epoll-splice")) {
        verdict(
            auto - twin <= TAIL_BEHIND_US,
            &format!(
                "tail: p99 of auto is {auto:.0} us, of epoll-splice {twin:.0} us (bar {TAIL_BEHIND_US:.0} us behind)"
            ),
        );
    }
}

/// One enter serves many connections where many are ready.
fn print_batching(cells: &[Cell], rows: &[Row]) {
    let mut payloads: Vec<u64> = cells.iter().map(|cell| cell.load.payload).collect();
    payloads.sort_unstable();
    payloads.dedup();
    for payload in payloads {
        let enters: Vec<String> = cells
            .iter()
            .filter(|cell| cell.load.kind == Kind::PingPong && cell.load.payload == payload)
            .filter_map(|cell| Some((cell, find(rows, &cell.case, "auto", "enters_per_request")?)))
            .map(|(cell, row)| format!("{:.2} with {}", row.spread.median, cell.load.connections))
            .collect();
        if enters.len() > 1 {
            println!("  enters of auto for each request of {payload} bytes, by connections: {}", enters.join(", "));
        }
    }
}

fn find<'a>(rows: &'a [Row], case: &str, variant: &str, metric: &str) -> Option<&'a Row> {
    rows.iter().find(|row| row.case == case && row.variant == variant && row.metric == metric)
}

fn cheapest<'a>(rows: &[&'a Row]) -> Option<&'a Row> {
    rows.iter().copied().min_by(|one, other| one.spread.median.total_cmp(&other.spread.median))
}

fn verdict(is_met: bool, sentence: &str) {
    println!("  {}  {sentence}", if is_met { "met   " } else { "MISSED" });
}
