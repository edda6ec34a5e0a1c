//! JSON objects only: serde's derived structs would take arrays too, field by field.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

/// A struct that is read from a JSON object and from nothing else.
#[derive(Debug, Default)]
pub(crate) struct Mapping<T>(pub(crate) T);

struct MappingVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Mapping<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MappingVisitor(PhantomData))
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for MappingVisitor<T> {
    type Value = Mapping<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(members)).map(Mapping)
    }
}

/// Reads a struct from the bytes of a JSON object.
pub(crate) fn from_slice<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Result<T, serde_json::Error> {
    serde_json::from_slice::<Mapping<T>>(bytes).map(|mapping| mapping.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize, Debug, PartialEq)]
    struct Pair {
        a: u8,
    }

    #[test]
    fn arrays_are_refused() {
        assert_eq!(from_slice::<Pair>(br#"{"a":1,"b":2}"#).unwrap(), Pair { a: 1 });
        assert!(from_slice::<Pair>(b"[1]").is_err());
        assert!(
            serde_json::from_slice::<Pair>(b"[1]").is_ok(),
            "else this module is not needed"
        );
    }
}
