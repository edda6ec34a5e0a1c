//! Resource usage of a process, as Linux reports it. Source: proc(5).

use std::time::Duration;

use anyhow::{Context, Result};

/// Clock ticks per second in `/proc/PID/stat`: 100 on every Linux that Rust runs on.
const TICKS: f64 = 100.0;

/// A process at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    /// User and system time since its start.
    pub(super) cpu: Duration,
    /// Resident bytes.
    pub(super) rss: u64,
    /// Resident bytes that no file has: heap and stacks. The others are pages of the program and its libraries.
    pub(super) own: u64,
    /// Resident bytes, shared ones divided by their users.
    pub(super) pss: u64,
    /// Bytes it caused to be written to the disk.
    pub(super) written: u64,
    /// Resident bytes of the store, if that is another process.
    pub(super) store_rss: u64,
}

/// Reads everything about a process.
pub(super) fn usage(pid: u32) -> Result<Usage> {
    let stat = read(pid, "stat")?;
    // The name, in parentheses, may hold anything; fields 14 and 15 are utime and stime.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    let kib = |file: &str, name: &str| Ok::<_, anyhow::Error>(fixture(&read(pid, file)?, name)? * 1024);
    Ok(Usage {
        cpu: Duration::from_secs_f64((ticks(11) + ticks(12)) / TICKS),
        rss: kib("status", "VmRSS:")?,
        own: kib("status", "RssAnon:")?,
        pss: kib("smaps_rollup", "Pss:")?,
        written: fixture(&read(pid, "io")?, "write_bytes:")?,
        store_rss: 0,
    })
}

/// CPU time of the threads that run now, more precise than [`Usage::cpu`], which counts in hundredths of a second.
pub(super) fn threads_cpu(pid: u32) -> Result<Duration> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).context("cannot list the threads")?;
    let nanos = tasks.flatten().filter_map(|task| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    Ok(Duration::from_nanos(nanos.sum()))
}

/// Forgets the highest RSS so far.
pub(super) fn reset_peak(pid: u32) -> Result<()> {
    std::fs::write(format!("/proc/{pid}/clear_refs"), "5").context("cannot reset the peak of RSS")
}

/// The highest RSS since [`reset_peak`], in bytes.
pub(super) fn peak(pid: u32) -> Result<u64> {
    Ok(fixture(&read(pid, "status")?, "VmHWM:")? * 1024)
}

fn read(pid: u32, file: &str) -> Result<String> {
    std::fs::read_to_string(format!("/proc/{pid}/{file}")).with_context(|| format!("cannot read {file} of {pid}"))
}

fn fixture(text: &str, name: &str) -> Result<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.with_context(|| format!("no {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_used_something() {
        let usage = usage(std::process::id()).expect("proc must be readable");
        assert!(usage.rss > 1 << 20 && usage.pss > 0, "{usage:?}");
        assert!(threads_cpu(std::process::id()).expect("threads") > Duration::ZERO);
        assert!(peak(std::process::id()).expect("a peak") >= usage.pss);
    }
}
