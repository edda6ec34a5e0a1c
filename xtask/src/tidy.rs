//! `cargo xtask tidy`: the house rules that the compiler does not check, each a small check that can fail.
//!
//! A check examines a [`Tree`] (the repository's files) and `cargo metadata`, and returns violations. To add one: a
//! file below `tidy/` with its own tests, and a row in [`CHECKS`].

mod arrows;
mod conformance;
mod cycles;
mod headers;
mod length;
mod links;
mod named_tests;
mod orphans;
mod prose;
mod pure_crate;
mod pure_paths;
mod readme;
mod words;

use std::fmt;

use anyhow::{Result, bail};
use serde_json::Value;

use crate::tree::Tree;

/// Arguments of `cargo xtask tidy`.
#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// Run only these checks (default: all; `--list` names them)
    checks: Vec<String>,
    /// List the checks and their rules
    #[arg(long)]
    list: bool,
}

/// Input of a check.
struct Subject {
    tree: Tree,
    /// `cargo metadata --no-deps`.
    metadata: Value,
}

/// One violation of a house rule.
#[derive(Debug, PartialEq, Eq)]
struct Violation {
    /// The file, and the line if there is one: `a/b.rs:12`.
    place: String,
    /// The problem, and the fix.
    problem: String,
}

/// A house rule.
struct Check {
    name: &'static str,
    /// The rule in one line.
    wants: &'static str,
    run: fn(&Subject) -> Result<Vec<Violation>>,
}

/// Every check, cheapest first.
const CHECKS: &[Check] = &[
    Check {
        name: "headers",
        wants: "every .rs file starts with a //! sentence that says what it is",
        run: headers::check,
    },
    Check {
        name: "orphans",
        wants: "every .rs file is reached by a `mod`, none is called mod.rs",
        run: orphans::check,
    },
    Check {
        name: "pure-paths",
        wants: "pure modules have no clock, I/O, await or randomness",
        run: pure_paths::check,
    },
    Check {
        name: "length",
        wants: "no file is over 600 lines without its tests, no comment over 120 columns",
        run: length::check,
    },
    Check {
        name: "words",
        wants: "no machine paths, sleeps, ignored tests, unfinished code, merge markers",
        run: words::check,
    },
    Check {
        name: "prose",
        wants: "docs and comments keep to the countable rules of docs/STYLE.md; each area may only improve",
        run: prose::check,
    },
    Check {
        name: "readme",
        wants: "README.md fits on two screens (120 lines)",
        run: readme::check,
    },
    Check {
        name: "links",
        wants: "every relative link in a .md file has an existing target",
        run: links::check,
    },
    Check {
        name: "named-tests",
        wants: "every test that a table of a .md file names exists",
        run: named_tests::check,
    },
    Check {
        name: "conformance",
        wants: "every conformance case has a test or a reason",
        run: conformance::check,
    },
    Check {
        name: "arrows",
        wants: "crates depend on each other only as the table says",
        run: arrows::check,
    },
    Check {
        name: "cycles",
        wants: "top modules of a crate import each other in known cycles only; each may only shrink",
        run: cycles::check,
    },
    Check {
        name: "pure-crate",
        wants: "pure crates build without tokio, hyper, rustls",
        run: pure_crate::check,
    },
];

/// Runs the checks; an error if one of them found a violation.
pub(crate) fn run(args: &Args) -> Result<()> {
    if args.list {
        for check in CHECKS {
            println!("{:<11} {}", check.name, check.wants);
        }
        return Ok(());
    }
    if let Some(unknown) = args
        .checks
        .iter()
        .find(|name| CHECKS.iter().all(|check| check.name != **name))
    {
        bail!("there is no check called {unknown}; `cargo xtask tidy --list` names them");
    }
    let root = yurt_workspace::root()?;
    let subject = Subject {
        tree: Tree::read(&root)?,
        metadata: yurt_workspace::metadata(&root)?,
    };
    let mut found = 0;
    for check in CHECKS {
        if !args.checks.is_empty() && !args.checks.iter().any(|name| name == check.name) {
            continue;
        }
        let violations = (check.run)(&subject)?;
        if !violations.is_empty() {
            println!("{}: {}", check.name, check.wants);
        }
        for violation in &violations {
            println!("  {violation}");
        }
        found += violations.len();
    }
    match found {
        0 => Ok(()),
        1 => bail!("tidy: 1 violation"),
        many => bail!("tidy: {many} violations"),
    }
}

// === impl Violation ===

impl Violation {
    fn new(place: impl Into<String>, problem: impl Into<String>) -> Self {
        Self {
            place: place.into(),
            problem: problem.into(),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.problem)
    }
}

// === impl Subject ===

#[cfg(test)]
impl Subject {
    /// A subject of files only, for the checks that do not use the metadata.
    fn of_files(files: &[(&str, &str)]) -> Self {
        Self {
            tree: Tree::of_files(files),
            metadata: Value::Null,
        }
    }
}
