//! Runs one target under libFuzzer: the one named by the environment variable `YURT_FUZZ_TARGET`.
#![no_main]
#![allow(unsafe_code, reason = "libFuzzer's entry point is a C function")]

use std::sync::OnceLock;

use yurt_fuzz::{Target, find};

static TARGET: OnceLock<Target> = OnceLock::new();

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let target = TARGET.get_or_init(|| {
        let name = std::env::var("YURT_FUZZ_TARGET").unwrap_or_default();
        find(&name).unwrap_or_else(|| panic!("YURT_FUZZ_TARGET={name:?} is no target"))
    });
    (target.run)(data);
});
