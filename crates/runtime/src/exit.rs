//! Ends a program that cannot start, with one line on stderr that gives the reason, and exit code 1.

use std::fmt::Display;
use std::process::ExitCode;

/// Prints exactly one line, `<program>: error: <message>`, on stderr; `main` returns the code.
pub fn fail(message: impl Display) -> ExitCode {
    let program = std::env::args_os().next().unwrap_or_default();
    let program = std::path::Path::new(&program)
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    eprintln!("{}", line(&program, &message.to_string()));
    ExitCode::FAILURE
}

/// Messages of other libraries may span lines; a log collector must see one.
fn line(program: &str, message: &str) -> String {
    let message: Vec<&str> = message.lines().map(str::trim).filter(|part| !part.is_empty()).collect();
    format!("{program}: error: {}", message.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_is_one_line() {
        assert_eq!(
            line("yurthub", "cannot read\n  file x\n"),
            "yurthub: error: cannot read; file x"
        );
    }
}
