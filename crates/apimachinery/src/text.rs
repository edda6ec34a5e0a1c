//! Go's notation: quoted strings, values and number errors, so that our messages equal kube-apiserver's.

use std::borrow::Cow;
use std::io;

use serde_json::Value;

/// Quotes like Go's `%q`.
pub fn go_quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        push_quoted(&mut out, c);
    }
    out.push('"');
    out
}

fn push_quoted(out: &mut String, c: char) {
    match c {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\x07' => out.push_str("\\a"),
        '\x08' => out.push_str("\\b"),
        '\x0c' => out.push_str("\\f"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\x0b' => out.push_str("\\v"),
        c if is_printable(c) => out.push(c),
        c if (c as u32) < 0x80 => out.push_str(&format!("\\x{:02x}", c as u32)),
        c if (c as u32) < 0x1_0000 => out.push_str(&format!("\\u{:04x}", c as u32)),
        c => out.push_str(&format!("\\U{:08x}", c as u32)),
    }
}

/// Go's `unicode.IsPrint`, near enough: letters, marks, numbers, punctuation, symbols and the ASCII space.
pub(crate) fn is_printable(c: char) -> bool {
    c == ' ' || !(c.is_control() || c.is_whitespace() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{e000}'..='\u{f8ff}'))
}

/// Go's `strconv.ParseInt(text, 10, 64)`, with its error text.
pub(crate) fn parse_int(text: &str) -> Result<i64, String> {
    parse_number(text, "ParseInt", text.strip_prefix(['+', '-']).unwrap_or(text))
}

/// Go's `strconv.ParseUint(text, 10, 64)`, with its error text.
pub(crate) fn parse_uint(text: &str) -> Result<u64, String> {
    parse_number(text, "ParseUint", text)
}

fn parse_number<T: std::str::FromStr>(text: &str, function: &str, digits: &str) -> Result<T, String> {
    let fail = |why: &str| format!("strconv.{function}: parsing {}: {why}", go_quote(text));
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(fail("invalid syntax"));
    }
    text.parse().map_err(|_| fail("value out of range"))
}

/// The character replacements of kube-apiserver's 403 messages.
pub(crate) fn html_escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The text, or its first `most` bytes and `...`.
pub fn cut(text: &str, most: usize) -> Cow<'_, str> {
    if text.len() <= most {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("{}...", &text[..text.floor_char_boundary(most)]))
}

/// The text, or its first and last bytes with `...` between them, so many of it in all.
pub fn cut_middle(text: &str, most: usize) -> Cow<'_, str> {
    if text.len() <= most {
        return Cow::Borrowed(text);
    }
    let begin = text.floor_char_boundary(most / 2);
    let end = text.ceil_char_boundary(text.len() - most / 2);
    Cow::Owned(format!("{}...{}", &text[..begin], &text[end..]))
}

/// A value as JSON, cut as by [`cut`]. Encodes no more of it than is shown.
pub(crate) fn json_up_to(value: &Value, most: usize) -> String {
    struct Room {
        bytes: Vec<u8>,
        most: usize,
    }
    impl io::Write for Room {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let room = self.most + 1 - self.bytes.len();
            self.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
            if bytes.len() > room {
                return Err(io::ErrorKind::StorageFull.into());
            }
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut room = Room {
        bytes: Vec::new(),
        most,
    };
    // An error means that there is no room for more.
    let _ = serde_json::to_writer(&mut room, value);
    let text = String::from_utf8_lossy(&room.bytes);
    cut(&text, most).into_owned()
}

/// Prints decoded JSON like Go's `%v`: `map[a:1 b:[x y] c:<nil>]`.
pub fn go_value(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(go_value).collect();
            format!("[{}]", items.join(" "))
        }
        Value::Object(members) => {
            let members: Vec<String> = members
                .iter()
                .map(|(key, value)| format!("{key}:{}", go_value(value)))
                .collect();
            format!("map[{}]", members.join(" "))
        }
        scalar => scalar.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_as_go_does() {
        assert_eq!(go_quote("a\"b\\c\n\u{1}é\u{85}"), "\"a\\\"b\\\\c\\n\\x01é\\u0085\"");
    }

    #[test]
    fn values_print_as_in_go() {
        let value = serde_json::json!({"b": [1, "x", null], "a": {"c": true}});
        assert_eq!(go_value(&value), "map[a:map[c:true] b:[1 x <nil>]]");
    }

    #[test]
    fn long_texts_and_values_are_cut_where_a_character_ends() {
        assert_eq!((cut("abc", 3), cut("abcd", 3)), ("abc".into(), "abc...".into()));
        assert_eq!(cut("aé", 2), "a...");
        assert_eq!(
            (cut_middle("abcd", 4), cut_middle("abcde", 4)),
            ("abcd".into(), "ab...de".into())
        );
        assert_eq!(cut_middle("aéxéb", 4), "a...b");
        assert_eq!(json_up_to(&serde_json::json!([1, "é"]), 8), "[1,\"é\"]");
        assert_eq!(json_up_to(&serde_json::json!([1, "éé", 2]), 5), "[1,\"...");
        assert_eq!(
            json_up_to(&serde_json::json!("x".repeat(1 << 20)), 1024).len(),
            1024 + 3
        );
    }

    #[test]
    fn number_errors_read_like_strconv() {
        assert_eq!(parse_int("-12"), Ok(-12));
        assert_eq!(
            parse_int("x").unwrap_err(),
            "strconv.ParseInt: parsing \"x\": invalid syntax"
        );
        assert_eq!(
            parse_int("--1").unwrap_err(),
            "strconv.ParseInt: parsing \"--1\": invalid syntax"
        );
        assert_eq!(
            parse_uint("99999999999999999999").unwrap_err(),
            "strconv.ParseUint: parsing \"99999999999999999999\": value out of range"
        );
        assert!(parse_uint("+1").is_err());
    }
}
