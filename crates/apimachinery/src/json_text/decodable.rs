//! Checks that JSON that was only skipped can also be decoded.
//!
//! Skipping JSON with serde's `IgnoredAny` is several times faster than decoding it. It accepts three things that
//! decoding rejects: nesting above serde_json's limit, `\u` escapes of half a character, and numbers beyond `f64`. A
//! value must not be stored if a later reader could fail on it, so this module searches for them. An object of which a
//! part is kept is decoded instead, in one pass (`object/extract.rs`).

use serde_json::Value;

use super::scan::find_quote_or_escape;

/// serde_json's limit of nesting.
const MAX_DEPTH: usize = 127;
/// A number of fewer characters and without an exponent is never out of range.
const SAFE_NUMBER_LEN: usize = 300;

/// True if text that is known to be JSON can be decoded as a `serde_json::Value`.
pub fn is_decodable(text: &str) -> bool {
    let bytes = text.as_bytes();
    let (mut at, mut depth) = (0, 0_usize);
    while let Some(byte) = bytes.get(at) {
        at = match byte {
            b'"' => match skip_string(bytes, at + 1) {
                Some(end) => end,
                None => return false,
            },
            b'{' | b'[' => {
                depth += 1;
                at + 1
            }
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                at + 1
            }
            b'-' | b'0'..=b'9' => match skip_number(text, at) {
                Some(end) => end,
                None => return false,
            },
            _ => at + 1,
        };
        if depth > MAX_DEPTH {
            return false;
        }
    }
    true
}

/// True if a value is nested no deeper than can be decoded. The other conditions hold for every value.
pub(crate) fn is_shallow(value: &Value) -> bool {
    fn fits(value: &Value, levels: usize) -> bool {
        match value {
            Value::Array(items) => levels > 0 && items.iter().all(|item| fits(item, levels - 1)),
            Value::Object(members) => levels > 0 && members.values().all(|item| fits(item, levels - 1)),
            _ => true,
        }
    }
    fits(value, MAX_DEPTH)
}

/// The end of the string whose inside starts at `at`; `None` if it holds half a character.
fn skip_string(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        at = find_quote_or_escape(bytes, at)?;
        if bytes[at] == b'"' {
            return Some(at + 1);
        }
        at += match unit(bytes, at) {
            None => 2,
            Some(0xD800..=0xDBFF) => {
                unit(bytes, at + 6).filter(|low| matches!(low, 0xDC00..=0xDFFF))?;
                12
            }
            Some(0xDC00..=0xDFFF) => return None,
            Some(_) => 6,
        };
    }
}

/// The UTF-16 unit of the `\uXXXX` escape at `at`.
fn unit(bytes: &[u8], at: usize) -> Option<u16> {
    let digits = bytes.get(at..at + 6)?.strip_prefix(b"\\u")?;
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// The end of the number that starts at `at`; `None` if it is out of range.
fn skip_number(text: &str, at: usize) -> Option<usize> {
    let is_part = |byte: &&u8| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
    let len = text.as_bytes()[at..].iter().take_while(is_part).count();
    let number = text.get(at..at + len)?;
    if number.len() >= SAFE_NUMBER_LEN || number.contains(['e', 'E']) {
        serde_json::from_str::<f64>(number).ok()?;
    }
    Some(at + len)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn agrees(text: &str) -> bool {
        let is_json = serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
        !is_json || is_decodable(text) == serde_json::from_str::<Value>(text).is_ok()
    }

    #[test]
    fn limits_are_those_of_serde_json() {
        for depth in [1, 126, 127, 128, 129] {
            let text = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
            assert!(agrees(&text), "{depth}");
            let value = (1..depth).fold(serde_json::json!([]), |value, _| serde_json::json!([value]));
            assert_eq!(is_shallow(&value), is_decodable(&text), "{depth}");
        }
        for number in [
            "1e308",
            "1e309",
            "-1e309",
            "1.7976931348623157e308",
            "1.7976931348623159e308",
            "1e-999",
            "0e999",
        ] {
            assert!(agrees(number), "{number}");
        }
        assert!(agrees(&"9".repeat(308)) && agrees(&"9".repeat(309)) && agrees(&"9".repeat(310)));
        assert!(!is_decodable("1e309") && is_decodable("1e308"));
    }

    #[test]
    fn half_characters_are_found() {
        for (text, want) in [
            (r#""\ud83d\ude00""#, true),
            (r#""\ud83d""#, false),
            (r#""\ud83dx""#, false),
            (r#""\ud83d\u0041""#, false),
            (r#""\ude00""#, false),
            (r#""\\ud83d""#, true),
            (r#"{"\ud83d":1}"#, false),
            (r#""\"\ud83d""#, false),
        ] {
            assert_eq!(is_decodable(text), want, "{text}");
            assert!(agrees(text), "{text}");
        }
    }

    proptest! {
        #[test]
        fn decoding_agrees(parts in proptest::collection::vec(proptest::sample::select(vec![
            "\"", "\\", "\\u", "d83d", "de00", "\\ud83d", "\\ude00", "\\\\", "1", "e", "E5", "-", ".", "99999", "[", "]",
            "{", "}", ":", ",", "\"a\":", " ", "é", "null",
        ]), 0..16)) {
            let text = parts.concat();
            prop_assert!(agrees(&text), "{}", text);
            let quoted = format!("\"{text}\"");
            prop_assert!(agrees(&quoted), "{}", quoted);
            is_decodable(&text);
        }

        #[test]
        fn numbers_agree(digits in "-?[1-9][0-9]{0,20}(\\.[0-9]{1,20})?[eE][+-]?[0-9]{1,4}") {
            prop_assert!(agrees(&digits), "{}", digits);
        }
    }
}
