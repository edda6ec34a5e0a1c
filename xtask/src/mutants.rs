//! `cargo xtask mutants`: changes the code of the core in small ways, one at a time, and checks that a test fails.
//!
//! The changes are those of cargo-mutants, which is installed below the target folder. It works on a copy of the
//! repository (without files that git ignores) with a target folder of its own. The tests of a change are those of its
//! package. A change that no test catches must be listed in a table of `docs/TESTING.md`, with the reason.
//!
//! [`areas`] (files and their tests), [`survivors`] (the table, and the results for its entries; pure).

mod areas;
mod survivors;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use yurt_workspace::Stopwatch;
use yurt_workspace::command;

use crate::interop;
use areas::{AREAS, Area};
use survivors::{Names, Table};

/// Arguments of `cargo xtask mutants`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run only these areas (`--list` names them)
    #[arg(long, value_name = "AREA", value_delimiter = ',')]
    only: Vec<String>,
    /// Run only these files of the areas
    #[arg(long, value_name = "PATH")]
    file: Vec<String>,
    /// Run only the K-th of N parts of the mutants, from 0
    #[arg(long, value_name = "K/N")]
    shard: Option<String>,
    /// After this many minutes, start no other area and end the current one
    #[arg(long, value_name = "N", default_value_t = 60)]
    minutes: u64,
    /// Print the areas and their mutants, and exit
    #[arg(long)]
    list: bool,
}

/// The version that is installed.
const VERSION: &str = "27.1.0";
/// File with the table of survivors.
const TABLE: &str = "docs/TESTING.md";
/// A mutant whose tests take so many times as long as those without it counts as caught.
const SLOWER: &str = "4";
/// But not before so many seconds.
const SECONDS_MIN: &str = "60";
/// Exit codes of cargo-mutants after a complete run: all caught; some missed; some timed out.
const RAN: [i32; 3] = [0, 2, 3];
/// Time cargo-mutants has to end its tests and remove its copy.
const END_LIMIT: Duration = Duration::from_secs(60);

/// `cargo xtask mutants`.
///
/// # Errors
/// A survivor that the table does not excuse, or an inconclusive run.
pub(crate) fn run(args: &Args) -> Result<()> {
    let root = yurt_workspace::root()?;
    let chosen = args.areas()?;
    let places = Places::new(&root)?;
    places.install(&root)?;
    let text = std::fs::read_to_string(root.join(TABLE)).with_context(|| format!("cannot read {TABLE}"))?;
    let table = Table::parse(&text).context(TABLE)?;
    let limit = Duration::from_secs(60 * args.minutes);
    let watch = Stopwatch::start();
    let mut found = Names::default();
    let mut is_whole = args.shard.is_none() && args.file.is_empty() && args.only.is_empty();
    for area in chosen {
        println!("\n== {} ({}) ==", area.name, area.package);
        let Some(left) = limit.checked_sub(watch.elapsed()) else {
            println!("skipped: {} min are over", args.minutes);
            is_whole = false;
            continue;
        };
        if area.needs_etcd && interop::etcd()?.is_none() {
            println!("skipped: needs an etcd (`cargo xtask build-interop`)");
            is_whole = false;
            continue;
        }
        let output = places.output(area)?;
        let mut command = args.command(area, &places, &output)?;
        if args.list {
            command::run(command.arg("--list"))?;
            continue;
        }
        is_whole &= run_within(&mut command, left)?;
        let names = Names::read(&output.join("mutants.out"))?;
        println!("{names}");
        found.add(names);
    }
    if args.list {
        return Ok(());
    }
    judge(&found, &table, is_whole, &watch)
}

/// Prints the results; an error if a mutant survived that the table does not excuse.
fn judge(found: &Names, table: &Table, is_whole: bool, watch: &Stopwatch) -> Result<()> {
    println!("\nall together: {found} ({watch})");
    ensure!(found.count() > 0, "void: no mutant was tried");
    for entry in table.caught_by_now(found) {
        println!("caught, remove it from {TABLE}: {entry}");
    }
    if is_whole {
        for entry in table.gone(found) {
            println!("no such mutant any more, remove it from {TABLE}: {entry}");
        }
    }
    let missing: BTreeSet<_> = table.missing(found);
    for survivor in &missing {
        println!("✗ not caught by any test: {survivor}");
    }
    ensure!(
        missing.is_empty(),
        "{} survivors: write the test, or the reason into the table of survivors in {TABLE}",
        missing.len()
    );
    Ok(())
}

/// Runs the command for at most `limit`; returns true if it ended by itself.
fn run_within(command: &mut Command, limit: Duration) -> Result<bool> {
    let mut child = command.spawn().context("cannot start cargo-mutants")?;
    let id = child.id().to_string();
    let (sender, ended) = mpsc::sync_channel(1);
    let waiting = std::thread::spawn(move || sender.send(child.wait()));
    // On SIGINT it ends the tests that it has started.
    let end = |signal| command::succeeds(Command::new("kill").args(["-s", signal, &id]));
    let status = match ended.recv_timeout(limit) {
        Ok(status) => status.context("cannot wait for cargo-mutants")?,
        Err(_) => {
            println!("time limit reached");
            end("INT");
            if ended.recv_timeout(END_LIMIT).is_err() {
                end("KILL");
            }
            let _ = waiting.join();
            return Ok(false);
        }
    };
    match status.code() {
        Some(code) if RAN.contains(&code) => Ok(true),
        _ => bail!("cargo-mutants failed ({status}); do the tests pass without it?"),
    }
}

// === impl Args ===

impl Args {
    fn areas(&self) -> Result<Vec<&'static Area>> {
        let known = || AREAS.map(|area| area.name).join(", ");
        let unknown = self
            .only
            .iter()
            .find(|name| !AREAS.iter().any(|area| area.name == **name));
        if let Some(name) = unknown {
            bail!("{name} is no area; there are {}", known());
        }
        if let Some(file) = self.file.iter().find(|file| !AREAS.iter().any(|area| area.has(file))) {
            bail!("{file} is in no area; `--list` names them with their mutants");
        }
        let is_named = |area: &Area| self.only.is_empty() || self.only.iter().any(|name| name == area.name);
        let has_files = |area: &Area| self.file.is_empty() || self.file.iter().any(|file| area.has(file));
        Ok(AREAS.iter().filter(|area| is_named(area) && has_files(area)).collect())
    }

    /// The command for one area.
    fn command(&self, area: &Area, places: &Places, output: &Path) -> Result<Command> {
        let mut command = Command::new(&places.program);
        command
            .arg("mutants")
            .args([
                "--package",
                area.package,
                "--jobs",
                "1",
                "--cap-lints=true",
                "--colors=never",
            ])
            // A random order: runs that are ended early reach other mutants.
            .args(["--gitignore=true", "--shuffle"])
            .args(["--timeout-multiplier", SLOWER, "--minimum-test-timeout", SECONDS_MIN])
            .arg("--output")
            .arg(output)
            .current_dir(yurt_workspace::root()?)
            .env("CARGO_TARGET_DIR", &places.build)
            .env("TMPDIR", &places.copies)
            .env("CARGO_PROFILE_DEV_DEBUG", "0");
        let files: Vec<&str> = if self.file.is_empty() {
            area.files.to_vec()
        } else {
            let files = self.file.iter().map(String::as_str);
            files.filter(|file| area.has(file)).collect()
        };
        command.args(files.iter().flat_map(|file| ["--file", file]));
        command.args(area.tested_by.iter().flat_map(|package| ["--test-package", package]));
        command.args(self.shard.iter().flat_map(|shard| ["--shard", shard]));
        if let Some(etcd) = interop::etcd()?.filter(|_| area.needs_etcd) {
            command.env(interop::ETCD_VARIABLE, etcd);
        }
        if !self.list {
            command.arg("--").args(area.tests);
        }
        Ok(command)
    }
}

/// Paths, all of them below the target folder.
struct Places {
    /// cargo-mutants.
    program: PathBuf,
    tools: PathBuf,
    /// Target folder of the mutants: libraries are built once for all runs.
    build: PathBuf,
    /// Folder of the copies of the repository.
    copies: PathBuf,
    outputs: PathBuf,
}

// === impl Places ===

impl Places {
    fn new(root: &Path) -> Result<Self> {
        let target = yurt_workspace::target_dir(root)?;
        let (tools, own) = (target.join("tools"), target.join("mutants"));
        let places = Self {
            program: tools.join("bin/cargo-mutants"),
            tools,
            build: own.join("build"),
            copies: own.join("copies"),
            outputs: own.join("found"),
        };
        for folder in [&places.copies, &places.outputs] {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        Ok(places)
    }

    /// Installs the pinned version, unless it is already there.
    fn install(&self, root: &Path) -> Result<()> {
        let version = Command::new(&self.program).args(["mutants", "--version"]).output();
        if version.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).trim().ends_with(VERSION)) {
            return Ok(());
        }
        let mut command = yurt_workspace::cargo();
        command
            .args(["install", "--locked", "--version", VERSION, "--root"])
            .arg(&self.tools)
            .arg("cargo-mutants");
        command::run(command.current_dir(root))
    }

    /// Makes an empty folder for the results of an area.
    fn output(&self, area: &Area) -> Result<PathBuf> {
        let output = self.outputs.join(area.name);
        if output.exists() {
            std::fs::remove_dir_all(&output).with_context(|| format!("cannot empty {}", output.display()))?;
        }
        std::fs::create_dir_all(&output).with_context(|| format!("cannot make {}", output.display()))?;
        Ok(output)
    }
}
