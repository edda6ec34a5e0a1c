//! YAML bodies, parsed to and written from JSON.
//!
//! The values are counted while they are made ([`crate::decoded`]): aliases make small documents large.

mod counted;

use bytes::Bytes;
use serde_json::Value;

use crate::decoded::TooManyValues;
use counted::Counter;
use yurt_apimachinery::json_text;
use yurt_apimachinery::status::Status;
use yurt_apimachinery::text::go_quote;

/// Most bytes of text in one document, including the text that its aliases repeat.
const SCALAR_BYTES_MAX: usize = 8 << 20;
/// Most aliases of one document. A manifest repeats a few values; each alias is expanded at each use.
const ALIASES_MAX: usize = 100;

/// A document that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum YamlError {
    /// Not YAML, or more aliases and nesting than the parser's bounds allow.
    #[error("yaml: {0}")]
    Yaml(String),
    /// A key occurs twice; the first such key is named.
    #[error("yaml: unmarshal errors:\n  {0}")]
    Repeated(String),
    /// The result would take too much memory.
    #[error(transparent)]
    TooLarge(#[from] TooManyValues),
}

/// Reads the first document as a value. Further ones are not looked at, as by kube-apiserver. Numbers with a leading
/// zero are octal, as in YAML 1.1: modes of files are written so. Numbers without a fraction are integers.
///
/// # Errors
///
/// When it cannot be parsed, or its expansion exceeds the limits.
pub fn parse(body: &[u8]) -> Result<Value, YamlError> {
    read(
        body,
        serde_saphyr::options! { legacy_octal_numbers: true, budget: budget() },
    )
}

/// Reads the first document, in which keys may occur twice: the last one counts.
///
/// # Errors
///
/// As [`parse`], but for such keys.
pub fn parse_repeating(body: &[u8]) -> Result<Value, YamlError> {
    let options = serde_saphyr::options! {
        legacy_octal_numbers: true,
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins,
        budget: budget(),
    };
    read(body, options)
}

fn read(body: &[u8], options: serde_saphyr::Options) -> Result<Value, YamlError> {
    let body = first_document(body);
    let counter = Counter::of(body.len());
    let read =
        serde_saphyr::with_deserializer_from_slice_with_options(body, options, |document| counter.read(document));
    if let Some(refused) = counter.refusal() {
        return Err(refused.into());
    }
    read.map_err(|error| match error.without_snippet() {
        serde_saphyr::Error::DuplicateMappingKey { key, location } => {
            let key = go_quote(key.as_deref().unwrap_or_default());
            YamlError::Repeated(format!("line {}: key {key} already set in map", location.line()))
        }
        _ => YamlError::Yaml(first_line(&error.to_string())),
    })
}

/// The text up to the marker that ends the first document.
fn first_document(text: &[u8]) -> &[u8] {
    let mut has_begun = false;
    let mut end = 0;
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        let is_marker = |marker: &[u8]| {
            let rest = line.strip_prefix(marker);
            rest.is_some_and(|rest| rest.first().is_none_or(u8::is_ascii_whitespace))
        };
        let is_start = is_marker(b"---");
        if has_begun && (is_start || is_marker(b"...")) {
            return &text[..end];
        }
        let is_blank = matches!(line.trim_ascii_start().first(), None | Some(b'#' | b'%'));
        has_begun |= is_start || !is_blank;
        end += line.len();
    }
    text
}

fn budget() -> Option<serde_saphyr::Budget> {
    serde_saphyr::budget! {
        max_total_scalar_bytes: SCALAR_BYTES_MAX,
        max_recorded_anchor_bytes: SCALAR_BYTES_MAX,
        max_aliases: ALIASES_MAX,
    }
}

/// Reads the first document as JSON text.
///
/// # Errors
///
/// As [`parse`].
pub fn to_json(body: &[u8]) -> Result<Bytes, YamlError> {
    Ok(parse(body)?.to_string().into())
}

/// Writes JSON text as YAML; text that is no JSON stays as it is.
pub fn from_json(json: &[u8]) -> Bytes {
    let text = json_text::parse(json)
        .ok()
        .and_then(|value| serde_saphyr::to_string(&value).ok());
    text.map_or_else(|| Bytes::copy_from_slice(json), Bytes::from)
}

/// First line of the parser's message; the parser draws the place below it.
fn first_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().to_owned()
}

// === impl YamlError ===

impl YamlError {
    /// The text of a warning: one line.
    pub fn warning(&self) -> String {
        match self {
            Self::Repeated(why) => why.clone(),
            _ => self.to_string(),
        }
    }

    /// 400 with `context` before the reason; 413 for a document that takes too much memory.
    pub fn into_status(self, context: &str) -> Status {
        match self {
            Self::Yaml(_) | Self::Repeated(_) => Status::bad_request(format!("{context}{self}")),
            Self::TooLarge(refused) => refused.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_manifest_is_read() {
        let text = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n  labels: {x: 'true', y: \"1\"}\ndata:\n  k: |\n    one\n    two\nimmutable: true\n";
        let want = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "labels": {"x": "true", "y": "1"}},
            "data": {"k": "one\ntwo\n"}, "immutable": true,
        });
        assert_eq!(parse(text.as_bytes()).unwrap(), want);
        assert_eq!(
            parse(br#"{"a":[1,null,"x"]}"#).unwrap(),
            json!({"a": [1, null, "x"]}),
            "JSON is YAML"
        );
        let mode = json!({"mode": 420, "text": "0644", "zero": 0, "ten": 10});
        let text = b"{mode: 0644, text: \"0644\", zero: 0, ten: 10}";
        assert_eq!(
            (parse(text).unwrap(), parse_repeating(text).unwrap()),
            (mode.clone(), mode)
        );
        assert!(parse(b"a: [").is_err() && parse(b"\xff").is_err());
        let twice = b"a: 1\nb: {c: 1, c: 2}\na: 3\n";
        assert!(parse(twice).is_err());
        assert_eq!(parse_repeating(twice).unwrap(), json!({"a": 3, "b": {"c": 2}}));
    }

    #[test]
    fn first_document_is_read() {
        let one = || Some(json!({"a": "1 --- 2"}));
        for (text, first) in [
            ("---\na: 1 --- 2\n---\n", one()),
            ("# c\n%YAML 1.1\n--- # d\na: 1 --- 2\n...\nb: [\n", one()),
            ("a: 1\n  --- 2\n---\nb: 2\n", one()),
            ("\na: 1 --- 2\r\n---\r\nb: 2", one()),
            ("a: |-\n ---\n...", Some(json!({"a": "---"}))),
            ("---\n---\na: 1\n", Some(Value::Null)),
            ("a: [\n---\n]\n", None),
            ("---a: 1", Some(json!({"---a": 1}))),
        ] {
            assert_eq!(parse(text.as_bytes()).ok(), first, "{text}");
        }
    }

    #[test]
    fn written_text_holds_no_marker_of_a_document() {
        for text in ["a\n---\nb\n", "---", "...\n...", "--- a"] {
            for value in [json!(text), json!({text: text}), json!([[text]])] {
                let written = from_json(value.to_string().as_bytes());
                let shown = String::from_utf8_lossy(&written);
                assert_eq!(parse(&written).ok(), Some(value), "{shown}");
            }
        }
    }

    #[test]
    fn numbers_without_a_fraction_are_integers() {
        let text = b"[1.0, 1e3, -2., 08, 1.5, 1e300, -0.0, 18446744073709551615]";
        let want = json!([1, 1000, -2, 8, 1.5, 1e300, 0, 18_446_744_073_709_551_615_u64]);
        assert_eq!(parse(text).unwrap(), want);
    }

    #[test]
    fn key_that_occurs_twice_is_named_with_its_line() {
        let refused = parse(b"a: 1\nb:\n  c: 1\n  c: 2\n").unwrap_err();
        let want = "yaml: unmarshal errors:\n  line 4: key \"c\" already set in map";
        assert_eq!(refused.to_string(), want);
    }

    #[test]
    fn bombs_are_refused() {
        let mut laughs = String::from("a0: &a0 [lol,lol,lol,lol,lol,lol,lol,lol,lol]\n");
        for at in 1..10 {
            let list = vec![format!("*a{}", at - 1); 9].join(",");
            laughs.push_str(&format!("a{at}: &a{at} [{list}]\n"));
        }
        assert!(to_json(laughs.as_bytes()).is_err());
        let long = format!("a: &a {}\nb: [{}]\n", "x".repeat(1 << 20), vec!["*a"; 60].join(","));
        assert!(to_json(long.as_bytes()).is_err());
        let many = |aliases: usize| format!("a: &a [1]\nb: [{}]\n", vec!["*a"; aliases].join(","));
        assert!(parse(many(90).as_bytes()).is_ok());
        let refused = parse(many(ALIASES_MAX + 1).as_bytes()).unwrap_err().to_string();
        assert!(refused.contains("alias"), "{refused}");
        let text = "x".repeat(SCALAR_BYTES_MAX / 64);
        let repeated = format!("a: &a {text}\nb: [{}]\n", vec!["*a"; 64].join(","));
        assert!(parse(repeated.as_bytes()).is_err());
        assert!(to_json("[".repeat(100_000).as_bytes()).is_err());
        assert!(to_json("- ".repeat(100_000).as_bytes()).is_err());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(texts in proptest::collection::vec("\\PC{0,8}|[a \\t\\r\\n]{0,8}|true|null|1e3|~|- |a: b|#", 1..4), number: i64, fraction in proptest::num::f64::NORMAL) {
            let fraction = if fraction.fract() == 0.0 { 0.5 } else { fraction };
            let value = json!({"list": texts, "map": {texts[0].clone(): number, "f": fraction, "n": null, "e": {}, "l": []}});
            let yaml = from_json(value.to_string().as_bytes());
            prop_assert_eq!(parse(&yaml).unwrap(), value);
        }

        #[test]
        fn any_text_is_survived(text in "[-&*a: \\[\\]{}|>!\n\"']{0,40}") {
            let _ = to_json(text.as_bytes());
            let _ = from_json(text.as_bytes());
        }
    }
}
