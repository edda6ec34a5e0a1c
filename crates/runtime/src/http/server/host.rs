//! Rejects requests whose Host header names no host, or not one (RFC 9112, 3.2), with the texts of Go's server. Pure.

use http::header::HOST;
use http::{Method, Request, Response, StatusCode, Version};

use crate::http::{Body, text};

/// Returns the 400 for a request without a usable Host header; `None` if it has one, or needs none.
pub(super) fn refusal<B>(request: &Request<B>) -> Option<Response<Body>> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let why = match (hosts.next(), hosts.next()) {
        (_, Some(_)) => "too many Host headers",
        (Some(host), None) if !host.as_bytes().iter().all(is_of_host) => "malformed Host header",
        (None, None) if request.version() == Version::HTTP_11 && request.method() != Method::CONNECT => {
            "missing required Host header"
        }
        _ => return None,
    };
    Some(text(StatusCode::BAD_REQUEST, format!("400 Bad Request: {why}")))
}

/// True for the characters of `host[:port]` in RFC 3986.
fn is_of_host(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!$%&'()*+,-.:;=@[]_~".contains(byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_refused(version: Version, method: Method, hosts: &[&str]) -> bool {
        let request = Request::builder().version(version).method(method).uri("/");
        let request = hosts.iter().fold(request, |request, host| request.header(HOST, *host));
        refusal(&request.body(()).unwrap()).is_some_and(|response| response.status() == 400)
    }

    #[test]
    fn request_names_one_host() {
        for (version, hosts, expected) in [
            (Version::HTTP_11, &[][..], true),
            (Version::HTTP_11, &["a", "a"], true),
            (Version::HTTP_10, &["a", "b"], true),
            (Version::HTTP_2, &["a", "b"], true),
            (Version::HTTP_11, &["a b"], true),
            (Version::HTTP_11, &["a/b"], true),
            (Version::HTTP_11, &["a"], false),
            (Version::HTTP_11, &[""], false),
            (Version::HTTP_11, &["[fd00::2:1]:10261"], false),
            (Version::HTTP_11, &["under_score.example:443"], false),
            (Version::HTTP_10, &[], false),
            (Version::HTTP_2, &[], false),
        ] {
            assert_eq!(
                is_refused(version, Method::GET, hosts),
                expected,
                "{version:?} {hosts:?}"
            );
        }
        assert!(
            !is_refused(Version::HTTP_11, Method::CONNECT, &[]),
            "its target is the host"
        );
    }
}
