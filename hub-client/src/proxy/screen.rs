//! Rejects requests that another server could read differently than the hub, or that misuse the node's identity. Pure.

use http::header::{AUTHORIZATION, HeaderName};
use http::{HeaderMap, Uri};
use yurt_apimachinery::kind::find_kind;
use yurt_apimachinery::{RequestInfo, Status, Verb};

use super::caller::Credential;
use crate::upstream::hop_by_hop::named_by_connection;

/// Checks the path: no dot segments, and encoded slashes only in what a `proxy` subresource passes on.
///
/// # Errors
/// 400 with the path.
pub(super) fn check_path(info: &RequestInfo, uri: &Uri) -> Result<(), Status> {
    let path = uri.path();
    if info.path.split('/').any(|segment| matches!(segment, "." | "..")) {
        return Err(Status::bad_request(format!("path {path:?} has a dot segment")));
    }
    if !info.is_proxy() && path.to_ascii_lowercase().contains("%2f") {
        return Err(Status::bad_request(format!("path {path:?} has an encoded slash")));
    }
    Ok(())
}

/// Checks that an update or a patch of a built-in kind names an object: no kube-apiserver has a route for another one,
/// and the request may come while none answers.
///
/// # Errors
/// 405.
pub(super) fn check_method(info: &RequestInfo) -> Result<(), Status> {
    let is_of_all = matches!(info.verb, Verb::Update | Verb::Patch) && info.name.is_none();
    let kind = || find_kind(&info.group, &info.resource).filter(|kind| kind.version == info.version);
    if is_of_all && kind().is_some() {
        return Err(Status::method_not_allowed());
    }
    Ok(())
}

/// Checks the headers that select a user.
///
/// # Errors
/// 403 for impersonation with the node's identity. 400 for a Connection header that names a header which decides about
/// the user: without that one the request would have other rights.
pub(super) fn check_headers(info: &RequestInfo, headers: &HeaderMap, credential: &Credential) -> Result<(), Status> {
    if *credential == Credential::Node && is_impersonating(headers) {
        return Err(Status::forbidden_because(
            &info.group_resource(),
            info.name.as_deref().unwrap_or_default(),
            "the node's identity does not impersonate: use a credential of your own",
        ));
    }
    let selects = |name: &HeaderName| name == AUTHORIZATION || is_named(name, "impersonate-");
    match named_by_connection(headers).find(selects) {
        Some(name) => Err(Status::bad_request(format!(
            "the Connection header names {name}, which must reach the cloud"
        ))),
        None => Ok(()),
    }
}

/// True if a request impersonates a user.
pub(crate) fn is_impersonating(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| is_named(name, "impersonate-"))
}

/// True if the name of a header begins with `prefix`. Some servers treat underscores as hyphens.
pub(super) fn is_named(name: &HeaderName, prefix: &str) -> bool {
    let name = name.as_str().as_bytes().iter();
    let mut name = name.map(|byte| if *byte == b'_' { b'-' } else { *byte });
    prefix.bytes().all(|byte| name.next() == Some(byte))
}

#[cfg(test)]
mod tests {
    use http::header::CONNECTION;

    use super::*;

    fn path(text: &str) -> Result<(), u16> {
        let uri: Uri = text.parse().unwrap();
        let info = RequestInfo::parse("GET", uri.path(), uri.query()).map_err(|status| status.code())?;
        check_path(&info, &uri).map_err(|status| status.code())
    }

    #[test]
    fn dot_segments_and_hidden_slashes_are_rejected_wherever_they_are() {
        for text in [
            "/api/v1/namespaces/a%2f..%2fkube-system/secrets",
            "/api/v1/namespaces/a%2F%2e%2E%2Fkube-system/secrets/db",
            "/api/v1/namespaces/a/../kube-system/secrets",
            "/api/v1/../v1/secrets",
            "/api/./v1/pods",
            "/api/v1/namespaces/shop/pods/web/%2e%2e",
            "/%2e%2e/api/v1/pods",
            "/healthz/..",
            "/api%2fv1/pods",
            "/apis/apps%2fv1/deployments",
            "/api/v1/namespaces/shop/pods%2fweb",
            "/api/v1/namespaces/shop/services/web/proxy/../../db",
        ] {
            assert_eq!(path(text), Err(400), "{text}");
        }
        for text in [
            "/",
            "/api/v1/namespaces/shop/pods/web.1/log?path=../x%2fy",
            "/api/v1/namespaces/shop/services/https:web:443/proxy/a%2fb/...",
            "/apis/apps/v1/namespaces/..a/deployments",
        ] {
            assert_eq!(path(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn node_impersonates_in_no_spelling() {
        let info = RequestInfo::parse("GET", "/api/v1/pods", None).unwrap();
        for name in [
            "Impersonate-User",
            "IMPERSONATE_USER",
            "impersonate_extra-a",
            "Impersonate-Uid",
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(
                HeaderName::from_bytes(name.as_bytes()).unwrap(),
                "jane".parse().unwrap(),
            );
            let code = |credential| check_headers(&info, &headers, &credential).map_err(|status| status.code());
            assert_eq!(code(Credential::Node), Err(403), "{name}");
            assert_eq!(code(Credential::Token("t".to_owned())), Ok(()), "{name}");
        }
    }

    #[test]
    fn connection_takes_no_rights_away() {
        let info = RequestInfo::parse("GET", "/api/v1/pods", None).unwrap();
        for (value, expected) in [
            ("close, Impersonate-User", Err(400)),
            ("AUTHORIZATION", Err(400)),
            ("keep-alive, x-request-id", Ok(())),
        ] {
            let headers = HeaderMap::from_iter([(CONNECTION, value.parse().unwrap())]);
            for credential in [Credential::Node, Credential::Token("t".to_owned())] {
                let checked = check_headers(&info, &headers, &credential);
                assert_eq!(checked.map_err(|status| status.code()), expected, "{value}");
            }
        }
    }
}
