//! Impersonation: the `Impersonate-*` headers, and the rights they need.
//!
//! This file reads the headers; [`modes`] checks the rights.

use http::{HeaderMap, HeaderName};
use percent_encoding::percent_decode_str;
use tracing::debug;
use yurt_apimachinery::Status;

use super::audit::AuditContext;
use crate::app::App;
use crate::authn::User;
use crate::authz::Attributes;

mod modes;

use modes::{Permitted, permit};

const USER: HeaderName = HeaderName::from_static("impersonate-user");
const GROUP: HeaderName = HeaderName::from_static("impersonate-group");
const UID: HeaderName = HeaderName::from_static("impersonate-uid");
const EXTRA_PREFIX: &str = "impersonate-extra-";

/// Maximum number of values of these headers in one request.
const VALUES_MAX: usize = 256;

/// The user on whose behalf `requestor` asks. Removes the headers.
///
/// # Errors
/// 400 or 403 for a user it may not impersonate.
pub(super) fn impersonate(
    app: &App,
    headers: &mut HeaderMap,
    requestor: User,
    attributes: &Attributes<'_>,
    audit: &mut AuditContext<'_>,
) -> Result<User, Status> {
    let wanted = wanted(headers)?;
    strip(headers);
    let Some(wanted) = wanted else {
        return Ok(requestor);
    };
    let authorize = |attributes: &Attributes<'_>| app.authorize(&requestor, attributes);
    let Permitted { user, constraint } = permit(&requestor, &wanted, attributes, &authorize)?;
    debug!(requestor = requestor.name, user = user.name, "User impersonated");
    audit.impersonated(&user, constraint);
    Ok(user)
}

/// The user in the headers of a request; `None` without such headers.
///
/// # Errors
/// 400 for headers without a user, for values that are no text, and for too many values.
fn wanted(headers: &HeaderMap) -> Result<Option<User>, Status> {
    let unreadable = || Status::bad_request("impersonation headers must be text");
    let text = |name: &HeaderName| {
        let value = headers.get(name).map(|value| value.to_str().map_err(|_| unreadable()));
        value.transpose().map(Option::unwrap_or_default)
    };
    let mut user = User {
        name: text(&USER)?.to_owned(),
        uid: text(&UID)?.to_owned(),
        ..User::default()
    };
    let mut count = 0;
    for (name, value) in headers {
        let key = name.as_str().strip_prefix(EXTRA_PREFIX);
        if key.is_none() && *name != GROUP {
            continue;
        }
        count += 1;
        let value = value.to_str().map_err(|_| unreadable())?.to_owned();
        match key {
            None => user.groups.push(value),
            Some(key) => user.extra.entry(decoded(key)).or_default().push(value),
        }
    }
    if count > VALUES_MAX {
        return Err(Status::bad_request(format!(
            "more than {VALUES_MAX} impersonation headers"
        )));
    }
    if !user.name.is_empty() {
        return Ok(Some(user));
    }
    if count > 0 || !user.uid.is_empty() {
        return Err(Status::bad_request(format!(
            "requested {} without impersonating a user name",
            user.info()
        )));
    }
    Ok(None)
}

/// Decodes a percent-encoded key; an invalid one stays unchanged.
fn decoded(key: &str) -> String {
    if !yurt_apimachinery::query::escapes_are_valid(key) {
        return key.to_owned();
    }
    percent_decode_str(key)
        .decode_utf8()
        .map_or_else(|_| key.to_owned(), std::borrow::Cow::into_owned)
}

/// Removes the headers from a request, so that later code can neither read nor forward them.
fn strip(headers: &mut HeaderMap) {
    let is_ours = |name: &HeaderName| [USER, GROUP, UID].contains(name) || name.as_str().starts_with(EXTRA_PREFIX);
    let names: Vec<HeaderName> = headers.keys().filter(|name| is_ours(name)).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    pub(super) fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            let name: HeaderName = name.parse().unwrap();
            headers.append(name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    /// Conformance: 6.10
    #[test]
    fn headers_without_a_user_are_refused_and_all_are_taken_out() {
        for alone in [
            ("impersonate-group", "a"),
            ("impersonate-uid", "a"),
            ("impersonate-extra-a", "b"),
        ] {
            assert_eq!(wanted(&headers(&[alone])).unwrap_err().code(), 400, "{alone:?}");
        }
        assert_eq!(wanted(&headers(&[("x-remote-user", "a")])).unwrap(), None);
        let many = vec![("impersonate-group", "a"); VALUES_MAX + 1];
        let user = [("impersonate-user", "a")];
        assert!(wanted(&headers(&[&many[1..], &user].concat())).is_ok());
        assert_eq!(wanted(&headers(&[&many[..], &user].concat())).unwrap_err().code(), 400);
        let mut all = headers(&[
            ("impersonate-user", "a"),
            ("impersonate-extra-X", "b"),
            ("impersonate-group", "c"),
            ("accept", "*"),
        ]);
        strip(&mut all);
        assert_eq!(all.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["accept"]);
    }
}
