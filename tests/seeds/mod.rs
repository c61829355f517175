//! Scripts of bytes that a model plays: those that a seed makes, and those that a fuzzer has kept.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

/// Have so many scripts played, which the seed makes: a byte, and up to 250 steps of three.
pub(crate) fn run(seed: u64, cases: u32, play: fn(&[u8])) {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let steps = (any::<u8>(), vec(any::<[u8; 3]>(), 0..250));
    let outcome = runner.run(&steps, |(first, steps)| {
        let mut script = vec![first];
        script.extend(steps.concat());
        play(&script);
        Ok(())
    });
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(reason, (first, steps))) => {
            panic!("under seed {seed}: {reason}\nfirst {first}, steps {steps:?}")
        }
        Err(error) => panic!("under seed {seed}: {error}"),
    }
}

/// A seed that is new each time, and printed.
pub(crate) fn new() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = since_epoch.as_nanos() as u64;
    println!("seed {seed}");
    seed
}

/// Have every script played that the fuzz target of this name has kept.
pub(crate) fn replay(target: &str, play: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut played = 0;
    for file in std::fs::read_dir(&corpus).expect("there is a corpus") {
        let path = file.unwrap().path();
        println!("{}", path.display());
        play(&std::fs::read(&path).unwrap());
        played += 1;
    }
    assert!(played > 0, "the corpus is empty");
}
