//! Random scripts of submit, complete, drop, cancel, failing enters and shutdown against the model in `model/`: under
//! fixed seeds, under one that is new each time, and those that a fuzzer has kept.

mod model;
mod seeds;

/// Enough that every kind of step meets every state of an operation many times.
const CASES: u32 = 400;

fn run(seed: u64) {
    seeds::run(seed, CASES, model::play);
}

#[test]
fn the_driver_and_the_model_agree_under_fixed_seeds() {
    for seed in [1, 2, 3, 5, 8] {
        run(seed);
    }
}

#[test]
fn the_driver_and_the_model_agree_under_a_new_seed() {
    run(seeds::new());
}

#[test]
#[ignore = "takes minutes"]
fn the_driver_and_the_model_agree_under_a_hundred_seeds() {
    for seed in 1000..1100 {
        run(seed);
    }
}

#[test]
fn every_corpus_file_replays() {
    seeds::replay("slots", model::play);
}
