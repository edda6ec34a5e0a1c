//! Budgets of memory and disk for coordinators and hubs, under all faults and attacks.

use std::collections::BTreeMap;
use std::path::Path;

/// Most resident memory of a hub, in bytes. Under all faults and attacks hubs stay below 45 MiB; an attack may add 16
/// MiB.
const HUB_MAX: u64 = 64 << 20;
/// The same for a coordinator. It stays below 32 MiB; bodies of the feed, and one decoded body, may add 16 MiB each.
const COORDINATOR_MAX: u64 = 64 << 20;
/// Most bytes in the files of a coordinator or a hub at the end; without attacks these are 2 MiB.
const DISK_MAX: u64 = 48 << 20;
const KIB: u64 = 1024;

/// Peaks of each program of the pool, by name and resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Peaks {
    memory: BTreeMap<String, u64>,
    disk: BTreeMap<String, u64>,
}

// === impl Peaks ===

impl Peaks {
    /// Records the process `id` of program `name`; one that has ended is left out.
    pub(super) fn look_at_process(&mut self, name: &str, id: u32) {
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
        if let Some(bytes) = peak(&status) {
            keep(&mut self.memory, name, bytes);
        }
    }

    /// Records all files in `folder`, which belongs to `name`.
    pub(super) fn look_at_folder(&mut self, name: &str, folder: &Path) {
        keep(&mut self.disk, name, size(folder));
    }

    pub(super) fn violations(&self) -> Vec<String> {
        let above = |what: &'static str, peaks: &BTreeMap<String, u64>, budget: fn(&str) -> u64| -> Vec<String> {
            let above = peaks.iter().filter(|(name, bytes)| **bytes > budget(name));
            let told = |(name, bytes): (&String, &u64)| {
                let (has, may) = (mib(*bytes), mib(budget(name)));
                format!("{name} had {has} MiB of {what}, its budget is {may} MiB")
            };
            above.map(told).collect()
        };
        let mut violations = above("memory", &self.memory, memory_max);
        violations.extend(above("disk", &self.disk, |_| DISK_MAX));
        violations
    }
}

impl std::fmt::Display for Peaks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tell = |peaks: &BTreeMap<String, u64>| {
            let peaks = peaks.iter().map(|(name, bytes)| format!("{name} {}", mib(*bytes)));
            peaks.collect::<Vec<_>>().join(", ")
        };
        write!(
            f,
            "the most memory in MiB: {}; disk at the end: {}",
            tell(&self.memory),
            tell(&self.disk)
        )
    }
}

/// The budget of the program `name`.
fn memory_max(name: &str) -> u64 {
    match name.starts_with("coordinator") {
        true => COORDINATOR_MAX,
        false => HUB_MAX,
    }
}

fn mib(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

fn keep(peaks: &mut BTreeMap<String, u64>, name: &str, bytes: u64) {
    let peak = peaks.entry(name.to_owned()).or_default();
    *peak = bytes.max(*peak);
}

/// The peak of resident memory in a `/proc/<id>/status`, in bytes.
fn peak(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * KIB)
}

/// Size of all files below; unreadable ones count as nothing.
fn size(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => size(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    });
    sizes.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peak_is_read_from_what_the_kernel_tells() {
        let status = "Name:\tyurthub\nVmPeak:\t  900000 kB\nVmHWM:\t   20480 kB\nVmRSS:\t   10240 kB\n";
        assert_eq!(peak(status), Some(20 << 20));
        assert_eq!(peak("Name:\tzombie\n"), None);
        let own = std::process::id();
        let mut peaks = Peaks::default();
        peaks.look_at_process("own", own);
        assert!(peaks.memory["own"] > KIB, "{peaks}");
    }

    #[test]
    fn program_above_its_budget_is_a_violation_even_when_it_gave_back() {
        let mut peaks = Peaks::default();
        for bytes in [HUB_MAX, HUB_MAX + 1, 1] {
            keep(&mut peaks.memory, "hub", bytes);
        }
        keep(&mut peaks.memory, "coordinator", COORDINATOR_MAX);
        keep(&mut peaks.disk, "hub", DISK_MAX + 1);
        let violations = peaks.violations();
        assert_eq!(violations.len(), 2, "{violations:?}");
        assert!(violations[0].starts_with("hub had 65 MiB of memory"), "{violations:?}");
        assert!(violations[1].contains("of disk"), "{violations:?}");
    }

    #[test]
    fn files_of_folders_within_count() {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(dir.path().join("a")).expect("a folder");
        for name in ["x", "a/y"] {
            std::fs::write(dir.path().join(name), [0; 10]).expect("a file");
        }
        assert_eq!((size(dir.path()), size(&dir.path().join("none"))), (20, 0));
    }
}
