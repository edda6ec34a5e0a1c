//! The token that continues a list given in pages: the state, and the position in it.
//!
//! The form is kube-apiserver's: unpadded URL-safe base64 of a small JSON object. A replica of a cluster can therefore
//! continue with the cluster's own tokens, and the cluster with a replica's.

use base64::Engine as _;
use base64::alphabet::URL_SAFE;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::{Deserialize, Serialize};

use crate::resource_version::ResourceVersion;
use crate::text::go_quote;

/// Position at which a list continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContinueToken {
    /// The state every page shows; `None` shows the latest, after a state that could not be kept.
    pub version: Option<ResourceVersion>,
    /// The least key of the next page, relative to the path's namespace: `<ns>/<name>\0` or `<name>\0`.
    pub start: String,
}

/// Longest token read. One of ours is below 1,000 bytes: a namespace and a name of 253 bytes each.
pub const TOKEN_BYTES_MAX: usize = 4096;

const VERSION: &str = "meta.k8s.io/v1";
const NOT_VALID: &str = "continue key is not valid";
/// As Go reads it: no padding, and bits after the last byte are ignored.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::RequireNone)
        .with_decode_allow_trailing_bits(true),
);

#[derive(Serialize, Deserialize)]
struct Wire {
    #[serde(default)]
    v: String,
    #[serde(default)]
    rv: i64,
    #[serde(default)]
    start: String,
}

// === impl ContinueToken ===

impl ContinueToken {
    /// A token that continues after `last`, a key relative to the path's namespace.
    pub fn after(version: Option<ResourceVersion>, last: &str) -> Self {
        Self {
            version,
            start: format!("{last}\0"),
        }
    }

    /// The text for `metadata.continue`.
    pub fn encode(&self) -> String {
        let wire = Wire {
            v: VERSION.to_owned(),
            rv: self
                .version
                .map_or(-1, |version| i64::try_from(version.0).unwrap_or(-1)),
            start: self.start.clone(),
        };
        BASE64.encode(serde_json::to_vec(&wire).expect("two strings and a number must serialize"))
    }

    /// Reads a client's token.
    ///
    /// # Errors
    /// The text of a 400, as in kube-apiserver.
    pub fn decode(text: &str) -> Result<Self, String> {
        Self::read(text).map_err(|why| format!("invalid continue token: {why}"))
    }

    fn read(text: &str) -> Result<Self, String> {
        if text.len() > TOKEN_BYTES_MAX {
            return Err(format!("{NOT_VALID}: longer than {TOKEN_BYTES_MAX} bytes"));
        }
        let json = BASE64
            .decode(text)
            .map_err(|error| format!("{NOT_VALID}: illegal base64 data at input byte {}", offset(&error)))?;
        let wire: Wire =
            serde_json::from_slice(&json).map_err(|error| format!("{NOT_VALID}: {}", json_error(&json, &error)))?;
        if wire.v != VERSION {
            let why = "server does not recognize this encoded version";
            return Err(format!("{NOT_VALID}: {why} {}", wire.v));
        }
        if wire.rv == 0 {
            return Err(format!(
                "{NOT_VALID}: incorrect encoded start resourceVersion (version {VERSION})"
            ));
        }
        if wire.start.is_empty() {
            return Err(format!("{NOT_VALID}: encoded start key empty (version {VERSION})"));
        }
        if !is_clean(wire.start.strip_prefix('/').unwrap_or(&wire.start)) {
            return Err(format!("{NOT_VALID}: {}", wire.start));
        }
        Ok(Self {
            version: u64::try_from(wire.rv).ok().map(ResourceVersion),
            start: wire.start.strip_prefix('/').unwrap_or(&wire.start).to_owned(),
        })
    }
}

/// True if Go's `path.Clean` would leave the path unchanged: it stays inside the collection.
fn is_clean(path: &str) -> bool {
    path.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

/// Offset at which Go would report that the text stops being base64.
fn offset(error: &base64::DecodeError) -> usize {
    match *error {
        base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _) => at,
        base64::DecodeError::InvalidLength(length) => length.saturating_sub(1),
        base64::DecodeError::InvalidPadding => 0,
    }
}

/// Go's text for its most common JSON errors.
fn json_error(json: &[u8], error: &serde_json::Error) -> String {
    if error.is_eof() {
        return "unexpected end of JSON input".to_owned();
    }
    match json.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(byte) if !matches!(byte, b'{' | b'[' | b'"' | b'-' | b'0'..=b'9' | b't' | b'f' | b'n') => {
            let quoted = go_quote(&char::from(*byte).to_string());
            let inner = quoted.trim_matches('"');
            format!("invalid character '{inner}' looking for beginning of value")
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(json: &str) -> String {
        BASE64.encode(json)
    }

    /// Conformance: 2.32, 3.E10
    #[test]
    fn token_is_kube_apiservers_and_url_safe() {
        let token = ContinueToken::after(Some(ResourceVersion(7)), "shop/web");
        let text = token.encode();
        assert_eq!(
            text,
            encoded(r#"{"v":"meta.k8s.io/v1","rv":7,"start":"shop/web\u0000"}"#)
        );
        assert!(
            text.bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        );
        assert_eq!(ContinueToken::decode(&text), Ok(token));
        let latest = ContinueToken::after(None, "web");
        assert_eq!(ContinueToken::decode(&latest.encode()), Ok(latest));
        let name = "n".repeat(253);
        let longest = ContinueToken::after(Some(ResourceVersion(u64::MAX >> 1)), &format!("{name}/{name}"));
        assert!(longest.encode().len() < 1000);
    }

    /// The texts are those of kube-apiserver 1.36.3.
    ///
    /// Conformance: 2.26
    #[test]
    fn malformed_tokens_are_refused_in_kube_apiservers_words() {
        let v1 = r#""v":"meta.k8s.io/v1""#;
        let cases = [
            ("x".to_owned(), ": illegal base64 data at input byte 0".to_owned()),
            ("ab$d".to_owned(), ": illegal base64 data at input byte 2".into()),
            (
                encoded("hello"),
                ": invalid character 'h' looking for beginning of value".into(),
            ),
            (encoded("{"), ": unexpected end of JSON input".into()),
            (
                encoded("{}"),
                ": server does not recognize this encoded version ".into(),
            ),
            (
                encoded(&format!("{{{v1}}}")),
                ": incorrect encoded start resourceVersion (version meta.k8s.io/v1)".into(),
            ),
            (
                encoded(&format!("{{{v1},\"rv\":1}}")),
                ": encoded start key empty (version meta.k8s.io/v1)".into(),
            ),
            (
                encoded(&format!("{{{v1},\"rv\":1,\"start\":\"a/../../b\"}}")),
                ": a/../../b".into(),
            ),
        ];
        for (token, why) in cases {
            assert_eq!(
                ContinueToken::decode(&token).unwrap_err(),
                format!("invalid continue token: continue key is not valid{why}")
            );
        }
        assert!(ContinueToken::decode(&"A".repeat(TOKEN_BYTES_MAX + 1)).is_err());
    }

    proptest! {
        #[test]
        fn any_token_is_survived(text in "\\PC{0,64}", json in "\\PC{0,64}") {
            let _ = ContinueToken::decode(&text);
            let _ = ContinueToken::decode(&encoded(&json));
        }

        #[test]
        fn what_was_encoded_is_decoded(rv in 1_u64..=u64::MAX >> 1, name in "[a-z0-9.-]{1,20}x") {
            let token = ContinueToken::after(Some(ResourceVersion(rv)), &name);
            prop_assert_eq!(ContinueToken::decode(&token.encode()), Ok(token));
        }
    }
}
