//! Revision, build and machine of a measurement: the line above the table.

use std::fmt::Debug;
use std::process::Command;

use anyhow::Result;
use yurt_apimachinery::time::Time;
use yurt_runtime::Clock;

use super::options::Common;

/// One line of Markdown. Asked before anything is measured: the load is that of others.
pub(super) fn of(groups: &[impl Debug], common: &Common, small: bool) -> Result<String> {
    let rows = match groups {
        [] => "All rows".to_owned(),
        groups => {
            let names: Vec<String> = groups.iter().map(|group| format!("{group:?}")).collect();
            names.join(", ")
        }
    };
    let programs = match common.programs.bin_dir {
        Some(_) => "programs built elsewhere".to_owned(),
        None => format!("{}, cargo profile `release`", tree()?),
    };
    let now = Time::from_unix(Clock::system().unix().secs);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
    let small = if small { ", a tenth of the load" } else { "" };
    Ok(format!(
        "{rows}: {programs}; {now}, {cores} cores, load of the machine before {load}{small}."
    ))
}

/// The commit, and whether anything but documents differs from it.
fn tree() -> Result<String> {
    let root = yurt_workspace::root()?;
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).current_dir(&root).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return Ok("a tree without history".to_owned());
    };
    let changes = git(&["status", "--porcelain", "--", ".", ":!docs", ":!*.md"]);
    let is_clean = changes.is_some_and(|changes| changes.is_empty());
    let changed = if is_clean { "" } else { " with changes" };
    Ok(format!("commit {commit}{changed}"))
}
