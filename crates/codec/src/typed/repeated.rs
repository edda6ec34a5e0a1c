//! Fields that occur twice in JSON text without a type: in patches, and in custom resources.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{Reader, Step};

/// Members of an operation of a JSON patch.
const OPERATION: &[&str] = &["op", "path", "from", "value"];

/// Faults of JSON text whose fields have no types: `duplicate field "…"`. Text that is no JSON has none.
#[must_use]
pub fn repeated_fields(text: &[u8]) -> Vec<String> {
    faults(text, None)
}

/// Faults of a JSON patch: `duplicate field "…"`, and `unknown field "…"` for members that no operation has.
#[must_use]
pub fn operation_faults(patch: &[u8]) -> Vec<String> {
    faults(patch, Some(OPERATION))
}

fn faults(text: &[u8], known: Option<&[&str]>) -> Vec<String> {
    let mut reader = Reader::default();
    let place = Place {
        reader: &mut reader,
        known,
    };
    match place.deserialize(&mut serde_json::Deserializer::from_slice(text)) {
        Ok(()) => reader.faults,
        Err(_) => Vec::new(),
    }
}

/// Name of a member, borrowed from the text unless it has escapes: an object may have many members.
#[derive(Deserialize, PartialEq, Eq, Hash)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

/// One place of the text.
struct Place<'a> {
    reader: &'a mut Reader,
    /// Members that the object here, or each object of the list here, may have.
    known: Option<&'a [&'a str]>,
}

impl<'de> DeserializeSeed<'de> for Place<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Place<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let Self { reader, known } = self;
        let mut index = 0;
        while let Some(()) = reader.at(Step::Index(index), |reader| {
            items.next_element_seed(Place { reader, known })
        })? {
            index += 1;
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let Self { reader, known } = self;
        let mut seen = HashSet::new();
        while let Some(name) = members.next_key::<Name<'de>>()? {
            if known.is_some_and(|known| !known.contains(&&*name.0)) {
                reader.fault("unknown", &name.0);
                members.next_value::<IgnoredAny>()?;
                continue;
            }
            if seen.contains(&name) {
                reader.fault("duplicate", &name.0);
            }
            reader.at(Step::Key(&name.0), |reader| {
                members.next_value_seed(Place { reader, known: None })
            })?;
            seen.insert(name);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_occur_twice_are_named_by_their_paths() {
        let text = br#"{"a": {"b": 1, "\u0062": 2}, "c": [{"d": 1}, {"d": 1, "d": {"e": 1, "e": 1}}], "a": null}"#;
        let want = [
            r#"duplicate field "a.b""#,
            r#"duplicate field "c[1].d""#,
            r#"duplicate field "c[1].d.e""#,
            r#"duplicate field "a""#,
        ];
        assert_eq!(repeated_fields(text), want);
        assert!(repeated_fields(br#"{"a": 1, "b": {"a": 1}}"#).is_empty());
        assert!(repeated_fields(b"{").is_empty() && repeated_fields(b"a: 1\na: 1\n").is_empty());
    }

    #[test]
    fn names_and_paths_of_faults_are_cut() {
        let long = "x".repeat(1 << 20);
        let fields: String = (0..200).map(|n| format!(r#""{n}":0,"{n}":0,"#)).collect();
        let below = format!(r#"{{"{long}": {{{fields} "a": 0, "a": 0}}}}"#);
        let name = format!(r#"{{"{long}": 0, "{long}": 0}}"#);
        for text in [below, name] {
            let faults = repeated_fields(text.as_bytes());
            let bytes: usize = faults.iter().map(String::len).sum();
            assert!(!faults.is_empty() && bytes < 256 << 10, "{bytes} bytes");
        }
        let faults = operation_faults(format!(r#"[{{"{long}": 0}}]"#).as_bytes());
        assert!(faults[0].starts_with(r#"unknown field "[0].xxx"#) && faults[0].len() < 2 << 10);
    }

    #[test]
    fn operations_have_four_members() {
        let patch = br#"[{"op": "add", "path": "/a", "value": {"x": 1, "x": 2}},
            {"op": "test", "op": "add", "path": "/b", "value": [{"y": 1}], "odd": {"z": 1, "z": 1}}]"#;
        let want = [
            r#"duplicate field "[0].value.x""#,
            r#"duplicate field "[1].op""#,
            r#"unknown field "[1].odd""#,
        ];
        assert_eq!(operation_faults(patch), want);
    }
}
