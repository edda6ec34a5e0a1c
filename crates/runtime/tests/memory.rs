//! Free memory returns to the kernel. It is a process of its own, because limits of the allocator hold for all threads.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use yurt_runtime::memory;

/// Bytes of memory in use by this process (proc(5), VmRSS).
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: usize = line
        .and_then(|line| line.trim().trim_end_matches(" kB").parse().ok())
        .expect("a number of kB");
    kib << 10
}

/// Memory that a thread freed stays at the end of its arena, where `malloc_trim` does not look. The limit for it grows with
/// the largest block that was freed, unless it is set.
#[test]
fn memory_that_another_thread_freed_returns() {
    memory::limit_free();
    drop(vec![1_u8; 24 << 20]);
    let before = resident();
    let burst = || -> Vec<Vec<u8>> { (0..1_000).map(|_| vec![1_u8; 11_000]).collect() };
    let most = std::thread::spawn(move || {
        let blocks = burst();
        let most = resident();
        drop(blocks);
        most
    });
    let most = most.join().expect("it does not panic");
    memory::note_freed(11_000_000);
    let (grown, kept) = (most - before, resident().saturating_sub(before));
    assert!(grown > 10_000_000, "{grown} bytes");
    assert!(kept < 1_500_000, "{kept} bytes of {grown}");
}
