//! The resource version: a decimal number, from one of two spaces that can never be confused.
//!
//! Pool data keeps the numbers of the cloud; the coordinator's own data has [`ResourceVersion::OWN_BIT`] set.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::text::parse_uint;

/// A resource version. Opaque to clients; ordered inside one [`Space`].
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceVersion(pub u64);

/// Issuer of a resource version.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// The cloud's kube-apiserver: replicated pool data.
    Cloud,
    /// The coordinator itself: leases, events and all other data that it is the authority of.
    Own,
}

/// The text is not a decimal number below 2^64.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("resourceVersion: Invalid value: {}: {detail}", crate::text::go_quote(value))]
pub struct InvalidResourceVersion {
    value: String,
    detail: String,
}

// === impl ResourceVersion ===

impl ResourceVersion {
    /// "Any version": the number of no object.
    pub const ZERO: Self = Self(0);
    /// Set in every number issued by the coordinator; the cloud's stay far below 2^62.
    pub const OWN_BIT: u64 = 1 << 62;

    /// Reads a decimal number; the empty string is zero, as in kube-apiserver.
    ///
    /// # Errors
    ///
    /// When the text is anything else, with the message kube-apiserver gives.
    pub fn parse(text: &str) -> Result<Self, InvalidResourceVersion> {
        if text.is_empty() {
            return Ok(Self::ZERO);
        }
        parse_uint(text).map(Self).map_err(|detail| InvalidResourceVersion {
            value: text.to_owned(),
            detail,
        })
    }

    /// True for a number issued by the coordinator.
    pub fn is_own(self) -> bool {
        self.0 & Self::OWN_BIT != 0
    }

    /// True for "any version".
    pub fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Issuer of this number. Zero belongs to the cloud.
    pub fn space(self) -> Space {
        if self.is_own() { Space::Own } else { Space::Cloud }
    }
}

impl fmt::Display for ResourceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// On the wire a resource version is a string of decimal digits, never a number.
impl Serialize for ResourceVersion {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ResourceVersion {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_decimal_only() {
        assert_eq!(ResourceVersion::parse("42"), Ok(ResourceVersion(42)));
        assert_eq!(ResourceVersion::parse(""), Ok(ResourceVersion::ZERO));
        for bad in ["-1", "+1", "1x", " 1", "18446744073709551616"] {
            assert!(ResourceVersion::parse(bad).is_err(), "{bad:?}");
        }
        assert_eq!(
            ResourceVersion::parse("abc").unwrap_err().to_string(),
            "resourceVersion: Invalid value: \"abc\": strconv.ParseUint: parsing \"abc\": invalid syntax"
        );
    }

    /// Conformance: 7.41
    #[test]
    fn own_numbers_are_recognised() {
        assert_eq!(ResourceVersion(ResourceVersion::OWN_BIT | 7).space(), Space::Own);
        assert_eq!(ResourceVersion(ResourceVersion::OWN_BIT - 1).space(), Space::Cloud);
    }

    #[test]
    fn wire_form_is_a_string() {
        assert_eq!(serde_json::to_string(&ResourceVersion(9)).unwrap(), "\"9\"");
        assert_eq!(
            serde_json::from_str::<ResourceVersion>("\"9\"").unwrap(),
            ResourceVersion(9)
        );
        assert!(serde_json::from_str::<ResourceVersion>("9").is_err());
    }
}
