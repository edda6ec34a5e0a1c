//! Bytes in JSON, as Go's `encoding/base64` reads and writes them.

use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use base64::{DecodeError, Engine as _, alphabet};

/// Go ignores the bits of the last digit that belong to no byte.
const GO: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// Returns the bytes of a text in base64. Line breaks are skipped.
///
/// # Errors
/// [`DecodeError`], with the offset among the digits.
pub fn decode(text: &str) -> Result<Vec<u8>, DecodeError> {
    if !text.contains(['\r', '\n']) {
        return GO.decode(text);
    }
    let digits: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    GO.decode(digits)
}

/// Returns the text of `bytes`.
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    GO.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_go_reads_are_read() {
        for (text, bytes) in [("YWI=", "ab"), ("YW\r\nI=\n", "ab"), ("YWJ=", "ab"), ("", "")] {
            assert_eq!(decode(text).as_deref(), Ok(bytes.as_bytes()), "{text:?}");
        }
        for text in ["YWI", "YWI=YWI=", "Y I=", "YWI-"] {
            assert!(decode(text).is_err(), "{text:?}");
        }
        assert_eq!(encode(b"ab"), "YWI=");
    }
}
