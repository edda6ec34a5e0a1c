#!/bin/sh
# What cargo runs in place of rustc for the crates of this workspace (RUSTC_WORKSPACE_WRAPPER, set by `cargo xtask fuzz`):
# the same with edges counted for libFuzzer. Their dependencies are not counted, and so are those of every other build.
exec "$@" -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
