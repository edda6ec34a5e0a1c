//! Requests and watches, under kube-apiserver's names, with its labels and buckets, so that its dashboards work here.
//!
//! Source of names and labels: `k8s.io/apiserver/pkg/endpoints/metrics` of 1.36.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, Response, StatusCode};
use hyper::body::Body as _;
use parking_lot::RwLock;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};
use yurt_apimachinery::kind::find_kind;
use yurt_apimachinery::time::BootTime;
use yurt_apimachinery::{RequestInfo, ResourceKind, Verb};
use yurt_runtime::Clock;
use yurt_runtime::http::Body;

use super::counters;
use super::watch_events::{WatchEventCounter, WatchEvents};

/// Buckets in seconds.
const DURATIONS: &[f64] = &[
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
];
/// Buckets of the time until all initial events of a watch were sent, in seconds.
const FIRST_STATES: &[f64] = &[
    0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0,
];
/// Buckets of the bytes of an answer.
const ANSWER_SIZES: &[f64] = &[1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];
/// Labels of requests. Durations have all but the last, sizes all but the last two.
const LABELS: [&str; 9] = [
    "verb",
    "group",
    "version",
    "resource",
    "subresource",
    "scope",
    "component",
    "dry_run",
    "code",
];
const DURATION: usize = 8;
const SIZE: usize = 7;
const FIRST_STATE: [&str; 4] = ["group", "version", "resource", "scope"];
/// Known subresources; clients can invent any other.
const SUBRESOURCES: [&str; 14] = [
    "status",
    "scale",
    "finalize",
    "token",
    "binding",
    "eviction",
    "ephemeralcontainers",
    "resize",
    "approval",
    "log",
    "exec",
    "attach",
    "portforward",
    "proxy",
];
/// Subresources that connect to a node.
const CONNECTING: &[&str] = SUBRESOURCES.split_at(9).1;
const APPLY: &str = "application/apply-patch+yaml";
/// Maximum number of kept label combinations; requests beyond it are counted without their labels. A hostile client
/// could create some thousands, at 3 KB each.
const KEPT_MAX: usize = 1000;

/// Counters of requests and watches.
pub(super) struct Requests {
    total: IntCounterVec,
    durations: HistogramVec,
    sizes: HistogramVec,
    running: IntGaugeVec,
    /// Open watches of each resource, for any labels; not exported.
    open: IntGaugeVec,
    events: WatchEvents,
    first_states: HistogramVec,
    /// Cache of counters by labels; the lock guards nothing else.
    kept: RwLock<HashMap<(RequestLabels, StatusCode), RequestCounters>>,
}

#[derive(Clone)]
struct RequestCounters {
    total: IntCounter,
    duration: Histogram,
    size: Histogram,
}

/// Labels of a request. Unknown names are replaced: strangers could otherwise create labels without limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RequestLabels {
    verb: &'static str,
    dry_run: &'static str,
    group: &'static str,
    version: &'static str,
    resource: &'static str,
    subresource: &'static str,
    scope: &'static str,
}

/// Counts one watch until it is dropped.
pub(crate) struct WatchCount {
    running: IntGauge,
    open: IntGauge,
    duration: Histogram,
    watch_events: Arc<WatchEventCounter>,
    first_state: Histogram,
    clock: Clock,
    began: BootTime,
    /// If false, the duration is that of a refused request.
    is_open: bool,
}

// === impl Requests ===

impl Requests {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let histogram = |name: &str, help: &str, labels: &[&str], buckets: &[f64]| {
            let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
            let histogram = HistogramVec::new(options, labels)?;
            registry.register(Box::new(histogram.clone()))?;
            Ok::<_, prometheus::Error>(histogram)
        };
        let running = IntGaugeVec::new(
            Opts::new("apiserver_longrunning_requests", "Watches being served."),
            &LABELS[..SIZE],
        )?;
        registry.register(Box::new(running.clone()))?;
        let events = WatchEvents::new()?;
        registry.register(Box::new(events.clone()))?;
        Ok(Self {
            total: counters(
                registry,
                "apiserver_request_total",
                "Requests by verb, dry run, group, version, resource, subresource, scope and answer.",
                &LABELS,
            )?,
            durations: histogram(
                "apiserver_request_duration_seconds",
                "Time from a request's head to its answer's; of a watch, to its end.",
                &LABELS[..DURATION],
                DURATIONS,
            )?,
            sizes: histogram(
                "apiserver_response_sizes",
                "Bytes of answers to GET and LIST, if known before they are sent.",
                &LABELS[..SIZE],
                ANSWER_SIZES,
            )?,
            running,
            open: IntGaugeVec::new(Opts::new("open", "Not shown."), &["resource"])?,
            events,
            first_states: histogram(
                "apiserver_watch_list_duration_seconds",
                "Time until a watch that requests the initial events has received all of them.",
                &FIRST_STATE,
                FIRST_STATES,
            )?,
            kept: RwLock::default(),
        })
    }

    /// Counts an answered request. The duration of a watch is counted at its end.
    pub(super) fn answered(&self, labels: RequestLabels, response: &Response<Body>, took: Duration) {
        let kept = self.kept(labels, response.status());
        kept.total.inc();
        if labels.verb != "WATCH" || !response.status().is_success() {
            kept.duration.observe(took.as_secs_f64());
        }
        if matches!(labels.verb, "GET" | "LIST")
            && let Some(bytes) = response.body().size_hint().exact()
        {
            kept.size.observe(bytes as f64);
        }
    }

    fn kept(&self, labels: RequestLabels, code: StatusCode) -> RequestCounters {
        if let Some(kept) = self.kept.read().get(&(labels, code)) {
            return kept.clone();
        }
        let mut all = self.kept.write();
        let labels = if all.len() < KEPT_MAX {
            labels
        } else {
            RequestLabels::default()
        };
        let values = labels.values(code.as_str());
        let kept = all.entry((labels, code)).or_insert_with(|| RequestCounters {
            total: self.total.with_label_values(&values),
            duration: self.durations.with_label_values(&values[..DURATION]),
            size: self.sizes.with_label_values(&values[..SIZE]),
        });
        kept.clone()
    }

    /// Counts a watch while the returned value lives.
    pub(super) fn watch(&self, labels: RequestLabels, name: &str, clock: &Clock) -> WatchCount {
        let [group, version, resource] = [labels.group, labels.version, labels.resource];
        let values = labels.values("");
        let count = WatchCount {
            running: self.running.with_label_values(&values[..SIZE]),
            open: self.open.with_label_values(&[name]),
            duration: self.durations.with_label_values(&values[..DURATION]),
            watch_events: self.events.of([group, resource, version]),
            first_state: self
                .first_states
                .with_label_values(&[group, version, resource, labels.scope]),
            clock: clock.clone(),
            began: clock.boot(),
            is_open: false,
        };
        count.running.inc();
        count.open.inc();
        count
    }
}

// === impl RequestLabels ===

impl RequestLabels {
    /// Labels of a request for a `served` kind, or for a built-in one that is not served here.
    pub(crate) fn of(
        info: Option<&RequestInfo>,
        query: Option<&str>,
        headers: &HeaderMap,
        served: Option<&'static ResourceKind>,
    ) -> Self {
        let Some(info) = info else { return Self::default() };
        let known = || find_kind(&info.group, &info.resource).filter(|_| info.is_resource);
        let kind = served.or_else(known);
        let [group, version, resource] = kind.map_or([""; 3], |kind| [&*kind.group, &*kind.version, &*kind.plural]);
        let subresource = info.subresource.as_deref().filter(|_| kind.is_some());
        let mut labels = Self {
            verb: "",
            dry_run: dry_run(query.unwrap_or_default()),
            group,
            version,
            resource,
            subresource: SUBRESOURCES
                .into_iter()
                .find(|known| subresource == Some(known))
                .unwrap_or_default(),
            scope: scope(info),
        };
        labels.verb = verb(info.verb, &labels, headers);
        labels
    }

    /// Values of [`LABELS`].
    fn values<'a>(&self, code: &'a str) -> [&'a str; 9] {
        // kube-apiserver sets no component for a path that is no resource.
        let component = if self.resource.is_empty() { "" } else { "apiserver" };
        [
            self.verb,
            self.group,
            self.version,
            self.resource,
            self.subresource,
            self.scope,
            component,
            self.dry_run,
            code,
        ]
    }
}

impl Default for RequestLabels {
    /// Labels of an unknown request.
    fn default() -> Self {
        Self {
            verb: "other",
            dry_run: "",
            group: "",
            version: "",
            resource: "",
            subresource: "",
            scope: "",
        }
    }
}

fn scope(info: &RequestInfo) -> &'static str {
    if info.name.is_some() || info.verb == Verb::Create {
        "resource"
    } else if info.namespace.is_some() {
        "namespace"
    } else if info.is_resource {
        "cluster"
    } else {
        ""
    }
}

fn dry_run(query: &str) -> &'static str {
    let mut values = query.split('&').filter_map(|pair| pair.strip_prefix("dryRun="));
    match values.next() {
        None => "",
        Some("All") if values.all(|value| value == "All") => "All",
        Some(_) => "invalid",
    }
}

fn verb(verb: Verb, labels: &RequestLabels, headers: &HeaderMap) -> &'static str {
    if CONNECTING.contains(&labels.subresource) {
        return "CONNECT";
    }
    let is_apply = || headers.get(CONTENT_TYPE).is_some_and(|value| value == APPLY);
    match verb {
        Verb::Head if matches!(labels.scope, "namespace" | "cluster") => "LIST",
        Verb::Get | Verb::Head => "GET",
        Verb::List => "LIST",
        Verb::Watch => "WATCH",
        Verb::Create | Verb::Post => "POST",
        Verb::Update | Verb::Put => "PUT",
        Verb::Patch if is_apply() => "APPLY",
        Verb::Patch => "PATCH",
        Verb::Delete | Verb::DeleteCollection => "DELETE",
        Verb::Proxy => "PROXY",
        Verb::Options | Verb::Other => "other",
    }
}

// === impl WatchCount ===

impl WatchCount {
    /// Number of open watches of its resource.
    pub(crate) fn open(&self) -> u32 {
        u32::try_from(self.open.get()).unwrap_or(0)
    }

    /// Marks the watch as accepted: its duration counts from its request until this value is dropped.
    pub(crate) fn opened(mut self) -> Self {
        self.is_open = true;
        self
    }

    /// Counts an event of so many bytes.
    pub(crate) fn sent(&self, bytes: usize) {
        self.watch_events.add(bytes);
    }

    /// Returns a callback for the moment at which all initial events have been sent.
    pub(crate) fn on_first_state(&self) -> impl FnOnce() + Send + use<> {
        let (histogram, clock, began) = (self.first_state.clone(), self.clock.clone(), self.began);
        move || histogram.observe(clock.boot().since(began).as_secs_f64())
    }
}

impl Drop for WatchCount {
    fn drop(&mut self) {
        self.running.dec();
        self.open.dec();
        if self.is_open {
            self.duration.observe(self.clock.boot().since(self.began).as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn labels(method: &str, path: &str, query: Option<&str>) -> RequestLabels {
        let info = RequestInfo::parse(method, path, query).unwrap();
        RequestLabels::of(Some(&info), query, &HeaderMap::new(), None)
    }

    #[test]
    fn requests_have_the_labels_that_kube_apiserver_gives_them() {
        let leases = "/apis/coordination.k8s.io/v1/namespaces/a/leases";
        let renewal = labels("PUT", &format!("{leases}/n1"), None);
        assert_eq!(
            renewal.values("200"),
            [
                "PUT",
                "coordination.k8s.io",
                "v1",
                "leases",
                "",
                "resource",
                "apiserver",
                "",
                "200"
            ]
        );
        let of = |method, path: &str, query| {
            let labels = labels(method, path, query);
            (labels.verb, labels.scope, labels.subresource, labels.dry_run)
        };
        assert_eq!(of("GET", leases, None), ("LIST", "namespace", "", ""));
        assert_eq!(of("HEAD", leases, None), ("LIST", "namespace", "", ""));
        assert_eq!(of("DELETE", leases, None), ("DELETE", "namespace", "", ""));
        assert_eq!(of("POST", leases, Some("dryRun=All")), ("POST", "resource", "", "All"));
        assert_eq!(
            of("POST", leases, Some("a=b&dryRun=x")),
            ("POST", "resource", "", "invalid")
        );
        assert_eq!(of("GET", "/api/v1/pods", Some("watch=1")), ("WATCH", "cluster", "", ""));
        let pod = "/api/v1/namespaces/a/pods/p";
        assert_eq!(
            of("PATCH", &format!("{pod}/status"), None),
            ("PATCH", "resource", "status", "")
        );
        assert_eq!(
            of("GET", &format!("{pod}/log"), None),
            ("CONNECT", "resource", "log", "")
        );
        assert_eq!(of("GET", "/version", None), ("GET", "", "", ""));

        let info = RequestInfo::parse("PATCH", pod, None).unwrap();
        let apply = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(APPLY))]);
        assert_eq!(RequestLabels::of(Some(&info), None, &apply, None).verb, "APPLY");
    }

    #[test]
    fn what_strangers_make_up_becomes_no_label() {
        let known = labels("GET", "/api/v77/namespaces/a/services/x/things", None);
        assert_eq!((known.verb, known.version, known.subresource), ("GET", "v1", ""));
        assert_eq!(labels("GET", "/apis/made.up/v1/things", None).resource, "");
        assert_eq!(labels("GET", "/made/up", None).resource, "");
        assert_eq!(labels("BREW", "/made/up", None).verb, "other");
    }

    #[test]
    fn labels_without_end_are_counted_without_labels() {
        let requests = Requests::new(&Registry::new()).unwrap();
        let answer = |code: u16| {
            let mut response = Response::new(yurt_runtime::http::empty());
            *response.status_mut() = StatusCode::from_u16(code).unwrap();
            response
        };
        let asked = labels("GET", "/api/v1/pods", None);
        let codes = 100..=999_u16;
        for code in codes.clone() {
            requests.answered(asked, &answer(code), Duration::ZERO);
        }
        let other = labels("GET", "/api/v1/nodes", None);
        for code in codes {
            requests.answered(other, &answer(code), Duration::ZERO);
        }
        assert!(
            requests.kept.read().len() <= KEPT_MAX + 900,
            "bounded by what is left without labels"
        );
        let total = requests
            .total
            .with_label_values(&RequestLabels::default().values("999"));
        assert_eq!(total.get(), 1);
    }
}
