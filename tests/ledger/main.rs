//! The registry's book of who has which page, under random scripts of all that can be done with pages, against the
//! naive model in `model/`: under fixed seeds, under one that is new each time, and the scripts that a fuzzer has kept.

#![forbid(unsafe_code)]

mod model;
#[path = "../seeds/mod.rs"]
mod seeds;

/// Enough that every kind of step meets every state of a page many times.
const CASES: u32 = 100;

fn run(seed: u64) {
    seeds::run(seed, CASES, model::play);
}

#[test]
fn the_registry_and_the_model_agree_under_fixed_seeds() {
    for seed in [1, 2, 3] {
        run(seed);
    }
}

#[test]
fn the_registry_and_the_model_agree_under_a_new_seed() {
    run(seeds::new());
}

#[test]
#[ignore = "takes minutes"]
fn the_registry_and_the_model_agree_under_a_hundred_seeds() {
    for seed in 1000..1100 {
        run(seed);
    }
}

#[test]
fn every_corpus_file_replays() {
    seeds::replay("ledger", model::play);
}
