#!/bin/sh
# Wrapper of rustc for the crates of this workspace (RUSTC_WORKSPACE_WRAPPER, set by `cargo xtask fuzz`): compiles them with
# edges counted for libFuzzer. Dependencies are not instrumented, so they are shared with every other build.
exec "$@" -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
