//! The run without arguments.

use std::time::{Duration, Instant};

use crate::process::run;

#[test]
fn without_arguments_it_shows_every_route_and_verifies_all() {
    let begun = Instant::now();
    let remains = run(&[]);
    assert_eq!(remains.status.code(), Some(0), "{remains:?}");
    // Usually a quarter of this; other tests run beside it.
    assert!(begun.elapsed() < Duration::from_secs(60), "it took {:?}", begun.elapsed());
    for relay in ["ringmain auto", "ringmain inline", "ringmain ring", "ringmain copy", "epoll read/write"] {
        let rows: Vec<&str> = remains.stdout.lines().filter(|line| line.starts_with(relay)).collect();
        let [row] = rows[..] else { panic!("{relay} has one row: {}", remains.stdout) };
        let way = if relay.contains("copy") || relay.contains("epoll") { "copy" } else { "splice" };
        let cells = row[relay.len()..].trim_start();
        assert!(cells.starts_with(way), "{row}");
        // The one that finds its route by itself copies a little first, and says how much it has spliced in percent.
        let cells = cells.split_once('%').map_or(cells, |(_, rest)| rest).split_whitespace();
        let numbers: Vec<f64> = cells.filter_map(|cell| cell.parse().ok()).collect();
        let [megabytes, rate, cpu, calls, ..] = numbers[..] else { panic!("{row} has its numbers") };
        assert!(megabytes >= 67.0 && rate > 0.0 && cpu > 0.0 && calls > 0.0, "{row}");
        assert!(
            remains.stdout.contains(&format!("  {relay}: {megabytes} MB moved and verified")),
            "{}",
            remains.stdout
        );
    }
    assert!(remains.stdout.contains(" MB arrived as they were sent."), "{}", remains.stdout);
}
