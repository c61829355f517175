//! What the benchmarks share: the command line, rounds that interleave the variants, the table and the record.
//!
//! A variant measured after another has warmed the machine is not the same measurement, so every round runs all
//! variants of a case once, in an order that changes from round to round, and the ratio to the baseline is taken
//! within a round before the median over the rounds is. The first round is thrown away.

mod machine;
mod statistics;
mod watchdog;

use std::io;
use std::path::PathBuf;

use clap::Parser;
use serde_json::json;

pub(crate) use statistics::Spread;
use watchdog::Watchdog;

/// One benchmark run: what was asked for on the command line, and the rows measured so far.
pub(crate) struct Bench {
    name: &'static str,
    args: Args,
    rows: Vec<Row>,
    watchdog: Watchdog,
}

/// The same work done in one of the ways that are compared.
pub(crate) struct Variant<'a> {
    name: &'static str,
    run: Box<dyn FnMut() -> io::Result<Vec<Measure>> + 'a>,
}

/// One number that one run of a variant gave.
pub(crate) struct Measure {
    pub(crate) metric: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) value: f64,
}

/// One line of the table and of the record: a metric of a variant over all rounds.
#[derive(Clone)]
pub(crate) struct Row {
    pub(crate) case: String,
    pub(crate) variant: &'static str,
    pub(crate) metric: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) spread: Spread,
    /// The values in the order of the rounds, so that two rows can be compared within each; one that a round could not
    /// tell is not a number.
    pub(crate) values: Vec<f64>,
}

#[derive(Parser)]
#[command(about = "A benchmark of ringmain; it prints a table and writes bench/NAME.json under cargo's target folder.")]
struct Args {
    /// Run every variant once and small: a check that the benchmark works, not a measurement.
    #[arg(long)]
    smoke: bool,
    /// Measured rounds of each case, after one that is thrown away.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Run only these cases, by their whole names, with a comma between two.
    #[arg(long, value_delimiter = ',')]
    cases: Vec<String>,
    /// Run only what contains one of these in its `case/variant`.
    filters: Vec<String>,
    /// Cargo passes this to every benchmark; it changes nothing.
    #[arg(long, hide = true)]
    bench: bool,
}

impl<'a> Variant<'a> {
    pub(crate) fn new(name: &'static str, run: impl FnMut() -> io::Result<Vec<Measure>> + 'a) -> Self {
        Variant { name, run: Box::new(run) }
    }
}

impl Bench {
    /// Reads the command line and prints which machine the numbers will be of.
    pub(crate) fn open(name: &'static str) -> Self {
        let args = Args::parse();
        println!("{name}: commit {}, Linux {}, {}", machine::commit(), machine::kernel(), machine::cpu());
        if let Some(load) = machine::load().filter(|load| *load >= 0.5) {
            println!(
                "load average {load:.1}: other work shares this machine, so of these numbers only ratios mean much"
            );
        }
        Bench { name, args, rows: Vec::new(), watchdog: Watchdog::start() }
    }

    /// Whether this run only checks that the benchmark works, so that its sizes should be small.
    pub(crate) fn smoke(&self) -> bool {
        self.args.smoke
    }

    /// The cases asked for by name on the command line; none means all.
    #[allow(dead_code, reason = "for benchmarks whose short form leaves cases out")]
    pub(crate) fn cases_asked(&self) -> &[String] {
        &self.args.cases
    }

    /// Runs the variants of one case in interleaved rounds, prints their table and returns its rows.
    ///
    /// Ratios in the table are to the variant named `baseline`, where the filters left it in.
    #[allow(dead_code, reason = "a benchmark with a table of its own measures instead")]
    pub(crate) fn case(&mut self, case: &str, baseline: &str, variants: Vec<Variant>) -> io::Result<Vec<Row>> {
        let rows = self.measure(case, variants)?;
        print_table(case, baseline, &rows);
        Ok(rows)
    }

    /// Runs the variants of one case in interleaved rounds and returns its rows, for a table of the benchmark's own.
    pub(crate) fn measure(&mut self, case: &str, mut variants: Vec<Variant>) -> io::Result<Vec<Row>> {
        variants.retain(|variant| self.wants(case, variant.name));
        let mut runs: Vec<Vec<Vec<Measure>>> = variants.iter().map(|_| Vec::new()).collect();
        let warm_up = if self.args.smoke { 0 } else { 1 };
        let rounds = if self.args.smoke { 1 } else { self.args.rounds };
        for round in 0..warm_up + rounds {
            for index in order(variants.len(), round as usize) {
                let variant = &mut variants[index];
                let name = format!("{case}/{}", variant.name);
                let measures = self.watchdog.watch(&name, || (variant.run)()).map_err(|error| {
                    io::Error::new(error.kind(), format!("{case}/{} failed in round {round}: {error}", variant.name))
                })?;
                if round >= warm_up {
                    runs[index].push(measures);
                }
            }
        }
        let names: Vec<&'static str> = variants.iter().map(|variant| variant.name).collect();
        let rows = summarize(case, &names, &runs);
        self.rows.extend(rows.iter().cloned());
        Ok(rows)
    }

    /// Writes the record, `bench/NAME.json` under cargo's target folder, and returns where it is.
    ///
    /// There is none, and an earlier one stays, if the filters left out every variant.
    pub(crate) fn finish(self) -> io::Result<Option<PathBuf>> {
        if self.rows.is_empty() {
            println!(
                "nothing of this benchmark is among {:?} and contains any of {:?}; no record is written",
                self.args.cases, self.args.filters
            );
            return Ok(None);
        }
        let folder = machine::target_folder()?.join("bench");
        std::fs::create_dir_all(&folder)?;
        let path = folder.join(format!("{}.json", self.name));
        let rows: Vec<_> = self
            .rows
            .iter()
            .map(|row| {
                json!({
                    "case": row.case, "variant": row.variant, "metric": row.metric, "unit": row.unit,
                    "median": row.spread.median, "min": row.spread.min, "max": row.spread.max, "runs": row.spread.runs,
                })
            })
            .collect();
        let record = json!({
            "bench": self.name, "commit": machine::commit(), "kernel": machine::kernel(), "cpu": machine::cpu(),
            "command": machine::command(self.name), "rows": rows,
        });
        std::fs::write(&path, format!("{record:#}\n"))?;
        println!("\nrecord: {}", path.display());
        Ok(Some(path))
    }

    fn wants(&self, case: &str, variant: &str) -> bool {
        let name = format!("{case}/{variant}");
        let is_among_cases = self.args.cases.is_empty() || self.args.cases.iter().any(|wanted| wanted == case);
        is_among_cases
            && (self.args.filters.is_empty() || self.args.filters.iter().any(|filter| name.contains(filter.as_str())))
    }
}

/// The order of one round: rotated, and reversed every second time, so that no variant always follows the same one.
fn order(count: usize, round: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).map(|place| (place + round) % count).collect();
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

fn summarize(case: &str, names: &[&'static str], runs: &[Vec<Vec<Measure>>]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (variant, rounds) in names.iter().zip(runs) {
        // Every run of a variant reports the same metrics, so the first one names them all.
        for first in rounds.first().into_iter().flatten() {
            let values: Vec<f64> = rounds.iter().filter_map(|measures| value(measures, first.metric)).collect();
            let told: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
            if told.is_empty() {
                continue;
            }
            let spread = Spread::of(told);
            rows.push(Row { case: case.to_owned(), variant, metric: first.metric, unit: first.unit, spread, values });
        }
    }
    rows
}

/// One row's value divided by the other's of the same round, over the rounds.
pub(crate) fn ratio(row: &Row, baseline: &Row) -> Option<Spread> {
    let ratios: Vec<f64> = row
        .values
        .iter()
        .zip(&baseline.values)
        .map(|(ours, theirs)| ours / theirs)
        .filter(|ratio| ratio.is_finite())
        .collect();
    if ratios.is_empty() { None } else { Some(Spread::of(ratios)) }
}

fn value(measures: &[Measure], metric: &str) -> Option<f64> {
    measures.iter().find(|measure| measure.metric == metric).map(|measure| measure.value)
}

fn print_table(case: &str, baseline: &str, rows: &[Row]) {
    if rows.is_empty() {
        return;
    }
    let runs = rows[0].spread.runs;
    println!("\n{case} (median of {runs}, ratio to {baseline} within a round)");
    println!("  {:<14} {:<18} {:>12} {:>12} {:>12} {:>7}  unit", "variant", "metric", "median", "min", "max", "ratio");
    for row in rows {
        let base = rows.iter().find(|base| base.variant == baseline && base.metric == row.metric);
        let ratio = base.and_then(|base| ratio(row, base));
        let ratio = ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{:.3}", ratio.median));
        let Spread { median, min, max, .. } = row.spread;
        let (variant, metric, unit) = (row.variant, row.metric, row.unit);
        println!("  {variant:<14} {metric:<18} {median:>12.3} {min:>12.3} {max:>12.3} {ratio:>7}  {unit}");
    }
}
