//! PROXY headers, versions 1 and 2, as bytes. The oracle is the one that the property tests have, which also replay this target's
//! corpus.

#![no_main]

#[path = "../../tests/first_bytes/mod.rs"]
mod first_bytes;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| first_bytes::check_proxy_header(bytes));
