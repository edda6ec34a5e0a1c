//! FUSE protocol of the kernel (`linux/fuse.h`, 7.31): requests, and their answers from [`behind`](super::behind).

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;

use super::behind::{Behind, Entry};

/// One request of the kernel.
pub(super) struct Request<'a> {
    opcode: u32,
    unique: u64,
    /// Number of the file or folder.
    node: u64,
    rest: &'a [u8],
}

/// An answer in its wire form.
#[derive(Default)]
struct Out(Vec<u8>);

/// Largest single write, and space for the bytes around it.
const WRITE_BYTES_MAX: u32 = 128 * 1024;
pub(super) const REQUEST_BYTES_MAX: usize = WRITE_BYTES_MAX as usize + 8192;

const VERSION: (u32, u32) = (7, 31);
/// Writes may be larger than a page.
const BIG_WRITES: u32 = 1 << 5;
/// The kernel caches no pages of the file: every read is a request.
const DIRECT_IO: u32 = 1;
/// The mode is among what a SETATTR changes.
const SETS_MODE: u32 = 1 << 0;
/// The size is among what a SETATTR changes.
const SETS_SIZE: u32 = 1 << 3;
/// Flags of an opened file that tell how it is used, and their value for reads alone.
const ACCESS_MODE: u32 = 3;
const READ_ONLY: u32 = 0;
const ENOSYS: i32 = 38;
const ANSWER_HEADER: usize = 16;

// === impl Request ===

impl<'a> Request<'a> {
    const HEADER: usize = 40;

    pub(super) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (header, rest) = bytes.split_at_checked(Self::HEADER)?;
        Some(Self {
            opcode: u32_at(header, 4),
            unique: u64_at(header, 8),
            node: u64_at(header, 16),
            rest,
        })
    }

    /// The name at `at`, up to its zero.
    fn name(&self, at: usize) -> &'a OsStr {
        let bytes = self.rest.get(at..).unwrap_or_default();
        OsStr::from_bytes(bytes.split(|byte| *byte == 0).next().unwrap_or_default())
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let bytes = bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u32::from_ne_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let bytes = bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u64::from_ne_bytes)
}

/// The answer; `None` if none is expected.
pub(super) fn answer(request: &Request<'_>, behind: &mut Behind) -> Option<Vec<u8>> {
    // FORGET, INTERRUPT, BATCH_FORGET
    if matches!(request.opcode, 2 | 36 | 42) {
        return None;
    }
    let (error, body) = match body(request, behind) {
        Ok(out) => (0, out.0),
        Err(error) => (-error.raw_os_error().unwrap_or(5), Vec::new()),
    };
    let mut answer = Out::default();
    answer.u32(u32::try_from(ANSWER_HEADER + body.len()).unwrap_or(0));
    answer.0.extend(error.to_ne_bytes());
    answer.u64(request.unique);
    answer.0.extend(body);
    Some(answer.0)
}

fn body(request: &Request<'_>, behind: &mut Behind) -> io::Result<Out> {
    let (node, rest) = (request.node, request.rest);
    let mut out = Out::default();
    match request.opcode {
        // LOOKUP
        1 => out.entry(&behind.lookup(node, request.name(0))?),
        // GETATTR
        3 => out.attributes_alone(&behind.metadata(node)?),
        // SETATTR
        4 => {
            if u32_at(rest, 0) & SETS_SIZE != 0 {
                behind.resize(node, u64_at(rest, 16))?;
            }
            if u32_at(rest, 0) & SETS_MODE != 0 {
                behind.set_mode(node, u32_at(rest, 68))?;
            }
            out.attributes_alone(&behind.metadata(node)?);
        }
        // MKDIR
        9 => out.entry(&behind.make_folder(node, request.name(8))?),
        // UNLINK, RMDIR
        10 | 11 => behind.remove(node, request.name(0), request.opcode == 11)?,
        // RENAME, RENAME2
        12 | 45 => {
            let at = if request.opcode == 12 { 8 } else { 16 };
            let from = request.name(at);
            let to = request.name(at + from.len() + 1);
            behind.rename((node, from), (u64_at(rest, 0), to))?;
        }
        // OPEN
        14 => out.opened(behind.open(node, u32_at(rest, 0) & ACCESS_MODE != READ_ONLY)?),
        // READ
        15 => out.0 = behind.read(u64_at(rest, 0), u64_at(rest, 8), u32_at(rest, 16) as usize)?,
        // WRITE
        16 => {
            let size = u32_at(rest, 16);
            let bytes = rest.get(40..40 + size as usize).unwrap_or_default();
            behind.write((node, u64_at(rest, 0)), u64_at(rest, 8), bytes)?;
            out.u32s([size, 0]);
        }
        // STATFS: there is always free space.
        17 => {
            out.u64s([1 << 20, 1 << 19, 1 << 19, 1 << 20, 1 << 19]);
            out.u32s([4096, 255, 4096, 0, 0, 0, 0, 0, 0, 0]);
        }
        // RELEASE
        18 => behind.close(u64_at(rest, 0)),
        // FSYNC
        20 => behind.sync((node, u64_at(rest, 0)))?,
        // FLUSH, RELEASEDIR, ACCESS, DESTROY
        25 | 29 | 34 | 38 => {}
        // FSYNCDIR
        30 => behind.sync_folder(node)?,
        // INIT
        26 => {
            out.u32s([VERSION.0, VERSION.1, u32_at(rest, 8), BIG_WRITES, 0, WRITE_BYTES_MAX, 1]);
            out.u32s([0; 9]);
        }
        // OPENDIR
        27 => out.u32s([0; 4]),
        // READDIR
        28 => out.entries(behind.entries(node)?, u64_at(rest, 8), u32_at(rest, 16) as usize),
        // CREATE
        35 => {
            let (entry, handle) = behind.create(node, request.name(16))?;
            out.entry(&entry);
            out.opened(handle);
        }
        _ => return Err(io::Error::from_raw_os_error(ENOSYS)),
    }
    Ok(out)
}

// === impl Out ===

impl Out {
    fn u32(&mut self, value: u32) {
        self.0.extend(value.to_ne_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.0.extend(value.to_ne_bytes());
    }

    fn u32s<const N: usize>(&mut self, values: [u32; N]) {
        values.into_iter().for_each(|value| self.u32(value));
    }

    fn u64s<const N: usize>(&mut self, values: [u64; N]) {
        values.into_iter().for_each(|value| self.u64(value));
    }

    /// With its number, and no validity times: names come and go behind, too.
    fn entry(&mut self, entry: &Entry) {
        self.u64s([entry.0, 0, 0, 0, 0]);
        self.attributes(entry);
    }

    fn attributes_alone(&mut self, entry: &Entry) {
        self.u64s([0, 0]);
        self.attributes(entry);
    }

    fn attributes(&mut self, (number, metadata): &Entry) {
        let time = u64::try_from(metadata.mtime()).unwrap_or(0);
        self.u64s([*number, metadata.len(), metadata.blocks(), time, time, time]);
        let nanos = u32::try_from(metadata.mtime_nsec()).unwrap_or(0);
        self.u32s([nanos, nanos, nanos, metadata.mode(), 1]);
        self.u32s([metadata.uid(), metadata.gid(), 0, 4096, 0]);
    }

    fn opened(&mut self, handle: u64) {
        self.u64(handle);
        self.u32s([DIRECT_IO, 0]);
    }

    /// The entries after the first `skip`, as many as fit into `size` bytes.
    fn entries(&mut self, entries: Vec<(u64, std::ffi::OsString, bool)>, skip: u64, size: usize) {
        /// DT_DIR and DT_REG.
        const KINDS: (u32, u32) = (4, 8);
        for ((number, name, is_folder), next) in entries.into_iter().zip(1_u64..) {
            let name = name.as_bytes();
            let length = (24 + name.len()).next_multiple_of(8);
            if next <= skip {
                continue;
            }
            if self.0.len() + length > size {
                return;
            }
            let end = self.0.len() + length;
            self.u64(number);
            self.u64(next);
            self.u32(u32::try_from(name.len()).unwrap_or(0));
            self.u32(if is_folder { KINDS.0 } else { KINDS.1 });
            self.0.extend(name);
            self.0.resize(end, 0);
        }
    }
}
