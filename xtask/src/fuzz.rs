//! `cargo xtask fuzz`: searches for inputs that break a target, for a bounded time, starting from the kept corpus.
//!
//! The targets are in `fuzz/`. They run under libFuzzer on the stable toolchain: coverage instrumentation is a code
//! generation option (`fuzz/instrument.sh`), and the project has no unsafe code for a sanitizer to check.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use yurt_workspace::command;

/// Arguments of `cargo xtask fuzz`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run only these targets (folders of fuzz/corpus)
    targets: Vec<String>,
    /// Run each target for this many seconds
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Keep inputs that reach new code in fuzz/corpus
    #[arg(long)]
    keep: bool,
    /// Use this random seed, so that the same inputs are tried again (0: another seed each time)
    #[arg(long, default_value_t = 0)]
    seed: u32,
    /// Stop each target after this many inputs, even if its seconds are not over (0: only the seconds count)
    #[arg(long, default_value_t = 0)]
    inputs: u32,
}

/// Limits of a target: memory for the process and for one allocation, seconds for one input. Target `wide` compares CPU
/// times itself: work that grows with the square of a body is found long before it takes seconds.
const MEMORY_MAX_MB: u32 = 1024;
const ALLOCATION_MAX_MB: u32 = 256;
const SECONDS_MAX: u32 = 10;

/// Inputs for each target in `cargo xtask test`, and seconds if that takes longer.
const CI_INPUTS: u32 = 20_000;
const CI_SECONDS: u32 = 10;

/// `cargo xtask fuzz`.
pub(crate) fn run(args: &Args) -> Result<()> {
    let known = targets()?;
    if let Some(unknown) = args.targets.iter().find(|name| !known.contains(name)) {
        bail!("{unknown} is no target; there are {}", known.join(", "));
    }
    let chosen = if args.targets.is_empty() {
        known
    } else {
        args.targets.clone()
    };
    let program = build()?;
    for target in &chosen {
        fuzz(&program, target, args)?;
    }
    println!(
        "{} targets, {} s each at the most: nothing found",
        chosen.len(),
        args.seconds
    );
    Ok(())
}

/// The fuzz step of `cargo xtask test`.
pub(crate) fn ci() -> Result<()> {
    run(&Args {
        targets: Vec::new(),
        seconds: CI_SECONDS,
        keep: false,
        // CI tries the same inputs each time, on a slow machine only the first of them: it repeats, and manual runs
        // search for more.
        seed: 1,
        inputs: CI_INPUTS,
    })
}

/// Every folder of the corpus is a target; a test of the crate compares them.
fn targets() -> Result<Vec<String>> {
    let folder = yurt_workspace::root()?.join("fuzz/corpus");
    let entries = std::fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    Ok(names)
}

/// Builds the program with all targets, instrumented, and returns its path.
pub(crate) fn build() -> Result<PathBuf> {
    let root = yurt_workspace::root()?;
    // Cargo keeps crates compiled through a wrapper apart from others; dependencies are those of the interop tests.
    command::run(
        yurt_workspace::cargo()
            .args([
                "build",
                "--profile",
                "quick",
                "--package",
                "yurt-fuzz",
                "--features",
                "engine",
            ])
            .env("RUSTC_WORKSPACE_WRAPPER", root.join("fuzz/instrument.sh"))
            .current_dir(&root),
    )?;
    Ok(yurt_workspace::target_dir(&root)?.join("quick/yurt-fuzz"))
}

fn fuzz(program: &PathBuf, target: &str, args: &Args) -> Result<()> {
    let root = yurt_workspace::root()?;
    let kept = root.join("fuzz/corpus").join(target);
    let folder = if args.inputs > 0 { "fuzz/repeated" } else { "fuzz/found" };
    let work = yurt_workspace::target_dir(&root)?.join(folder).join(target);
    if args.inputs > 0 && work.exists() {
        // Findings of an earlier run would change the inputs of this one.
        std::fs::remove_dir_all(&work).with_context(|| format!("cannot empty {}", work.display()))?;
    }
    std::fs::create_dir_all(&work).with_context(|| format!("cannot make {}", work.display()))?;
    let mut command = Command::new(program);
    command
        .env("YURT_FUZZ_TARGET", target)
        .arg(format!("-max_total_time={}", args.seconds))
        .arg(format!("-seed={}", args.seed))
        .arg(format!("-timeout={SECONDS_MAX}"))
        .arg(format!("-rss_limit_mb={MEMORY_MAX_MB}"))
        .arg(format!("-malloc_limit_mb={ALLOCATION_MAX_MB}"))
        .arg(format!("-artifact_prefix={}/broke-", work.display()))
        .args(["-print_final_stats=0", "-verbosity=0"]);
    if args.inputs > 0 {
        command.arg(format!("-runs={}", args.inputs));
    }
    // libFuzzer writes findings to the first folder.
    if args.keep {
        command.arg(&kept);
    } else {
        command.arg(&work).arg(&kept);
    }
    command::run(&mut command).with_context(|| {
        format!(
            "{target} broke on the newest file broke-* in {}; copy it to fuzz/corpus/{target} to have it run by the tests",
            work.display()
        )
    })
}
