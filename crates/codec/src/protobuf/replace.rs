//! Replaces one text in a protobuf body; every other byte stays.

use super::TranscodeError;
use super::envelope::PREFIX;
use super::wire::{Fields, Raw, put_field};

/// Field of the envelope that holds the message.
const MESSAGE: u32 = 2;

/// Replaces the text at `path`, the numbers of the fields from the message inwards, by what `to` returns. `None` if
/// there is no such text or `to` returns `None`. Fields that the schema does not know stay.
///
/// # Errors
/// The body is no envelope, or a message on the way is cut or illegal.
pub fn replace_text(
    body: &[u8],
    path: &[u32],
    to: &dyn Fn(&str) -> Option<String>,
) -> Result<Option<Vec<u8>>, TranscodeError> {
    let inside = body.strip_prefix(PREFIX.as_slice()).ok_or(TranscodeError::NoPrefix)?;
    let path: Vec<u32> = std::iter::once(MESSAGE).chain(path.iter().copied()).collect();
    let replaced = replaced(inside, &path, to)?;
    Ok(replaced.map(|inside| [PREFIX.as_slice(), &inside].concat()))
}

fn replaced(
    message: &[u8],
    path: &[u32],
    to: &dyn Fn(&str) -> Option<String>,
) -> Result<Option<Vec<u8>>, TranscodeError> {
    let Some((wanted, rest)) = path.split_first() else {
        return Ok(std::str::from_utf8(message).ok().and_then(to).map(String::into_bytes));
    };
    let mut fields = Fields::of(message);
    let mut start = 0;
    while let Some(field) = fields.next() {
        let end = message.len() - fields.rest_len();
        if let (number, Raw::Bytes(value)) = field?
            && number == *wanted
        {
            return Ok(replaced(value, rest, to)?.map(|value| {
                let mut out = message[..start].to_vec();
                put_field(&mut out, number, &value);
                out.extend_from_slice(&message[end..]);
                out
            }));
        }
        start = end;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protobuf::envelope;

    #[test]
    fn one_text_is_replaced_and_unknown_fields_stay() {
        let of = |version: &[u8]| {
            let mut metadata = b"\x0a\x01a".to_vec();
            put_field(&mut metadata, 6, version);
            metadata.extend_from_slice(b"\xf8\x3f\x01");
            let mut message = b"\xfd\x3f\x01\x02\x03\x04".to_vec();
            put_field(&mut message, 1, &metadata);
            message.extend_from_slice(b"\xfa\x3f\x01x");
            envelope("v1", "Pod", &message)
        };
        let next = |version: &str| (version == "99").then(|| "1".repeat(200));
        let replaced = replace_text(&of(b"99"), &[1, 6], &next).unwrap();
        assert_eq!(replaced, Some(of("1".repeat(200).as_bytes())));
        assert_eq!(replace_text(&of(b"98"), &[1, 6], &next), Ok(None));
        assert_eq!(replace_text(&of(b"99"), &[3, 6], &next), Ok(None), "no such field");
        let body = of(b"99");
        for len in 0..body.len() {
            // Cut anywhere: an error or no text, never a panic.
            if let Ok(Some(replaced)) = replace_text(&body[..len], &[1, 6], &next) {
                assert!(replaced.starts_with(PREFIX.as_slice()));
            }
        }
    }
}
