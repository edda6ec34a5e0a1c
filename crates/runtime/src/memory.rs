//! Returns memory that is not in use to the kernel: what the allocator holds free, and code that nothing runs.
//!
//! glibc keeps the pages between live blocks. A hub that held 24 MB of new objects until they were stored kept 31 MB of
//! free memory. `malloc_trim` (man page malloc_trim(3)) returns whole free pages in all arenas.

mod program;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Freed bytes after which free memory is returned: a call takes some milliseconds.
const RETURN_AFTER: usize = 4 << 20;

/// Arenas of all threads. glibc gives each thread one, up to eight per core, and a block stays in the arena of the
/// thread that allocated it. So free memory of one thread is of no use to the others.
const ARENAS: i32 = 1;
/// Most free bytes at the end of an arena. `malloc_trim` leaves them, and the default grows up to 64 MiB: a hub kept up
/// to 10 MiB in one of three starts.
const FREE_AT_END: i32 = 512 << 10;
/// Minimum bytes of a block with pages of its own, which return when it is freed. The default grows with such blocks.
const OWN_PAGES: i32 = 4 << 20;

/// Calls of [`return_rest`] from one that returns memory without a note to the next.
const RETURN_EVERY: usize = 6;

/// Bytes freed since free memory was returned.
static FREED: AtomicUsize = AtomicUsize::new(0);
/// True if free memory was returned since the last [`return_rest`].
static IS_RETURNED: AtomicBool = AtomicBool::new(false);
/// Calls of [`return_rest`] without a note.
static CALLS: AtomicUsize = AtomicUsize::new(0);

/// Limits the free memory that the allocator holds (man page mallopt(3)). Call it before the first thread starts. The
/// threads share one arena: for programs with few of them. No effect without glibc.
pub fn limit_free() {
    set_limits();
}

/// Notes that `bytes` of long-lived memory were freed, and returns free memory to the kernel once these are 4 MiB.
/// Blocks for some milliseconds then: call it off the async threads. No effect without glibc.
pub fn note_freed(bytes: usize) {
    if take_if_due(&FREED, bytes) {
        return_free_pages();
        IS_RETURNED.store(true, Ordering::Relaxed);
    }
}

/// Returns free memory once more if [`note_freed`] did so since the last call: buffers of a large list are freed around
/// its commit, some of them later. After the start and every minute it does so without a note: what changed objects
/// free between others is noted nowhere. Then it unmaps the program's pages; those in use are mapped again. Call it
/// every ten seconds. Blocks as [`note_freed`].
pub fn return_rest() {
    let is_noted = IS_RETURNED.swap(false, Ordering::Relaxed);
    if is_noted || CALLS.fetch_add(1, Ordering::Relaxed).is_multiple_of(RETURN_EVERY) {
        return_free_pages();
        program::unmap();
    }
}

/// Adds `bytes`; true if the sum is due, which begins a new one.
fn take_if_due(freed: &AtomicUsize, bytes: usize) -> bool {
    let before = freed.fetch_add(bytes, Ordering::Relaxed);
    let is_due = before.saturating_add(bytes) >= RETURN_AFTER;
    if is_due {
        freed.store(0, Ordering::Relaxed);
    }
    is_due
}

#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "no crate offers the call")]
fn return_free_pages() {
    // SAFETY: it takes no pointer, and glibc locks each arena (MT-Safe in its man page).
    unsafe { libc::malloc_trim(0) };
}

#[cfg(not(target_env = "gnu"))]
fn return_free_pages() {}

#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "no crate offers the call")]
fn set_limits() {
    // SAFETY: it takes no pointer and changes limits only. It would fail for a limit that glibc does not know.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, ARENAS);
        libc::mallopt(libc::M_TRIM_THRESHOLD, FREE_AT_END);
        libc::mallopt(libc::M_MMAP_THRESHOLD, OWN_PAGES);
    }
}

#[cfg(not(target_env = "gnu"))]
fn set_limits() {
    let _ = (ARENAS, FREE_AT_END, OWN_PAGES);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_bytes_are_due_in_sum() {
        let freed = AtomicUsize::new(0);
        assert!(!take_if_due(&freed, RETURN_AFTER - 1) && take_if_due(&freed, 1));
        assert!(!take_if_due(&freed, 1) && take_if_due(&freed, usize::MAX >> 1));
        assert!(!take_if_due(&freed, 0));
    }
}
