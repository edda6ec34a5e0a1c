//! Rewrites bodies for tests of other languages: reads `json` or `protobuf` bodies from stdin, writes the other form.
//!
//! A frame is four bytes of length, most significant first, then the body. The first argument is `to-json` or
//! `to-protobuf`; bodies carry their apiVersion and kind. A body that cannot be rewritten ends the program.

use std::io::{self, Read as _, Write as _};

use bytes::Bytes;
use yurt_codec::negotiation::{Format, body_json};
use yurt_codec::representation::document;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let direction = std::env::args().nth(1).unwrap_or_default();
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    let mut length = [0; 4];
    while input.read_exact(&mut length).is_ok() {
        let mut body = vec![0; usize::try_from(u32::from_be_bytes(length))?];
        input.read_exact(&mut body)?;
        let body = Bytes::from(body);
        let rewritten = match direction.as_str() {
            "to-json" => body_json(Format::Protobuf, "v1", "Status", &body)?,
            "to-protobuf" => document(Format::Protobuf, false, &body),
            other => return Err(format!("{other:?} is no direction").into()),
        };
        output.write_all(&u32::try_from(rewritten.len())?.to_be_bytes())?;
        output.write_all(&rewritten)?;
        output.flush()?;
    }
    Ok(())
}
