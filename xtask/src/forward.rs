//! Commands that are programs of their own: `cargo xtask NAME …` becomes `cargo run --package … -- NAME …`.
//!
//! They need an HTTP stack and TLS, which the checks of `xtask` do not wait for. The program replaces this process, so
//! its exit code and its signals are those of the command.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context, Result};
use yurt_workspace::command;

/// Arguments of a forwarded command; its program parses them.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Arguments of the command; `--help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    all: Vec<OsString>,
}

/// A command of another package.
pub(crate) struct Forward {
    package: &'static str,
    /// Subcommand of the package's program; `None` if it has one command.
    command: Option<&'static str>,
    /// True if the program's own speed is part of its measurements.
    is_optimised: bool,
}

pub(crate) const DEMO: Forward = Forward {
    package: "yurt-testbed",
    command: None,
    is_optimised: false,
};
pub(crate) const CHAOS: Forward = Forward::chaos("chaos");
pub(crate) const LINKS: Forward = Forward::chaos("links");
pub(crate) const BENCH: Forward = Forward::benchmark("bench");
pub(crate) const BENCH_POOL: Forward = Forward::benchmark("bench-pool");
pub(crate) const BENCH_HUB: Forward = Forward::benchmark("bench-hub");
pub(crate) const SOAK: Forward = Forward::benchmark("soak");
pub(crate) const SCALE: Forward = Forward::benchmark("scale");

/// Arguments that only print text: no reason for a long build.
const HELP: [&str; 2] = ["--help", "-h"];

// === impl Forward ===

impl Forward {
    const fn chaos(command: &'static str) -> Self {
        Self {
            package: "yurt-chaos-pool",
            command: Some(command),
            is_optimised: false,
        }
    }

    const fn benchmark(command: &'static str) -> Self {
        Self {
            package: "yurt-benchmarks",
            command: Some(command),
            is_optimised: true,
        }
    }

    /// Replaces this process with the command, built first.
    ///
    /// # Errors
    /// Cargo cannot be started.
    pub(crate) fn replace(&self, arguments: &Arguments) -> Result<()> {
        let error = self.cargo_run(&arguments.all).exec();
        Err(error).context("cannot start cargo")
    }

    /// Builds the command.
    ///
    /// # Errors
    /// The build failed.
    pub(crate) fn build(&self) -> Result<()> {
        let mut build = yurt_workspace::cargo();
        build.args(["build", "--package", self.package]);
        command::run(build.current_dir(yurt_workspace::root()?))
    }

    /// Runs the command and waits for it.
    ///
    /// # Errors
    /// The command failed.
    pub(crate) fn run(&self, arguments: &[&str]) -> Result<()> {
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        command::run(&mut self.cargo_run(&arguments))
    }

    fn cargo_run(&self, arguments: &[OsString]) -> Command {
        let is_help = |argument: &OsString| HELP.map(OsStr::new).contains(&argument.as_os_str());
        let is_optimised = self.is_optimised && !arguments.iter().any(is_help);
        let mut run = yurt_workspace::cargo();
        run.args(["run", "--package", self.package])
            .args(is_optimised.then_some("--release"))
            .arg("--")
            .args(self.command)
            .args(arguments);
        run
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(forward: &Forward, arguments: &[&str]) -> String {
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        let run = forward.cargo_run(&arguments);
        let words: Vec<_> = run.get_args().map(OsStr::to_string_lossy).collect();
        words.join(" ")
    }

    #[test]
    fn arguments_reach_the_program_unchanged() {
        assert_eq!(
            line(&DEMO, &["--once", "--cloud", "real"]),
            "run --package yurt-testbed -- --once --cloud real"
        );
        assert_eq!(
            line(&LINKS, &["--seed", "3"]),
            "run --package yurt-chaos-pool -- links --seed 3"
        );
    }

    #[test]
    fn benchmarks_are_optimised_unless_they_only_print_their_help() {
        assert_eq!(line(&SOAK, &[]), "run --package yurt-benchmarks --release -- soak");
        assert_eq!(line(&BENCH, &["-h"]), "run --package yurt-benchmarks -- bench -h");
    }
}
