//! Client that sends any bytes as HTTP/2, for requests that no library makes.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use yurt_test_support::PATIENCE;

use super::harness::TestHub;

// Types of frames and flags (RFC 9113, 6).
pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// A request of HTTP/2; nothing in it is checked.
#[derive(Clone, Default)]
pub(crate) struct Raw<'a> {
    /// All headers in this order, pseudo headers included.
    pub(crate) headers: Vec<(&'a str, &'a str)>,
    /// Sent in one DATA frame.
    pub(crate) body: &'a str,
    pub(crate) trailers: Vec<(&'a str, &'a str)>,
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// A response with this status.
    Answer(u16),
    /// The stream or the connection was reset.
    Refused,
}

// === impl Raw ===

impl<'a> Raw<'a> {
    /// A request of the kubelet without a body; `more` follows the usual headers.
    pub(crate) fn of_kubelet(method: &'a str, path: &'a str, more: &[(&'a str, &'a str)]) -> Self {
        let usual = [
            (":method", method),
            (":scheme", "http"),
            (":path", path),
            (":authority", "localhost"),
            ("user-agent", "kubelet/v1"),
        ];
        Self {
            headers: usual.into_iter().chain(more.iter().copied()).collect(),
            ..Self::default()
        }
    }

    /// The same request with another value of a header.
    pub(crate) fn with(mut self, name: &str, value: &'a str) -> Self {
        let header = self.headers.iter_mut().find(|(held, _)| *held == name);
        header.expect("it has this header").1 = value;
        self
    }

    /// Sends it over a connection of its own and waits for the end.
    pub(crate) async fn send(&self, hub: &TestHub) -> End {
        let mut connection = hub.connect().await;
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        bytes.extend(frame(SETTINGS, 0, 0, &[]));
        let ends = |is_last| if is_last { END_STREAM } else { 0 };
        let (has_body, has_trailers) = (!self.body.is_empty(), !self.trailers.is_empty());
        let flags = END_HEADERS | ends(!has_body && !has_trailers);
        bytes.extend(frame(HEADERS, flags, 1, &block(&self.headers)));
        if has_body {
            bytes.extend(frame(DATA, ends(!has_trailers), 1, self.body.as_bytes()));
        }
        if has_trailers {
            bytes.extend(frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(&self.trailers)));
        }
        connection.write_all(&bytes).await.unwrap();
        let end = tokio::time::timeout(PATIENCE, end(&mut connection));
        end.await.expect("the request must end")
    }
}

/// Reads frames until the stream has an answer, or ends.
async fn end(connection: &mut TcpStream) -> End {
    loop {
        let mut head = [0; 9];
        if connection.read_exact(&mut head).await.is_err() {
            return End::Refused;
        }
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let mut payload = vec![0; length];
        if connection.read_exact(&mut payload).await.is_err() {
            return End::Refused;
        }
        match head[3] {
            HEADERS => return End::Answer(status(&payload)),
            RST_STREAM | GOAWAY => return End::Refused,
            _ => {}
        }
    }
}

/// The status at the begin of a header block (RFC 7541, A): indexed, or as a literal of three digits.
fn status(block: &[u8]) -> u16 {
    match *block {
        [0x88, ..] => 200,
        [0x8c, ..] => 400,
        [0x8d, ..] => 404,
        [0x8e, ..] => 500,
        [kind, 3, a, b, c, ..] if kind & 0x3f == 8 => [a, b, c]
            .iter()
            .fold(0, |status, digit| status * 10 + u16::from(digit - b'0')),
        // Digits in Huffman's code have 5 or 6 bits.
        [kind, length, ref text @ ..] if kind & 0x3f == 8 && length & 0x80 != 0 => huffman(text),
        _ => panic!("no status: {block:?}"),
    }
}

/// Three digits (RFC 7541, B).
fn huffman(text: &[u8]) -> u16 {
    let bits = text
        .iter()
        .take(3)
        .fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
    let (mut left, mut status) = (8 * text.len().min(3), 0);
    for _ in 0..3 {
        let five = (bits >> (left - 5)) & 0x1f;
        let digit = if five < 3 {
            left -= 5;
            five
        } else {
            left -= 6;
            ((bits >> left) & 0x3f) - 0x19 + 3
        };
        status = status * 10 + digit as u16;
    }
    status
}

/// Headers as literals that are not indexed.
pub(crate) fn block(headers: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in headers {
        block.push(0);
        for text in [name, value] {
            assert!(text.len() < 127, "a longer length takes more bytes");
            block.push(text.len() as u8);
            block.extend(text.as_bytes());
        }
    }
    block
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}
