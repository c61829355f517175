//! Median and extremes: all that five noisy runs allow to be said.

/// The middle and the ends of the values of some runs.
#[derive(Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) runs: usize,
}

impl Spread {
    /// # Panics
    /// If there is no value.
    pub(crate) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let runs = values.len();
        assert!(runs > 0, "a spread needs at least one run");
        let median = (values[(runs - 1) / 2] + values[runs / 2]) / 2.0;
        Spread { median, min: values[0], max: values[runs - 1], runs }
    }
}
