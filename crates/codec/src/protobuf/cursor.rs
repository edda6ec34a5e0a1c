//! A place in JSON text that only moves forward.

use std::borrow::Cow;

use super::TranscodeError;
use yurt_apimachinery::json_text::scan::{find_quote_or_escape, skip_blank, skip_value};

/// Walks JSON once. The text is expected to be checked JSON; on anything else it fails, it never panics.
pub(super) struct Cursor<'a> {
    json: &'a [u8],
    at: usize,
}

// === impl Cursor ===

impl<'a> Cursor<'a> {
    pub(super) fn new(json: &'a [u8]) -> Self {
        Self { json, at: 0 }
    }

    /// The next byte that is no whitespace; zero at the end.
    #[inline]
    pub(super) fn peek(&mut self) -> u8 {
        if self.json.get(self.at).is_some_and(|byte| *byte <= b' ') {
            self.at = skip_blank(self.json, self.at);
        }
        self.json.get(self.at).copied().unwrap_or_default()
    }

    /// Steps over one byte if it comes next.
    #[inline]
    pub(super) fn eat(&mut self, byte: u8) -> bool {
        // Not `self.at += usize::from(is_next)`: rustc 1.95 miscompiles it at levels 2 and 3 without overflow checks.
        if self.peek() != byte {
            return false;
        }
        self.at += 1;
        true
    }

    #[inline]
    fn expect(&mut self, byte: u8) -> Result<(), TranscodeError> {
        if self.eat(byte) {
            Ok(())
        } else {
            Err(TranscodeError::NotJson)
        }
    }

    /// Enters an object or array.
    pub(super) fn open(&mut self, bracket: u8) -> Result<(), TranscodeError> {
        self.expect(bracket)
    }

    /// True before one more element; steps over the comma, or over the closing bracket.
    #[inline]
    pub(super) fn more(&mut self, is_first: &mut bool, close: u8) -> Result<bool, TranscodeError> {
        if self.eat(close) {
            return Ok(false);
        }
        if !std::mem::take(is_first) {
            self.expect(b',')?;
        }
        Ok(true)
    }

    /// The name of a member and its colon.
    pub(super) fn name(&mut self) -> Result<Cow<'a, [u8]>, TranscodeError> {
        if self.peek() != b'"' {
            return Err(TranscodeError::NotJson);
        }
        let name = match self.plain_string() {
            Some(name) => Cow::Borrowed(name),
            None => string(self.value()?).ok_or(TranscodeError::NotJson)?,
        };
        self.expect(b':')?;
        Ok(name)
    }

    /// Text between the quotes of a string without escapes, if that comes next. Nearly all strings are such.
    pub(super) fn plain_string(&mut self) -> Option<&'a [u8]> {
        if self.peek() != b'"' {
            return None;
        }
        let start = self.at + 1;
        let end = find_quote_or_escape(self.json, start)?;
        let inside = self
            .json
            .get(start..end)
            .filter(|_| self.json.get(end) == Some(&b'"'))?;
        self.at = end + 1;
        Some(inside)
    }

    /// The text of the next value, of any type.
    pub(super) fn value(&mut self) -> Result<&'a [u8], TranscodeError> {
        self.peek();
        let end = skip_value(self.json, self.at).ok_or(TranscodeError::NotJson)?;
        let value = self.json.get(self.at..end).ok_or(TranscodeError::NotJson)?;
        self.at = end;
        Ok(value)
    }
}

/// Text between the quotes; copied only if there are escapes.
pub(super) fn string(json: &[u8]) -> Option<Cow<'_, [u8]>> {
    let inside = json.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    if !inside.contains(&b'\\') {
        return Some(Cow::Borrowed(inside));
    }
    let text: String = serde_json::from_slice(json).ok()?;
    Some(Cow::Owned(text.into_bytes()))
}
