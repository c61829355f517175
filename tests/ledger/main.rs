//! The registry's book of who has which page, under random scripts of all that can be done with pages, against the
//! naive model in `model/`: under fixed seeds, under one that is new each time, and the scripts that a fuzzer has kept.

#![forbid(unsafe_code)]

mod model;

use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

/// Enough that every kind of step meets every state of a page many times.
const CASES: u32 = 100;

fn run(seed: u64) {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let steps = (any::<u8>(), vec(any::<[u8; 3]>(), 0..250));
    let outcome = runner.run(&steps, |(shape, steps)| {
        let mut script = vec![shape];
        script.extend(steps.concat());
        model::play(&script);
        Ok(())
    });
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(reason, (shape, steps))) => {
            panic!("under seed {seed}: {reason}\nshape {shape}, steps {steps:?}")
        }
        Err(error) => panic!("under seed {seed}: {error}"),
    }
}

#[test]
fn the_registry_and_the_model_agree_under_fixed_seeds() {
    for seed in [1, 2, 3] {
        run(seed);
    }
}

#[test]
fn the_registry_and_the_model_agree_under_a_new_seed() {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = since_epoch.as_nanos() as u64;
    println!("seed {seed}");
    run(seed);
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
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/ledger");
    let mut played = 0;
    for file in std::fs::read_dir(&corpus).expect("there is a corpus") {
        let path = file.unwrap().path();
        println!("{}", path.display());
        model::play(&std::fs::read(&path).unwrap());
        played += 1;
    }
    assert!(played > 0, "the corpus is empty");
}
