//! Claims of a service account token: its end and its account. Nothing is verified here. Pure.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::client_name::is_account;

/// Returns the Unix second in claim `exp` of a JWT; `None` for any other token. The signature is not verified.
#[must_use]
pub fn ends_at(token: &str) -> Option<i64> {
    #[derive(Deserialize)]
    struct Claims {
        exp: f64,
    }
    let Claims { exp } = claims(token)?;
    Some(exp as i64)
}

/// Returns the user name in claim `sub` of a JWT, if it is a valid one of a service account.
#[must_use]
pub fn account_of(token: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Claims {
        sub: String,
    }
    let Claims { sub } = claims(token)?;
    is_account(&sub).then_some(sub)
}

fn claims<T: DeserializeOwned>(token: &str) -> Option<T> {
    let claims = token.split('.').nth(1)?;
    let claims = URL_SAFE_NO_PAD.decode(claims).ok()?;
    serde_json::from_slice(&claims).ok()
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
            assert_eq!(account_of(opaque), None, "{opaque}");
        }
    }

    #[test]
    fn only_service_accounts_are_named() {
        let account = "system:serviceaccount:shop:web";
        for (claims, expected) in [
            (format!(r#"{{"sub":"{account}","exp":1}}"#), Some(account)),
            (r#"{"sub":"jane"}"#.to_owned(), None),
            (r#"{"sub":"system:serviceaccount:shop"}"#.to_owned(), None),
            (r#"{"sub":"system:serviceaccount:shop:web <b>"}"#.to_owned(), None),
            (format!(r#"{{"sub":"{account}{}"}}"#, "b".repeat(300)), None),
            (r#"{"sub":7}"#.to_owned(), None),
            (r#"{"exp":1}"#.to_owned(), None),
        ] {
            let token = format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(&claims));
            assert_eq!(account_of(&token).as_deref(), expected, "{claims}");
        }
    }
}
