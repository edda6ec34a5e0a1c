//! The operator's port: health, metrics and the state of the process, over plain HTTP.
//!
//! * `/healthz`, `/livez` and `/v1/healthz`: liveness of the process.
//! * `/readyz` and `/v1/readyz`: readiness for traffic (`?verbose` lists the conditions).
//!   The paths below `/v1` are those of OpenYurt's hub, and answer with its text `OK`.
//! * `/metrics`: metrics for Prometheus.
//! * `/debug/state.json`: state of the process, for people; the process may add pages below `/debug/`.

use std::sync::Arc;

use http::{HeaderValue, Method, Response, StatusCode};
use serde_json::Value;

use crate::http::server::{Handler, handler};
use crate::http::{self as our_http, Body};
use crate::metrics::Metrics;
use crate::readiness::Readiness;

/// Routes of the port. Cheap to clone; also usable from another server through [`AdminRoutes::answer`].
#[derive(Clone)]
pub struct AdminRoutes {
    live: Arc<dyn Fn() -> Result<(), String> + Send + Sync>,
    readiness: Readiness,
    metrics: Arc<dyn Fn() -> String + Send + Sync>,
    state: Page,
    pages: Vec<(&'static str, Page)>,
}

/// Source of a page.
type Page = Arc<dyn Fn() -> Value + Send + Sync>;

/// The content type that Prometheus expects of the text format.
const METRICS_TEXT: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

// === impl AdminRoutes ===

impl AdminRoutes {
    /// Routes that are always live, ready according to `readiness`, with the registry's metrics and an empty state.
    #[must_use]
    pub fn new(readiness: Readiness, metrics: Metrics) -> Self {
        AdminRoutes {
            live: Arc::new(|| Ok(())),
            readiness,
            metrics: Arc::new(move || metrics.render()),
            state: Arc::new(|| Value::Object(serde_json::Map::new())),
            pages: Vec::new(),
        }
    }

    /// Calls `live` on every health request; its error is the answer's text, with status 500.
    #[must_use]
    pub fn with_live(mut self, live: impl Fn() -> Result<(), String> + Send + Sync + 'static) -> Self {
        self.live = Arc::new(live);
        self
    }

    /// Renders the metrics with `metrics`, in Prometheus' text format.
    #[must_use]
    pub fn with_metrics(mut self, metrics: impl Fn() -> String + Send + Sync + 'static) -> Self {
        self.metrics = Arc::new(metrics);
        self
    }

    /// Calls `state` on every request of `/debug/state.json`. The state must contain no secrets.
    #[must_use]
    pub fn with_state(mut self, state: impl Fn() -> Value + Send + Sync + 'static) -> Self {
        self.state = Arc::new(state);
        self
    }

    /// Calls `page` on every request of `path`, which is below `/debug/`. The page must contain no secrets.
    #[must_use]
    pub fn with_page(mut self, path: &'static str, page: impl Fn() -> Value + Send + Sync + 'static) -> Self {
        self.pages.push((path, Arc::new(page)));
        self
    }

    /// The answer to a path of this port; `None` for any other path.
    #[must_use]
    pub fn answer(&self, method: &Method, path: &str, query: Option<&str>) -> Option<Response<Body>> {
        let page = self.pages.iter().find(|(own, _)| *own == path).map(|(_, page)| page);
        let is_builtin = matches!(
            path,
            "/healthz" | "/livez" | "/v1/healthz" | "/readyz" | "/v1/readyz" | "/metrics" | "/debug/state.json"
        );
        if !is_builtin && page.is_none() {
            return None;
        }
        if method != Method::GET && method != Method::HEAD {
            return Some(our_http::text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n"));
        }
        if let Some(page) = page {
            return Some(our_http::json(StatusCode::OK, format!("{:#}\n", page())));
        }
        let good = if path.starts_with("/v1/") { "OK" } else { "ok" };
        Some(match path {
            "/readyz" | "/v1/readyz" => self.ready(good, query),
            "/metrics" => our_http::respond(StatusCode::OK, METRICS_TEXT, our_http::full((self.metrics)())),
            "/debug/state.json" => our_http::json(StatusCode::OK, format!("{:#}\n", (self.state)())),
            _ => match (self.live)() {
                Ok(()) => our_http::text(StatusCode::OK, good),
                Err(why) => our_http::text(StatusCode::INTERNAL_SERVER_ERROR, why + "\n"),
            },
        })
    }

    /// A handler for a dedicated server: 404 for every other path.
    #[must_use]
    pub fn handler(&self) -> Handler {
        let this = self.clone();
        handler(move |request, _peer| {
            let (method, uri) = (request.method(), request.uri());
            let answer = this.answer(method, uri.path(), uri.query());
            std::future::ready(answer.unwrap_or_else(|| our_http::text(StatusCode::NOT_FOUND, "404 page not found\n")))
        })
    }

    fn ready(&self, good: &'static str, query: Option<&str>) -> Response<Body> {
        let is_ready = self.readiness.is_ready();
        let status = if is_ready {
            StatusCode::OK
        } else {
            StatusCode::INTERNAL_SERVER_ERROR
        };
        let wants_list = query.is_some_and(|query| {
            query
                .split('&')
                .any(|pair| pair == "verbose" || pair.starts_with("verbose="))
        });
        // As in kube-apiserver, a failure always lists its conditions.
        if is_ready && !wants_list {
            return our_http::text(status, good);
        }
        our_http::text(status, self.readiness.verbose())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_is_explained_when_it_fails_or_on_request() {
        let readiness = Readiness::new();
        let feed = readiness.check("feed");
        let routes = AdminRoutes::new(readiness, Metrics::new());
        let status = |path, query| routes.answer(&Method::GET, path, query).unwrap().status().as_u16();
        assert_eq!((status("/readyz", None), status("/livez", None)), (500, 200));
        assert_eq!(status("/v1/readyz", None), 500);
        feed.set(true);
        assert_eq!(
            (status("/readyz", Some("verbose")), status("/v1/healthz", None)),
            (200, 200)
        );
    }

    #[test]
    fn other_paths_and_methods_are_refused() {
        let routes = AdminRoutes::new(Readiness::new(), Metrics::new())
            .with_live(|| Err("stuck".to_owned()))
            .with_page("/debug/more", || Value::Null);
        let status = |method, path| Some(routes.answer(&method, path, None)?.status().as_u16());
        assert_eq!(status(Method::GET, "/debug/more"), Some(200));
        assert_eq!(status(Method::POST, "/debug/more"), Some(405));
        assert_eq!(status(Method::GET, "/debug/mor"), None);
        assert!(routes.answer(&Method::GET, "/api", None).is_none());
        assert_eq!(routes.answer(&Method::POST, "/healthz", None).unwrap().status(), 405);
        assert_eq!(routes.answer(&Method::GET, "/healthz", None).unwrap().status(), 500);
    }
}
