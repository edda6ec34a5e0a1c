//! Starts of the program itself that end at once: the right exit code, and one line on stderr if they fail.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};

use yurt_test_support::TestDir;

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

/// The first process of a container ignores a signal that it does not handle. So it must be handled before a start that
/// waits, here for a server.
#[test]
fn sigterm_ends_a_start_that_waits() {
    let folder = TestDir::new();
    let below = |flag: &str, name: &str| format!("--{flag}={}", folder.path().join(name).display());
    let mut hub = Command::new(PROGRAM)
        .args(["--node-name=n1", "--server-addr=https://127.0.0.1:1"])
        .args([
            "--join-token=abcdef.0123456789abcdef",
            "--discovery-token-unsafe-skip-ca-verification",
        ])
        .args([
            "--serve-port=0",
            "--proxy-port=0",
            "--proxy-secure-port=0",
            "--enable-dummy-if=false",
        ])
        .args([below("root-dir", "root"), below("disk-cache-path", "cache")])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(hub.stderr.take().unwrap());
    let waits = log
        .by_ref()
        .lines()
        .any(|line| line.unwrap().contains("Failed to obtain the client certificate"));
    let killed = Command::new("kill").arg(hub.id().to_string()).status().unwrap();
    assert!(waits && killed.success());
    assert_eq!(hub.wait().unwrap().code(), Some(0));
}

#[test]
fn help_is_that_of_the_hub_and_names_the_commands() {
    let output = Command::new(PROGRAM).arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && help.starts_with("YurtHub:"), "{help}");
    assert!(
        help.contains("filters") && help.contains("--disabled-resource-filters"),
        "{help}"
    );
    let version = Command::new(PROGRAM).arg("--version").output().unwrap();
    assert!(version.stdout.starts_with(b"yurthub "));
}

#[test]
fn filters_are_listed_and_explained_without_a_hub() {
    let output = Command::new(PROGRAM).args(["filters", "list"]).output().unwrap();
    let list = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success() && list.starts_with("1. servicetopology ("),
        "{list}"
    );
    let (code, line) = fail(Command::new(PROGRAM).args(["filters", "list", "--config=/none"]));
    assert_eq!(code, Some(1), "{line}");
    assert!(line.contains("/none") && line.lines().count() == 1, "{line}");
    let (code, line) = fail(Command::new(PROGRAM).args(["filters", "explain"]));
    assert_eq!(code, Some(2), "{line}");
    assert!(line.contains("--component"), "{line}");
}

#[test]
fn last_value_of_a_repeated_flag_counts_as_in_openyurt() {
    let flags = [
        "--proxy-port=1",
        "--proxy-port=2",
        "--gc-frequency=120",
        "--lb-mode=none",
    ];
    let (code, line) = fail(Command::new(PROGRAM).args(flags));
    assert_eq!(code, Some(2), "{line}");
    assert!(line.contains("--lb-mode"), "{line}");
}
