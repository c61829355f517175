//! Scripts of all that can be done with registered pages, as bytes. The oracle is the model that the property tests have,
//! which also replay this target's corpus.

#![no_main]

#[path = "../../tests/ledger/model/mod.rs"]
mod model;

libfuzzer_sys::fuzz_target!(|script: &[u8]| model::play(script));
