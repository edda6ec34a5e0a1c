//! End of a service account token by its own claim. Pure.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

/// Returns the Unix second in claim `exp` of a JWT; `None` for any other token. The signature is not verified.
#[must_use]
pub fn ends_at(token: &str) -> Option<i64> {
    #[derive(Deserialize)]
    struct Claims {
        exp: f64,
    }
    let claims = token.split('.').nth(1)?;
    let claims = URL_SAFE_NO_PAD.decode(claims).ok()?;
    let Claims { exp } = serde_json::from_slice(&claims).ok()?;
    Some(exp as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_ends_when_it_says_so() {
        for (claims, expected) in [
            (r#"{"sub":"a","exp":1700000000}"#, Some(1_700_000_000)),
            (r#"{"exp":1700000000.9}"#, Some(1_700_000_000)),
            (r#"{"exp":1e300}"#, Some(i64::MAX)),
            (r#"{"exp":"soon"}"#, None),
            (r#"{"sub":"a"}"#, None),
            ("[]", None),
        ] {
            let token = format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims));
            assert_eq!(ends_at(&token), expected, "{claims}");
        }
        for opaque in ["", "abc", "a.b", "a.!.c", "..."] {
            assert_eq!(ends_at(opaque), None, "{opaque}");
        }
    }
}
