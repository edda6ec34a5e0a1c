//! Patterns of texts: regular expressions in Go's syntax, rewritten where `regex_lite` reads them in another way.

use regex_lite::Regex;
use serde_json::Value;

/// Longest pattern that is compiled, bytes.
const PATTERN_BYTES_MAX: usize = 16 << 10;

/// A compiled pattern.
#[derive(Debug)]
pub(super) struct Pattern {
    /// As the schema has it.
    text: String,
    regex: Regex,
}

/// The part of a pattern that is left, and the rewritten part.
struct Rewriter<'a> {
    rest: &'a str,
    out: String,
}

// === impl Pattern ===

impl Pattern {
    /// The pattern of a schema, if it has one. The error is the reason why it is refused.
    pub(super) fn of(schema: &Value) -> Option<Result<Self, String>> {
        let text = schema["pattern"].as_str().filter(|pattern| !pattern.is_empty())?;
        if text.len() > PATTERN_BYTES_MAX {
            return Some(Err(format!("longer than {PATTERN_BYTES_MAX} bytes")));
        }
        let regex = Regex::new(&rewritten(text));
        let pattern = regex.map(|regex| Self {
            text: text.to_owned(),
            regex,
        });
        Some(pattern.map_err(|error| format!("must be a regular expression without Unicode classes: {error}")))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    pub(super) fn is_match(&self, text: &str) -> bool {
        self.regex.is_match(text)
    }
}

fn rewritten(pattern: &str) -> String {
    let mut rewriter = Rewriter {
        rest: pattern,
        out: String::with_capacity(pattern.len()),
    };
    while let Some(next) = rewriter.rest.chars().next() {
        match next {
            '\\' => rewriter.escape_or_quote(),
            '[' => rewriter.class(),
            '{' if !is_repetition(rewriter.rest) => rewriter.literal(),
            next => rewriter.copy(next.len_utf8()),
        }
    }
    rewriter.out
}

/// True if a text begins with `{n}`, `{n,}` or `{n,m}`. Go reads any other brace as itself.
fn is_repetition(text: &str) -> bool {
    let is_count = |text: &str| text.bytes().all(|c| c.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    let Some((bounds, _)) = text[1..].split_once('}') else {
        return false;
    };
    let (least, most) = bounds.split_once(',').unwrap_or((bounds, ""));
    !least.is_empty() && is_count(least) && is_count(most)
}

// === impl Rewriter ===

impl Rewriter<'_> {
    /// Keeps the next bytes as they are.
    fn copy(&mut self, bytes: usize) {
        let (copied, rest) = self.rest.split_at(bytes);
        self.out.push_str(copied);
        self.rest = rest;
    }

    /// Makes the next character stand for itself.
    fn literal(&mut self) {
        let mut chars = self.rest.chars();
        if let Some(next) = chars.next() {
            // An escaped `<` or `>` is the boundary of a word.
            if next.is_ascii_punctuation() && !matches!(next, '<' | '>') {
                self.out.push('\\');
            }
            self.out.push(next);
        }
        self.rest = chars.as_str();
    }

    fn escape_or_quote(&mut self) {
        let Some(quoted) = self.rest.strip_prefix(r"\Q") else {
            return self.escape();
        };
        let (quoted, rest) = quoted.split_once(r"\E").unwrap_or((quoted, ""));
        self.rest = quoted;
        while !self.rest.is_empty() {
            self.literal();
        }
        self.rest = rest;
    }

    fn escape(&mut self) {
        let escaped = &self.rest[1..];
        match escaped.chars().next() {
            Some('<' | '>') => {
                self.rest = escaped;
                self.literal();
            }
            Some('x') => self.copy(2 + hexadecimal_len(&escaped[1..])),
            Some(escaped) => self.copy(1 + escaped.len_utf8()),
            None => self.copy(1),
        }
    }

    fn class(&mut self) {
        self.copy(1);
        if self.rest.starts_with('^') {
            self.copy(1);
        }
        let mut is_first = true;
        while !self.rest.is_empty() && (is_first || !self.rest.starts_with(']')) {
            is_first = false;
            self.class_item();
        }
        if !self.rest.is_empty() {
            self.copy(1);
        }
    }

    /// A named class, a class of an escape, a character, or a range.
    fn class_item(&mut self) {
        if let Some((name, _)) = self.rest.strip_prefix("[:").and_then(|name| name.split_once(":]")) {
            return self.copy(name.len() + "[::]".len());
        }
        let is_class = self.rest.starts_with('\\') && self.rest[1..].starts_with(['d', 'D', 's', 'S', 'w', 'W']);
        self.class_character();
        let is_range = self
            .rest
            .strip_prefix('-')
            .is_some_and(|end| !end.is_empty() && !end.starts_with(']'));
        if is_range && !is_class {
            self.copy(1);
            self.class_character();
        }
    }

    fn class_character(&mut self) {
        if self.rest.starts_with('\\') {
            self.escape();
        } else {
            self.literal();
        }
    }
}

/// Length of the number after `\x`: two digits, or any in braces.
fn hexadecimal_len(text: &str) -> usize {
    if text.starts_with('{') {
        return text.find('}').map_or(text.len(), |end| end + 1);
    }
    text.bytes().take(2).take_while(u8::is_ascii_hexdigit).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn matches(pattern: &str, text: &str) -> bool {
        Pattern::of(&json!({ "pattern": pattern }))
            .unwrap()
            .expect(pattern)
            .is_match(text)
    }

    #[test]
    fn patterns_mean_what_they_mean_in_go() {
        for (pattern, matched, unmatched) in [
            (r"^\<a\>$", "<a>", "a"),
            (r"^[\<\>]+$", "<>", "a"),
            ("^{.*}$", "{a}", "a"),
            ("^a{,2}$", "a{,2}", "aa"),
            ("^a{x}{2}$", "a{x}}", "a{x}"),
            ("^a{02}$", "a{02}", "aa"),
            ("^a{2}$", "aa", "a{2}"),
            ("^a{1,}b{1,2}$", "aabb", "abbb"),
            (r"^a\b{start}$", "a{start}", "a"),
            (r"^\x{41}\x42{2}$", "ABB", "AB"),
            ("^[[]$", "[", "]"),
            ("^[]a]+$", "]a", "["),
            ("^[^]a]$", "b", "]"),
            ("^[[:digit:][]+$", "1[", ":"),
            ("^[[:]$", ":", "a"),
            ("^[a&&b]+$", "a&b", "c"),
            ("^[a~~b]+$", "a~b", "c"),
            ("^[--]+$", "--", "a"),
            ("^[+--]+$", "+,-", "."),
            ("^[--/]+$", "-./", "a"),
            (r"^[\d-z]+$", "1-z", "a"),
            (r"^[\x41-\x43-]+$", "ABC-", "D"),
            (r"^\Qa.[b]\E+$", "a.[b]]", "aX[b]"),
            (r"^\Q<.", "<.", "<a"),
            (r"^[-a-z0-9]*[a-z0-9]\.\/$", "a-1./", "a-./"),
        ] {
            assert!(matches(pattern, matched), "{pattern} {matched}");
            assert!(!matches(pattern, unmatched), "{pattern} {unmatched}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_survived(text in r"[\\\[\]{}^a-c0-2,:QExdö<&-]{0,12}") {
            let _ = Pattern::of(&json!({ "pattern": text }));
        }
    }
}
