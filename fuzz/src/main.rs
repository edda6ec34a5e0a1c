//! Runs one target under libFuzzer: the one named by the environment variable `YURT_FUZZ_TARGET`.
#![no_main]
#![allow(unsafe_code, reason = "libFuzzer's entry point is a C function")]

use std::sync::OnceLock;

use yurt_fuzz::{Target, find};

static TARGET: OnceLock<Target> = OnceLock::new();

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let target = TARGET.get_or_init(|| {
        let name = std::env::var("YURT_FUZZ_TARGET").unwrap_or_default();
        let target = find(&name).unwrap_or_else(|| panic!("YURT_FUZZ_TARGET={name:?} is no target"));
        if target.catches {
            // libFuzzer's hook ends the process at any panic; one that is not caught still ends it.
            std::panic::set_hook(Box::new(|_| {}));
        }
        target
    });
    if data.len() > target.len_max {
        return;
    }
    (target.run)(data);
});
