//! Reads Rust source with the precision the checks need: the same text with comments and literals blanked out.
//!
//! Pure. Lengths and line breaks are kept, so an offset in the blanked text is the same place in the source.

use std::ops::Range;

/// Attribute of a test module.
const TEST_ATTRIBUTE: &str = "#[cfg(test)]";

/// `source` with the content of every comment, string and character literal replaced by spaces (line breaks stay).
///
/// A check that looks for `todo` in the result finds code, never prose or a test's fixture.
pub(crate) fn code_only(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        match literal_or_comment_end(bytes, at) {
            Some(end) => {
                out.extend(
                    bytes[at..end]
                        .iter()
                        .map(|&byte| if byte == b'\n' { b'\n' } else { b' ' }),
                );
                at = end;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    // Blanked ranges start and end at ASCII characters, so the rest is whole characters.
    String::from_utf8_lossy(&out).into_owned()
}

/// The number (from 1) of the line that byte `offset` of `text` is on.
pub(crate) fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes()[..offset].iter().filter(|&&byte| byte == b'\n').count() + 1
}

/// The offset after the brace that closes the one opened at `open`; the end of the text if there is none.
pub(crate) fn closing_brace(code: &str, open: usize) -> usize {
    let mut depth = 0_usize;
    for (offset, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' if depth <= 1 => return offset + 1,
            b'}' => depth -= 1,
            _ => {}
        }
    }
    code.len()
}

/// Ranges of the test modules in blanked text. A module in a file of its own has none.
pub(crate) fn test_modules(code: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(start) = code[at..].find(TEST_ATTRIBUTE).map(|offset| at + offset) {
        at = start + 1;
        let after = code[start + TEST_ATTRIBUTE.len()..].trim_start();
        let Some(open) = code[start..].find('{').filter(|_| after.starts_with("mod ")) else {
            continue;
        };
        // The braces of `mod tests;` are in another file.
        if code[start..start + open].contains(';') {
            continue;
        }
        at = closing_brace(code, start + open);
        found.push(start..at);
    }
    found
}

/// Names of the test modules that are in files of their own.
pub(crate) fn test_files(code: &str) -> Vec<&str> {
    let attributes = code.match_indices(TEST_ATTRIBUTE);
    attributes
        .filter_map(|(at, _)| {
            let after = code[at + TEST_ATTRIBUTE.len()..].trim_start();
            let (name, _) = after.strip_prefix("mod ")?.split_once(';')?;
            (!name.contains('{')).then_some(name.trim())
        })
        .collect()
}

/// `code` without its test modules.
pub(crate) fn without_tests(code: &str) -> String {
    let mut out = String::new();
    let mut at = 0;
    for range in test_modules(code) {
        out.push_str(&code[at..range.start]);
        at = range.end;
    }
    out + &code[at..]
}

/// The offset after the end of the comment, string or character literal that starts at `at`, if one does.
fn literal_or_comment_end(bytes: &[u8], at: usize) -> Option<usize> {
    let rest = &bytes[at..];
    match rest {
        [b'/', b'/', ..] => Some(at + rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len())),
        [b'/', b'*', ..] => Some(block_comment_end(bytes, at)),
        [b'"', ..] => Some(string_end(bytes, at + 1)),
        [b'r', b'"' | b'#', ..] if !continues_an_identifier(bytes, at) => raw_string_end(bytes, at),
        [b'\'', ..] => char_end(bytes, at),
        _ => None,
    }
}

fn block_comment_end(bytes: &[u8], start: usize) -> usize {
    let mut depth = 0_usize;
    let mut at = start;
    while at < bytes.len() {
        match &bytes[at..] {
            [b'/', b'*', ..] => {
                depth += 1;
                at += 2;
            }
            [b'*', b'/', ..] => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    bytes.len()
}

fn string_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// `r"…"`, `r#"…"#`; `None` for a raw identifier such as `r#type`.
fn raw_string_end(bytes: &[u8], start: usize) -> Option<usize> {
    let hashes = bytes[start + 1..].iter().take_while(|&&byte| byte == b'#').count();
    let open = start + 1 + hashes;
    if bytes.get(open) != Some(&b'"') {
        return None;
    }
    let closing: Vec<u8> = std::iter::once(b'"').chain(std::iter::repeat_n(b'#', hashes)).collect();
    let body = &bytes[open + 1..];
    let length = body.windows(closing.len()).position(|window| window == closing);
    Some(length.map_or(bytes.len(), |length| open + 1 + length + closing.len()))
}

/// `'x'` and `'\n'`; `None` for a lifetime such as `'static`.
fn char_end(bytes: &[u8], start: usize) -> Option<usize> {
    let first = *bytes.get(start + 1)?;
    if first == b'\\' {
        // The escaped character itself may be a quote.
        let close = bytes.iter().skip(start + 3).position(|&byte| byte == b'\'')?;
        return Some(start + 3 + close + 1);
    }
    let width = match first {
        0x00..=0x7f => 1,
        0x80..=0xdf => 2,
        0xe0..=0xef => 3,
        _ => 4,
    };
    (bytes.get(start + 1 + width) == Some(&b'\'')).then_some(start + width + 2)
}

/// True if the `r` at `at` belongs to a longer word. `br"…"` and `cr"…"` are strings, so one `b` or `c` is skipped.
fn continues_an_identifier(bytes: &[u8], at: usize) -> bool {
    let start = if at > 0 && matches!(bytes[at - 1], b'b' | b'c') {
        at - 1
    } else {
        at
    };
    start > 0 && (bytes[start - 1].is_ascii_alphanumeric() || bytes[start - 1] == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked_and_offsets_stay() {
        let source = "let a = \"x.await\"; // .await\n/* a /* b */ .await */ c.await;";
        let code = code_only(source);
        assert_eq!(code.len(), source.len());
        assert_eq!(code.matches(".await").count(), 1);
        assert_eq!(code.find(".await"), source.rfind(".await"));
    }

    #[test]
    fn raw_strings_end_at_their_own_fence() {
        let code = code_only(r###"let a = r#"quote " fs"#; let b = br"fs"; let r#type = fs;"###);
        assert_eq!(code.matches("fs").count(), 1);
        assert!(code.contains("r#type"));
    }

    #[test]
    fn a_quote_character_does_not_open_a_string() {
        let code = code_only("let a = '\"'; let b = '\\''; let c: &'static str = x; let d = 'ä'; keep");
        assert!(code.contains("keep") && code.contains("'static"));
        assert!(!code.contains('"') && !code.contains('ä'));
    }

    #[test]
    fn braces_in_strings_do_not_count() {
        let code = code_only("fn a() { b(\"}\"); } rest");
        assert_eq!(&code[closing_brace(&code, code.find('{').expect("a brace"))..], " rest");
    }
}
