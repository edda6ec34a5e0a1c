//! Runs one outside command and turns its exit status into an error that says how to repeat it.

use std::fmt::Write as _;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Runs `command` with our own stdout and stderr; anything but exit code 0 is an error that quotes the command line.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let line = line(command);
    println!("   $ {line}");
    let status = command.status().with_context(|| format!("cannot start `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed ({status})");
    }
    Ok(())
}

/// Whether `program args…` can be started and succeeds; its output is dropped.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// The command as a person would type it. The path of the program is cut to its name, the environment is left out.
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
    fn a_missing_program_is_an_error() {
        assert!(run(&mut Command::new("no-such-program-anywhere")).is_err());
        assert!(!succeeds(&mut Command::new("no-such-program-anywhere")));
    }
}
