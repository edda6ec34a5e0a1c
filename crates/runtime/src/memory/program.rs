//! Unmaps the pages of the program's file, so that only those in use are mapped again.
//!
//! At each page that a program touches the kernel maps 64 KiB of its file (`filemap_map_pages`). So nearly all code is
//! mapped once a start has touched a page here and there, and counts as the process's own until memory is scarce.

use std::ops::Range;

/// Unmaps the pages of the program's file that this process has not changed (`MADV_DONTNEED` of madvise(2)). The next
/// access maps them again: from the kernel's page cache, or from the disk where the kernel took that memory. Blocks for
/// some milliseconds. No effect without Linux.
pub(super) fn unmap() {
    #[cfg(target_os = "linux")]
    if let Ok(mappings) = std::fs::read_to_string("/proc/self/smaps") {
        unchanged(&mappings, unmap as fn() as usize)
            .into_iter()
            .for_each(discard);
    }
}

#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "no crate offers the call as a safe one")]
fn discard(pages: Range<usize>) {
    let start = std::ptr::with_exposed_provenance_mut(pages.start);
    // SAFETY: the pages are those of the file, and nothing writes to them: the next access reads the same bytes. The
    // mappings of the program's file last as long as the process. On a failure they stay as they are.
    unsafe { libc::madvise(start, pages.len(), libc::MADV_DONTNEED) };
}

/// One mapping, as smaps of proc(5) describes it.
#[derive(Default)]
struct Mapping<'a> {
    pages: Range<usize>,
    permissions: &'a str,
    /// Device and inode.
    file: (&'a str, &'a str),
    /// Pages that differ from the file, in memory and on swap; `None` for a line that is absent or unreadable.
    changed: [Option<usize>; 2],
}

/// Addresses of the mappings without changes that this process cannot write to, of the file that contains `code`.
/// `smaps` is the text of /proc/PID/smaps.
///
/// Relocated data is such a mapping as well, but with changes: its pages must stay.
fn unchanged(smaps: &str, code: usize) -> Vec<Range<usize>> {
    let mappings = parse(smaps);
    let Some(program) = mappings.iter().find(|one| one.pages.contains(&code)) else {
        return Vec::new();
    };
    let is_unchanged = |one: &&Mapping<'_>| {
        one.file == program.file && !one.permissions.contains('w') && one.changed == [Some(0), Some(0)]
    };
    mappings
        .iter()
        .filter(is_unchanged)
        .map(|one| one.pages.clone())
        .collect()
}

fn parse(smaps: &str) -> Vec<Mapping<'_>> {
    let mut mappings: Vec<Mapping<'_>> = Vec::new();
    for line in smaps.lines() {
        if let Some(mapping) = header(line) {
            mappings.push(mapping);
        } else if let (Some(mapping), Some((key, value))) = (mappings.last_mut(), line.split_once(':')) {
            let kib = || value.trim().strip_suffix(" kB")?.parse().ok();
            match key {
                "Anonymous" => mapping.changed[0] = kib(),
                "Swap" => mapping.changed[1] = kib(),
                _ => {}
            }
        }
    }
    mappings
}

/// Reads the first line of a mapping: `start-end permissions offset device inode path`.
fn header(line: &str) -> Option<Mapping<'_>> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let address = |hex| usize::from_str_radix(hex, 16).ok();
    let pages = address(start)?..address(end)?;
    let (permissions, _offset) = (words.next()?, words.next()?);
    Some(Mapping {
        pages,
        permissions,
        file: (words.next()?, words.next()?),
        ..Mapping::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
1000-2000 r--p 00000000 08:01 7                          /usr/bin/yurthub
Rss:                   4 kB
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd mr mw me
2000-5000 r-xp 00001000 08:01 7                          /usr/bin/yurthub
Anonymous:             0 kB
Swap:                  0 kB
5000-6000 r--p 00004000 08:01 7                          /usr/bin/yurthub
Anonymous:             4 kB
Swap:                  0 kB
6000-7000 r--p 00005000 08:01 7                          /usr/bin/yurthub
Anonymous:             0 kB
Swap:                  4 kB
7000-8000 rw-p 00006000 08:01 7                          /usr/bin/yurthub
Anonymous:             0 kB
Swap:                  0 kB
8000-9000 r--p 00007000 08:01 7                          /usr/bin/yurthub
Anonymous:             0 kB
9000-a000 r-xp 00000000 08:01 8                          /usr/lib/libc.so.6
Anonymous:             0 kB
Swap:                  0 kB
a000-b000 r-xp 00000000 00:00 0                          [vdso]
Anonymous:             0 kB
Swap:                  0 kB
";

    #[test]
    fn only_pages_of_the_program_that_are_as_in_its_file_are_unmapped() {
        assert_eq!(unchanged(SMAPS, 0x2345), [0x1000..0x2000, 0x2000..0x5000]);
        assert_eq!(unchanged(SMAPS, 0xfff), []);
        assert_eq!(unchanged("", 0x2345), []);
    }
}
