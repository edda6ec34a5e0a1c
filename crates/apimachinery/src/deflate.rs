//! Pieces of a gzip stream that are compressed one by one, each without a look at the others: a piece that is sent often is
//! compressed once. Sources: RFC 1951, RFC 1952.
//!
//! ```text
//!   HEAD │ piece │ piece │ … │ END │ crc32, length of the plain text
//! ```

use bytes::Bytes;
use flate2::{Compress, Compression, Crc, FlushCompress, Status};

/// What every stream begins with: deflate, no name, no time, the fastest level, an unknown system.
pub(crate) const HEAD: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 255];
/// The last block: stored, empty.
const END: [u8; 5] = [1, 0, 0, 0xff, 0xff];
/// Most bytes of one stored block.
const STORED_MAX: usize = 0xffff;
/// Room that is added while a piece is compressed.
const ROOM: usize = 4 << 10;

/// A piece, compressed: whole deflate blocks that end at a byte, and none of them the last.
#[derive(Debug)]
pub(crate) struct Deflated {
    pub(crate) blocks: Bytes,
    crc: Crc,
}

/// Compresses pieces; takes about 300 KiB from the first one on.
#[derive(Default)]
pub(crate) struct Compressor(Option<Compress>);

/// What the end of a stream has to know of the pieces before it.
#[derive(Default)]
pub(crate) struct Sum(Crc);

// === impl Compressor ===

impl Compressor {
    pub(crate) fn deflate(&mut self, plain: &[u8]) -> Deflated {
        let deflate = self.0.get_or_insert_with(|| Compress::new(Compression::fast(), false));
        deflate.reset();
        let mut blocks = Vec::with_capacity(plain.len() / 8 + ROOM);
        loop {
            let taken = usize::try_from(deflate.total_in()).unwrap_or(usize::MAX);
            let rest = plain.get(taken..).unwrap_or_default();
            let flushed = deflate.compress_vec(rest, &mut blocks, FlushCompress::Sync);
            // Room left over says that all is written.
            match flushed {
                Ok(Status::Ok) if blocks.len() == blocks.capacity() => blocks.reserve(ROOM),
                Ok(_) => break,
                // The stream is new and the flush valid: there is nothing that could be wrong.
                Err(_) => return stored(plain),
            }
        }
        Deflated {
            blocks: blocks.into_boxed_slice().into(),
            crc: sum_of(plain),
        }
    }
}

// === impl Sum ===

impl Sum {
    pub(crate) fn add(&mut self, piece: &Deflated) {
        self.0.combine(&piece.crc);
    }

    /// The end of the stream.
    pub(crate) fn end(&self) -> Bytes {
        [&END[..], &self.0.sum().to_le_bytes(), &self.0.amount().to_le_bytes()]
            .concat()
            .into()
    }
}

/// A piece as it is: for what is short.
pub(crate) fn stored(plain: &[u8]) -> Deflated {
    let mut blocks = Vec::with_capacity(plain.len() + 5);
    for part in plain.chunks(STORED_MAX) {
        // A chunk is never longer than that.
        let len = u16::try_from(part.len()).unwrap_or(u16::MAX);
        blocks.push(0);
        blocks.extend_from_slice(&len.to_le_bytes());
        blocks.extend_from_slice(&(!len).to_le_bytes());
        blocks.extend_from_slice(part);
    }
    Deflated {
        blocks: blocks.into(),
        crc: sum_of(plain),
    }
}

fn sum_of(plain: &[u8]) -> Crc {
    let mut crc = Crc::new();
    crc.update(plain);
    crc
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use proptest::prelude::*;

    use super::*;

    fn inflate(pieces: &[Deflated]) -> Vec<u8> {
        let (mut stream, mut sum) = (HEAD.to_vec(), Sum::default());
        for piece in pieces {
            stream.extend_from_slice(&piece.blocks);
            sum.add(piece);
        }
        stream.extend_from_slice(&sum.end());
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(&stream[..])
            .read_to_end(&mut plain)
            .unwrap();
        plain
    }

    #[test]
    fn a_repetitive_piece_becomes_small() {
        let plain = b"{\"addresses\":[\"10.0.0.1\"],\"conditions\":{\"ready\":true}},".repeat(400);
        let mut compressor = Compressor::default();
        let (one, two) = (compressor.deflate(&plain), compressor.deflate(&plain));
        assert_eq!(one.blocks, two.blocks, "a piece does not depend on those before it");
        assert!(one.blocks.len() < plain.len() / 10);
        assert_eq!(
            inflate(&[one, stored(b","), two]),
            [&plain[..], b",", &plain[..]].concat()
        );
    }

    #[test]
    fn long_pieces_are_stored_in_blocks() {
        let plain = vec![7; STORED_MAX * 2 + 1];
        assert_eq!(inflate(&[stored(&plain)]), plain);
        assert_eq!(inflate(&[]), b"");
    }

    proptest! {
        #[test]
        fn any_pieces_come_out_as_they_went_in(
            pieces in proptest::collection::vec((any::<bool>(), proptest::collection::vec(any::<u8>(), 0..9000)), 0..5)
        ) {
            let mut compressor = Compressor::default();
            let made = pieces.iter().map(|(is_stored, plain)| {
                if *is_stored { stored(plain) } else { compressor.deflate(plain) }
            });
            let made: Vec<_> = made.collect();
            let all: Vec<u8> = pieces.iter().flat_map(|(_, plain)| plain.clone()).collect();
            prop_assert_eq!(inflate(&made), all);
        }
    }
}
