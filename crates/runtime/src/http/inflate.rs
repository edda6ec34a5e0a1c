//! Decompression of messages from a peer, piece by piece: each step yields a bounded piece, even for hostile input.

use std::io;

use bytes::{Buf as _, Bytes};
use flate2::{Decompress, FlushDecompress, Status};
use futures_util::stream;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use http::{HeaderMap, HeaderValue, Response};
use http_body_util::BodyExt as _;

use super::{Body, BoxError, stream as body_of};

/// Value of Accept-Encoding for a request whose answer goes through [`Decoded`].
pub const ACCEPT_GZIP: HeaderValue = HeaderValue::from_static("gzip");

/// Maximum bytes of one piece of plain text.
const PIECE: usize = 64 << 10;
/// Window of deflate: 32 KiB.
const WINDOW_BITS: u8 = 15;

/// An incoming gzip stream, of one member or several (RFC 1952 §2.2); takes about 45 KiB.
pub struct Inflate {
    stream: Decompress,
    /// True at the end of a member. More may follow.
    ended: bool,
}

/// The plain text of an answer.
pub struct Decoded {
    body: Body,
    inflate: Option<Box<Inflate>>,
    /// Compressed bytes not read yet.
    rest: Bytes,
}

/// The peer uses an encoding that was not requested.
#[derive(Debug, thiserror::Error)]
#[error("content encoding {0:?} was not requested")]
pub struct UnknownEncoding(HeaderValue);

/// A decompressor for a message with these headers; `None` when it is not compressed.
///
/// # Errors
/// [`UnknownEncoding`].
pub fn inflate_for(headers: &HeaderMap) -> Result<Option<Box<Inflate>>, UnknownEncoding> {
    match headers.get(CONTENT_ENCODING) {
        None => Ok(None),
        Some(encoding) if encoding == "identity" => Ok(None),
        Some(encoding) if encoding == "gzip" => Ok(Some(Box::default())),
        Some(other) => Err(UnknownEncoding(other.clone())),
    }
}

/// Returns the same response in plain text, decompressed as it is read.
///
/// # Errors
/// [`UnknownEncoding`].
pub fn decoded(response: Response<Body>) -> Result<Response<Body>, UnknownEncoding> {
    let (mut head, body) = response.into_parts();
    let inflate = inflate_for(&head.headers)?;
    if inflate.is_none() {
        return Ok(Response::from_parts(head, body));
    }
    for name in [CONTENT_ENCODING, CONTENT_LENGTH] {
        head.headers.remove(name);
    }
    let rest = Bytes::new();
    let pieces = stream::unfold(Decoded { body, inflate, rest }, |mut body| async move {
        let piece = body.next().await?;
        Some((piece, body))
    });
    Ok(Response::from_parts(head, body_of(pieces)))
}

// === impl Inflate ===

impl Default for Inflate {
    fn default() -> Self {
        Self {
            stream: Decompress::new_gzip(WINDOW_BITS),
            ended: false,
        }
    }
}

impl Inflate {
    /// The next piece of plain text, of at most 64 KiB, from `input`, of which it consumes only the needed bytes. An
    /// empty piece means that all of `input` was consumed without further output.
    ///
    /// # Errors
    /// The input is not a gzip stream, or has a wrong checksum.
    pub fn step(&mut self, input: &mut Bytes) -> io::Result<Bytes> {
        loop {
            if input.is_empty() && self.ended {
                return Ok(Bytes::new());
            }
            if self.ended {
                *self = Self::default();
            }
            let mut piece = Vec::with_capacity(PIECE.min(input.len().saturating_mul(8).max(4 << 10)));
            let before = self.stream.total_in();
            let status = self.stream.decompress_vec(input, &mut piece, FlushDecompress::None);
            let taken = usize::try_from(self.stream.total_in() - before).unwrap_or(usize::MAX);
            input.advance(taken.min(input.len()));
            match status {
                Ok(Status::StreamEnd) => self.ended = true,
                Ok(Status::Ok | Status::BufError) => {}
                Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
            }
            if !piece.is_empty() || (taken == 0 && !self.ended) || input.is_empty() {
                return Ok(piece.into());
            }
        }
    }

    /// True if the stream is at its end; a message that stops before is truncated.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.ended
    }

    /// The whole message, of at most `limit` bytes; `None` if it would be longer.
    ///
    /// # Errors
    /// As [`Self::step`], and if the message is truncated.
    pub fn whole(mut self, mut input: Bytes, limit: usize) -> io::Result<Option<Bytes>> {
        let mut plain = bytes::BytesMut::new();
        loop {
            let piece = self.step(&mut input)?;
            if plain.len() + piece.len() > limit {
                return Ok(None);
            }
            if piece.is_empty() {
                break;
            }
            plain.extend_from_slice(&piece);
        }
        if !self.ended {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the gzip stream is cut off",
            ));
        }
        Ok(Some(plain.freeze()))
    }
}

// === impl Decoded ===

impl Decoded {
    /// The body of `response`.
    ///
    /// # Errors
    /// [`UnknownEncoding`].
    pub fn of(response: Response<Body>) -> Result<Self, UnknownEncoding> {
        let inflate = inflate_for(response.headers())?;
        Ok(Self {
            body: response.into_body(),
            inflate,
            rest: Bytes::new(),
        })
    }

    /// The next piece; `None` at the end.
    ///
    /// # Errors
    /// The connection broke, or the data is not a valid gzip stream.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<Result<Bytes, BoxError>> {
        loop {
            if let Some(inflate) = &mut self.inflate {
                match inflate.step(&mut self.rest) {
                    Err(error) => return Some(Err(error.into())),
                    Ok(piece) if !piece.is_empty() => return Some(Ok(piece)),
                    Ok(_) => {}
                }
            }
            let Some(frame) = self.body.frame().await else {
                let cut = self.inflate.take().is_some_and(|inflate| !inflate.is_ended());
                return cut.then(|| Err("the answer was cut off".into()));
            };
            let data = match frame {
                Err(error) => return Some(Err(error)),
                Ok(frame) => frame.into_data().unwrap_or_default(),
            };
            if self.inflate.is_none() && !data.is_empty() {
                return Some(Ok(data));
            }
            self.rest = data;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::write::GzEncoder;
    use flate2::{Compress, Compression, FlushCompress};

    use super::*;

    fn compressed(plain: &[u8]) -> Bytes {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(plain).unwrap();
        encoder.finish().unwrap().into()
    }

    #[test]
    fn whole_messages_come_back_up_to_the_limit() {
        let plain = b"{\"a\":1}".repeat(30_000);
        let whole = |limit| Inflate::default().whole(compressed(&plain), limit).unwrap();
        assert_eq!(whole(plain.len()).unwrap(), plain);
        assert_eq!(whole(plain.len() - 1), None);
        assert_eq!(Inflate::default().whole(compressed(b""), 0).unwrap().unwrap(), "");
        let cut = compressed(&plain).slice(..100);
        assert!(Inflate::default().whole(cut, 1 << 20).is_err());
        assert!(Inflate::default().whole(Bytes::from("no gzip"), 1 << 20).is_err());
        let more = [&compressed(b"x")[..], b"y"].concat();
        assert!(Inflate::default().whole(more.into(), 1 << 20).is_err());
    }

    /// Conformance: 2.73
    #[test]
    fn members_one_after_another_are_one_message() {
        let members = [&b"{\"a\":"[..], b"", b"1}"].map(compressed).concat();
        let got = Inflate::default().whole(members.clone().into(), 7).unwrap();
        assert_eq!(got.unwrap(), "{\"a\":1}");
        let cut = Bytes::from(members).split_to(60);
        assert!(Inflate::default().whole(cut, 7).is_err(), "the last member is cut off");
    }

    #[test]
    fn a_bomb_gives_bounded_pieces_and_is_refused_at_the_limit() {
        // Blocks without references to earlier ones, repeated.
        let (mut blocks, mut compress) = (Vec::with_capacity(4 << 10), Compress::new(Compression::fast(), false));
        let flush = FlushCompress::Full;
        compress.compress_vec(&[b'a'; 128 << 10], &mut blocks, flush).unwrap();
        let head = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 255];
        let bomb = Bytes::from([&head[..], &blocks.repeat(1000)].concat());
        assert!(bomb.len() < 2 << 20, "{} bytes for 125 MiB", bomb.len());
        let (mut inflate, mut input) = (Inflate::default(), bomb.clone());
        for _ in 0..10 {
            let piece = inflate.step(&mut input).unwrap();
            assert!(!piece.is_empty() && piece.len() <= PIECE);
        }
        assert_eq!(Inflate::default().whole(bomb, 1 << 20).unwrap(), None);
    }

    #[test]
    fn bytes_one_by_one_are_as_good() {
        let plain = b"abcdefgh".repeat(100);
        let (mut inflate, mut got) = (Inflate::default(), Vec::new());
        for byte in compressed(&plain) {
            let mut input = Bytes::copy_from_slice(&[byte]);
            loop {
                let piece = inflate.step(&mut input).unwrap();
                if piece.is_empty() {
                    break;
                }
                got.extend_from_slice(&piece);
            }
        }
        assert!(got == plain && inflate.is_ended());
    }
}
