//! Runs one outside command and turns its exit status into an error that says how to repeat it.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::stopwatch::Stopwatch;

/// Most lines of a command that wait for their reader.
const LINES_AHEAD: usize = 256;

/// Runs `command` with our own stdout and stderr; anything but exit code 0 is an error that quotes the command line.
///
/// # Errors
/// The command cannot be started, or failed.
pub fn run(command: &mut Command) -> Result<()> {
    let line = line(command);
    println!("   $ {line}");
    let status = command.status().with_context(|| format!("cannot start `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed ({status})");
    }
    Ok(())
}

/// As [`run`], but passes every line of the command's stdout to `told`, and `None` after each `period`.
///
/// # Errors
/// As [`run`].
pub fn run_lines(command: &mut Command, period: Duration, mut told: impl FnMut(Option<&str>)) -> Result<()> {
    let line = line(command);
    println!("   $ {line}");
    let child = command.stdout(Stdio::piped()).spawn();
    let mut child = child.with_context(|| format!("cannot start `{line}`"))?;
    let mut output = BufReader::new(child.stdout.take().context("no output")?);
    let (sender, lines) = mpsc::sync_channel(LINES_AHEAD);
    let reader = std::thread::spawn(move || {
        let mut line = Vec::new();
        while output.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            let text = String::from_utf8_lossy(&line).trim_end_matches('\n').to_owned();
            if sender.send(text).is_err() {
                return;
            }
            line.clear();
        }
    });
    let mut watch = Stopwatch::start();
    loop {
        match lines.recv_timeout(period.saturating_sub(watch.elapsed())) {
            Ok(line) => told(Some(&line)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if watch.elapsed() >= period {
            told(None);
            watch = Stopwatch::start();
        }
    }
    let _ = reader.join();
    let status = child.wait().with_context(|| format!("cannot wait for `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed ({status})");
    }
    Ok(())
}

/// True if `program args…` can be started and succeeds; its output is dropped.
pub fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// The command as a user would type it. The path of the program is cut to its name, the environment is left out.
fn line(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program());
    let mut line = program
        .file_name()
        .unwrap_or(command.get_program())
        .to_string_lossy()
        .into_owned();
    for argument in command.get_args() {
        let _ = write!(line, " {}", argument.to_string_lossy());
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_command_is_an_error_that_quotes_it() {
        let error = run(Command::new("/bin/sh").args(["-c", "exit 3"])).expect_err("exit 3 is a failure");
        let text = format!("{error:#}");
        assert!(text.contains("`sh -c exit 3` failed"), "{text}");
    }

    #[test]
    fn lines_are_told_as_they_come_and_the_exit_code_counts() {
        let mut lines = Vec::new();
        let script = "echo one; echo two; exit 3";
        let outcome = run_lines(
            Command::new("/bin/sh").args(["-c", script]),
            Duration::from_secs(600),
            |line| {
                lines.extend(line.map(str::to_owned));
            },
        );
        assert_eq!(lines, ["one", "two"]);
        assert!(outcome.is_err_and(|error| error.to_string().contains("failed")));
    }

    #[test]
    fn silence_is_told_too() {
        // The command ends after the first period without output.
        let dir = tempfile::tempdir().expect("a folder");
        let gate = dir.path().join("gate");
        let script = format!("until [ -e {} ]; do sleep 0.01; done; echo open", gate.display());
        let mut told = Vec::new();
        run_lines(
            Command::new("/bin/sh").args(["-c", &script]),
            Duration::from_millis(20),
            |line| {
                if line.is_none() {
                    std::fs::write(&gate, "").expect("the gate opens");
                }
                told.push(line.map(str::to_owned));
            },
        )
        .expect("it ends");
        assert_eq!(told.first(), Some(&None));
        assert!(told.contains(&Some("open".to_owned())));
    }

    #[test]
    fn a_missing_program_is_an_error() {
        assert!(run(&mut Command::new("no-such-program-anywhere")).is_err());
        assert!(!succeeds(&mut Command::new("no-such-program-anywhere")));
    }
}
