//! `/healthz`, `/livez` and `/readyz` as kube-apiserver answers them, with `?verbose`, `?exclude` and single checks.

use std::sync::atomic::{AtomicBool, Ordering};

use http::header::X_CONTENT_TYPE_OPTIONS;
use http::{Response, StatusCode};
use yurt_apimachinery::query::Query;
use yurt_runtime::http::{self as web, Body};

/// The checks of this process. `livez` leaves out those that only mean "no traffic please".
#[derive(Default)]
pub(crate) struct Health {
    storage: AtomicBool,
    unwritable: AtomicBool,
    memberless: AtomicBool,
    serving: AtomicBool,
}

/// Scope of a health path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HealthScope {
    /// All checks.
    All,
    /// A single check, which needs authorization.
    One,
}

/// A check with its present result.
type CheckResult<'a> = (&'a str, bool);

const STORAGE: &str = "storage";
const SHUTDOWN: &str = "shutdown";
/// Listed only while it fails.
const MEMBERS: &str = "members";

// === impl Health ===

impl Health {
    /// Marks the store as loaded and all own objects as complete.
    pub(crate) fn storage_loaded(&self) {
        self.storage.store(true, Ordering::Release);
    }

    /// Sets whether writes succeed. Failing writes are a reason to send traffic elsewhere, not to restart a process
    /// that serves reads.
    pub(crate) fn set_writable(&self, writable: bool) {
        self.unwritable.store(!writable, Ordering::Release);
    }

    /// Sets whether any node can be admitted; false while the members are unknown.
    pub(crate) fn set_has_members(&self, has_members: bool) {
        self.memberless.store(!has_members, Ordering::Release);
    }

    /// Sets whether requests are welcome.
    pub(crate) fn set_serving(&self, serving: bool) {
        self.serving.store(serving, Ordering::Release);
    }

    /// The scope of a health path. Callers may ask for all checks together without authentication.
    pub(crate) fn scope_of(path: &str) -> Option<HealthScope> {
        let mut parts = path.strip_prefix('/')?.splitn(2, '/');
        matches!(parts.next()?, "healthz" | "livez" | "readyz").then(|| match parts.next() {
            None => HealthScope::All,
            Some(_) => HealthScope::One,
        })
    }

    /// Answers a health path; `None` for other paths.
    pub(crate) fn answer(&self, path: &str, query: Option<&str>) -> Option<Response<Body>> {
        let mut parts = path.strip_prefix('/')?.splitn(2, '/');
        let (what, single) = (parts.next()?, parts.next());
        if !matches!(what, "healthz" | "livez" | "readyz") {
            return None;
        }
        let checks = self.checks(what);
        Some(match single {
            Some(name) => answer_single(&checks, name),
            None => answer_all(what, &checks, &Query::parse(query)),
        })
    }

    fn checks(&self, what: &str) -> Vec<CheckResult<'static>> {
        let is_ready = what == "readyz";
        let is_loaded = self.storage.load(Ordering::Acquire);
        let storage = is_loaded && !(is_ready && self.unwritable.load(Ordering::Acquire));
        let mut checks = vec![("ping", true), ("log", true), (STORAGE, storage)];
        if is_ready {
            if self.memberless.load(Ordering::Acquire) {
                checks.push((MEMBERS, false));
            }
            checks.push((SHUTDOWN, self.serving.load(Ordering::Acquire)));
        }
        checks
    }
}

fn answer_single(checks: &[CheckResult<'_>], name: &str) -> Response<Body> {
    match checks.iter().find(|(known, _)| *known == name) {
        Some((_, true)) => web::text(StatusCode::OK, "ok"),
        Some((_, false)) => web::text(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("internal server error: {name} does not hold\n"),
        ),
        None => web::text(StatusCode::NOT_FOUND, "404 page not found\n"),
    }
}

fn answer_all(what: &str, checks: &[CheckResult<'_>], query: &Query) -> Response<Body> {
    let excluded: Vec<&str> = query.get_all("exclude").collect();
    let mut text = String::new();
    let mut failed = false;
    for (name, holds) in checks {
        let line = if excluded.contains(name) {
            format!("[+]{name} excluded: ok\n")
        } else if *holds {
            format!("[+]{name} ok\n")
        } else {
            failed = true;
            format!("[-]{name} failed: reason withheld\n")
        };
        text.push_str(&line);
    }
    let unknown: Vec<String> = excluded
        .iter()
        .filter(|name| checks.iter().all(|(known, _)| known != *name))
        .map(|name| format!("\"{name}\""))
        .collect();
    if !unknown.is_empty() {
        text.push_str(&format!(
            "warn: some health checks cannot be excluded: no matches for {}\n",
            unknown.join(", ")
        ));
    }
    if failed {
        return web::text(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("{text}{what} check failed\n"),
        );
    }
    let text = match query.get("verbose") {
        Some(_) => format!("{text}{what} check passed\n"),
        None => "ok".to_owned(),
    };
    let mut response = web::text(StatusCode::OK, text);
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, web::NOSNIFF);
    response
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    fn code(health: &Health, path: &str, query: Option<&str>) -> u16 {
        health.answer(path, query).expect("a health path").status().as_u16()
    }

    /// Conformance: 1.62
    #[tokio::test]
    async fn failing_check_is_named_whether_or_not_it_was_asked_for() {
        let health = Health::default();
        health.storage_loaded();
        let failing = health.answer("/readyz", None).expect("a health path");
        assert_eq!(failing.status(), 500);
        let text = failing.into_body().collect().await.expect("a body").to_bytes();
        let want = "[+]ping ok\n[+]log ok\n[+]storage ok\n[-]shutdown failed: reason withheld\nreadyz check failed\n";
        assert_eq!(text, want);
    }

    /// Conformance: 1.66
    #[test]
    fn ready_only_while_serving_and_alive_all_along() {
        let health = Health::default();
        assert_eq!(
            (code(&health, "/readyz", None), code(&health, "/livez", None)),
            (500, 500)
        );
        health.storage_loaded();
        assert_eq!(
            (code(&health, "/readyz", None), code(&health, "/livez", None)),
            (500, 200)
        );
        assert_eq!(code(&health, "/readyz", Some("exclude=shutdown")), 200);
        health.set_serving(true);
        assert_eq!(
            (code(&health, "/readyz", None), code(&health, "/readyz/storage", None)),
            (200, 200)
        );
        assert_eq!(code(&health, "/readyz/unknown", None), 404);
        health.set_writable(false);
        assert_eq!(
            (code(&health, "/readyz/storage", None), code(&health, "/livez", None)),
            (500, 200)
        );
        health.set_writable(true);
        health.set_serving(false);
        assert_eq!(
            (code(&health, "/readyz", None), code(&health, "/healthz", None)),
            (500, 200)
        );
        assert!(health.answer("/version", None).is_none());
    }
}
