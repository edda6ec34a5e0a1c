//! Query parameters, decoded as Go does: first value wins, malformed pairs are dropped, `+` is a space.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

/// The decoded pairs of a query string, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    pairs: Vec<(String, String)>,
}

// === impl Query ===

impl Query {
    /// Decodes the part of a URL after `?`. Never fails: pairs that cannot be decoded are dropped, as in Go.
    pub fn parse(query: Option<&str>) -> Self {
        let pairs = query
            .unwrap_or_default()
            .split('&')
            .filter(|pair| !pair.is_empty() && !pair.contains(';'));
        Self {
            pairs: pairs.filter_map(decode_pair).collect(),
        }
    }

    /// First value of a key; the empty string for `?key`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.pairs
            .iter()
            .find(|(k, _)| k == key)
            .map(|(_, value)| value.as_str())
    }

    /// Every value of a key.
    pub fn get_all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.pairs
            .iter()
            .filter(move |(k, _)| k == key)
            .map(|(_, value)| value.as_str())
    }

    /// A boolean parameter; `None` if absent.
    pub fn get_bool(&self, key: &str) -> Option<bool> {
        self.get(key).map(go_bool)
    }
}

/// kube-apiserver's booleans: `0` and any-case `false` are false, everything else is true, the empty string too.
pub fn go_bool(value: &str) -> bool {
    value != "0" && !value.eq_ignore_ascii_case("false")
}

fn decode_pair(pair: &str) -> Option<(String, String)> {
    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
    Some((decode(key)?, decode(value)?))
}

fn decode(text: &str) -> Option<String> {
    if !escapes_are_valid(text) {
        return None;
    }
    let spaced: Cow<'_, str> = if text.contains('+') {
        text.replace('+', " ").into()
    } else {
        text.into()
    };
    Some(percent_decode_str(&spaced).decode_utf8_lossy().into_owned())
}

/// True if every `%` is followed by two hexadecimal digits.
pub fn escapes_are_valid(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_hex = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_hexdigit);
    bytes
        .iter()
        .enumerate()
        .all(|(at, byte)| *byte != b'%' || (is_hex(at + 1) && is_hex(at + 2)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Conformance: 2.13
    #[test]
    fn first_value_wins_and_unknown_keys_do_no_harm() {
        let query = Query::parse(Some("a=1&a=2&b&c=%2C+%2B&x"));
        assert_eq!(query.get("a"), Some("1"));
        assert_eq!(query.get_all("a").collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(query.get("b"), Some(""));
        assert_eq!(query.get("c"), Some(", +"));
        assert_eq!(query.get("d"), None);
    }

    #[test]
    fn malformed_pairs_are_dropped() {
        let query = Query::parse(Some("a=%zz&b=%1&c=1;d=2&e=%41"));
        assert_eq!(
            (query.get("a"), query.get("b"), query.get("c"), query.get("e")),
            (None, None, None, Some("A"))
        );
    }

    /// Conformance: 2.14
    #[test]
    fn booleans_follow_go() {
        let query = Query::parse(Some("a&b=0&c=FALSE&d=no&e="));
        let values: Vec<_> = ["a", "b", "c", "d", "e", "f"].map(|key| query.get_bool(key)).into();
        assert_eq!(
            values,
            [Some(true), Some(false), Some(false), Some(true), Some(true), None]
        );
    }

    proptest! {
        #[test]
        fn any_text_is_survived(text in ".{0,64}") {
            Query::parse(Some(&text));
        }

        #[test]
        fn encoded_values_come_back(value in ".{0,32}") {
            let encoded = percent_encoding::utf8_percent_encode(&value, percent_encoding::NON_ALPHANUMERIC).to_string();
            let query = format!("k={encoded}");
            let query = Query::parse(Some(&query));
            prop_assert_eq!(query.get("k"), Some(value.as_str()));
        }
    }
}
