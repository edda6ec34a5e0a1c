//! Free memory returns to the kernel, and serves all threads; the program's pages are unmapped. A program without the
//! test harness: limits of the allocator hold for all threads, and count from the first one.

use std::sync::Barrier;

use yurt_runtime::memory;

fn main() {
    if cfg!(all(target_os = "linux", target_env = "gnu")) {
        memory::limit_free();

        pages_of_the_program_are_unmapped_after_the_start();
        memory_that_was_freed_between_live_blocks_returns_within_a_minute();
        memory_that_another_thread_freed_returns();
        memory_that_one_thread_freed_serves_another();
    }
}

/// Bytes of memory in use by this process (proc(5), VmRSS).
fn resident() -> usize {
    bytes_of("VmRSS:")
}

/// Bytes of this line of the process's status (proc(5)).
fn bytes_of(key: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    let kib: usize = line
        .and_then(|line| line.trim().trim_end_matches(" kB").parse().ok())
        .expect("a number of kB");
    kib << 10
}

/// In the program's file, as its code is.
static CONSTANTS: [u8; 4 << 20] = [1; 4 << 20];

/// Pages of the program's file count as the process's from their first use until they are unmapped.
fn pages_of_the_program_are_unmapped_after_the_start() {
    let sum = || {
        CONSTANTS
            .iter()
            .map(|byte| usize::from(std::hint::black_box(*byte)))
            .sum::<usize>()
    };
    let before = resident();
    assert_eq!(sum(), CONSTANTS.len());
    let used = resident() - before;
    memory::return_rest();
    let kept = resident().saturating_sub(before);
    assert!(used > 4_000_000 && kept < 500_000, "{kept} bytes of {used}");
    assert_eq!(sum(), CONSTANTS.len(), "they are mapped again");
}

/// Memory that changed objects free is noted nowhere.
fn memory_that_was_freed_between_live_blocks_returns_within_a_minute() {
    let heap = || bytes_of("RssAnon:");
    let before = heap();
    let live: Vec<_> = blocks(1_000, 11_000).into_iter().step_by(2).collect();
    let grown = heap() - before;
    (0..6).for_each(|_| memory::return_rest());
    let kept = heap().saturating_sub(before);
    assert!(grown > 10_000_000, "{grown} bytes");
    assert!(kept < 8_000_000, "{kept} bytes of {grown} for {} blocks", live.len());
}

fn blocks(count: usize, bytes: usize) -> Vec<Vec<u8>> {
    (0..count).map(|_| vec![1_u8; bytes]).collect()
}

/// Memory that a thread freed stays at the end of its arena, where `malloc_trim` may not look. The limit for it grows
/// with the largest block that was freed, unless it is set.
fn memory_that_another_thread_freed_returns() {
    drop(vec![1_u8; 24 << 20]);
    let before = resident();
    let burst = || {
        let blocks = blocks(1_000, 11_000);
        let most = resident();
        drop(blocks);
        most
    };
    let most = std::thread::spawn(burst).join().expect("it does not panic");
    memory::note_freed(11_000_000);
    let (grown, kept) = (most - before, resident().saturating_sub(before));
    assert!(grown > 10_000_000, "{grown} bytes");
    assert!(kept < 1_500_000, "{kept} bytes of {grown}");
}

/// With an arena of its own, the second thread could not use what the first one freed between blocks that live.
fn memory_that_one_thread_freed_serves_another() {
    // A thread that has ended would leave its arena to the next one.
    let (freed, done) = (Barrier::new(2), Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let live: Vec<_> = blocks(2_000, 4_000).into_iter().step_by(2).collect();
            freed.wait();
            done.wait();
            drop(live);
        });
        freed.wait();
        let before = resident();
        let second = scope.spawn(|| blocks(1_000, 4_000));
        let more = second.join().expect("it does not panic");
        let grown = resident().saturating_sub(before);
        done.wait();
        assert!(grown < 2_000_000, "{grown} bytes for {} blocks", more.len());
    });
}
