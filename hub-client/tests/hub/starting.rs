//! Starts of the program itself that must fail: one line on stderr, and the right exit code.

use std::process::Command;

/// Program as tests build it: without feature `failpoints`, like a release build.
const PROGRAM: &str = env!("CARGO_BIN_EXE_yurthub");

/// Exit code and stderr of a start that fails.
fn fail(command: &mut Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
#[cfg(not(feature = "failpoints"))]
fn build_without_failpoints_has_none_and_refuses_the_variable() {
    let program = std::fs::read(PROGRAM).unwrap();
    let name = b"leader-clock-check".as_slice();
    assert!(!program.windows(name.len()).any(|part| part == name));

    let (code, line) = fail(Command::new(PROGRAM).env("YURT_FAILPOINTS", "leader-clock-check=off"));
    assert_eq!(code, Some(2), "{line}");
    assert!(
        line.starts_with("yurthub: error: YURT_FAILPOINTS: this build has no failpoint") && line.lines().count() == 1,
        "{line}"
    );
}
