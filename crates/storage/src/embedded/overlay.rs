//! Medium over a file that cannot be written: it reads the file, and keeps what is written in memory.
//!
//! For disks that are full or read-only. A database that was not closed cleanly can be recovered there, too: its
//! recovery writes. The file stays as it is.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use parking_lot::RwLock;

use super::file_backend::{FileBackend, LOCK_WAIT, lock};

/// Bytes of a page: the unit that is kept in memory.
const PAGE: usize = 4096;

/// A file under the pages that were written over it. They take up to the size of the medium in memory.
#[derive(Debug)]
pub(super) struct Overlay {
    file: File,
    state: RwLock<State>,
}

#[derive(Debug)]
struct State {
    size: u64,
    /// Bytes of the file that are part of the medium: all until it is truncated.
    below: u64,
    /// Written pages by number.
    pages: BTreeMap<u64, Box<[u8; PAGE]>>,
}

/// Part of a page.
struct Part {
    page: u64,
    /// Offset in the page.
    start: usize,
    length: usize,
}

// === impl Overlay ===

impl Overlay {
    /// Opens the file at `path` for reading, and locks it.
    ///
    /// # Errors
    /// Of the file system; [`io::ErrorKind::ResourceBusy`] when another process still holds the lock after two seconds.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        lock(&file, LOCK_WAIT)?;
        let size = file.metadata()?.len();
        let state = State {
            size,
            below: size,
            pages: BTreeMap::new(),
        };
        Ok(Self {
            file,
            state: RwLock::new(state),
        })
    }

    /// Fills `out` from the file, and with zeros beyond its part of the medium.
    fn read_below(&self, below: u64, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let held = usize::try_from(below.saturating_sub(offset)).unwrap_or(usize::MAX);
        let (file, beyond) = out.split_at_mut(held.min(out.len()));
        beyond.fill(0);
        self.file.read_exact_at(file, offset)
    }
}

impl FileBackend for Overlay {
    fn size(&self) -> io::Result<u64> {
        Ok(self.state.read().size)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.state.read();
        if end(offset, out)? > state.size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.read_below(state.below, offset, out)?;
        let mut rest = out;
        for Part { page, start, length } in parts(offset, rest.len()) {
            let (part, behind) = rest.split_at_mut(length);
            if let Some(written) = state.pages.get(&page) {
                part.copy_from_slice(&written[start..start + length]);
            }
            rest = behind;
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.state.write();
        let end = end(offset, data)?;
        let mut rest = data;
        for Part { page, start, length } in parts(offset, data.len()) {
            let (part, behind) = rest.split_at(length);
            if !state.pages.contains_key(&page) {
                let mut whole = Box::new([0; PAGE]);
                self.read_below(state.below, page * PAGE as u64, &mut whole[..])?;
                state.pages.insert(page, whole);
            }
            if let Some(whole) = state.pages.get_mut(&page) {
                whole[start..start + length].copy_from_slice(part);
            }
            rest = behind;
        }
        state.size = state.size.max(end);
        Ok(())
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        let mut state = self.state.write();
        state.size = size;
        state.below = state.below.min(size);
        let cut = usize::try_from(size % PAGE as u64).unwrap_or_default();
        let last = size / PAGE as u64;
        state.pages.retain(|page, _| *page < last || (*page == last && cut > 0));
        if let Some(page) = state.pages.get_mut(&last) {
            page[cut..].fill(0);
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Offset of the end of `data` at `offset`.
fn end(offset: u64, data: &[u8]) -> io::Result<u64> {
    offset
        .checked_add(data.len() as u64)
        .ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// The parts of pages that `length` bytes from `offset` on consist of.
fn parts(offset: u64, length: usize) -> impl Iterator<Item = Part> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == length {
            return None;
        }
        let at = offset + done as u64;
        let start = usize::try_from(at % PAGE as u64).unwrap_or_default();
        let part = Part {
            page: at / PAGE as u64,
            start,
            length: (PAGE - start).min(length - done),
        };
        done += part.length;
        Some(part)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use yurt_runtime::Clock;
    use yurt_test_support::TestDir;

    use super::super::{Disk, LockedFile};
    use super::*;

    /// Size of the file, and the largest offset of a change: some pages and a part of one.
    const SIZES: usize = 3 * PAGE + 100;

    #[derive(Clone, Debug)]
    enum Change {
        Write(usize, Vec<u8>),
        Resize(usize),
    }

    fn change() -> impl Strategy<Value = Change> {
        let bytes = prop::collection::vec(any::<u8>(), 1..2 * PAGE);
        prop_oneof![
            (0..SIZES, bytes).prop_map(|(offset, data)| Change::Write(offset, data)),
            (0..2 * SIZES).prop_map(Change::Resize),
        ]
    }

    fn whole(medium: &dyn FileBackend) -> Vec<u8> {
        let mut out = vec![0; usize::try_from(medium.size().unwrap()).unwrap()];
        medium.read_at(0, &mut out).unwrap();
        out
    }

    proptest! {
        #[test]
        fn medium_equals_a_file_and_the_file_below_stays(
            before in prop::collection::vec(any::<u8>(), 0..SIZES),
            changes in prop::collection::vec(change(), 0..12),
            from in 0..SIZES,
        ) {
            let folder = TestDir::new();
            let (path, other) = (folder.path().join("below"), folder.path().join("written"));
            std::fs::write(&path, &before).unwrap();
            std::fs::write(&other, &before).unwrap();
            let (overlay, file) = (Overlay::open(&path).unwrap(), LockedFile::open(&other).unwrap());
            for change in changes {
                for medium in [&overlay as &dyn FileBackend, &file] {
                    match &change {
                        Change::Write(offset, data) => medium.write_at(*offset as u64, data).unwrap(),
                        Change::Resize(size) => medium.set_size(*size as u64).unwrap(),
                    }
                }
                let expected = whole(&file);
                prop_assert_eq!(&whole(&overlay), &expected);
                let from = from.min(expected.len());
                let mut part = vec![0; expected.len() - from];
                overlay.read_at(from as u64, &mut part).unwrap();
                prop_assert_eq!(&part[..], &expected[from..]);
            }
            let mut beyond = vec![0; 2];
            let end = overlay.size().unwrap();
            prop_assert!(overlay.read_at(end.saturating_sub(1), &mut beyond).is_err());
            prop_assert_eq!(std::fs::read(&path).unwrap(), before);
        }
    }

    #[test]
    fn file_is_not_opened_beside_its_writer() {
        let folder = TestDir::new();
        let path = folder.path().join("file");
        let writer = Disk::open(&path, Clock::system()).unwrap();
        assert!(Overlay::open(&path).is_err());
        drop(writer);
        Overlay::open(&path).unwrap();
    }
}
