//! Rules for the GETs whose answers are kept for the time without the cloud. Pure.
//!
//! Kept are the discovery documents, and objects that a cacheable component reads by name. The key consists of the
//! component (for objects), path, query and media type. So a client finds only answers in a form that it accepts.
//!
//! An answer to a request with unknown parameters is not kept: each value would be another record, and could change the
//! answer.

use http::header::ACCEPT;
use http::{HeaderMap, Method, Uri};
use serde_json::json;
use yurt_apimachinery::{RequestInfo, Verb};

/// Maximum length of a key's path and query, bytes.
const TARGET_MAX: usize = 1024;
/// Maximum number of media types of one request that are looked up.
const CLASSES_MAX: usize = 8;
/// Document that names the OpenAPI v3 documents. It is JSON. kube-apiserver calls it text, whatever a client accepts.
const INDEX: &str = "/openapi/v3";
const TEXT: &str = "text/plain";
/// Media type of answers to requests without one, and of wildcards.
const JSON: &str = "application/json";
/// Media type of Kubernetes' own clients.
pub const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// Query parameters that do not change the answer, except that an object must be as new as its RV.
const IGNORED_PARAMETERS: [&str; 2] = ["resourceVersion", "timeout"];
/// Query parameter that names a state of an OpenAPI v3 document. The cloud redirects requests for any other state.
const HASH: &str = "hash";
/// Parameters of a media type that do not change the document.
const IGNORED_MEDIA_PARAMETERS: [&str; 2] = ["charset", "q"];

/// Suffix of the component of a caller with a token of its own. No name of a component has a space.
const OF_TOKEN: &str = " with a token";

/// Callers that a kept answer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    /// A component that acts as the node.
    Node,
    /// A component with tokens of its own.
    Tokens,
    /// Every authenticated caller: a discovery document.
    All,
}

/// A GET whose answer is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptRead {
    /// Component whose answers are kept apart; empty for discovery documents.
    component: String,
    path: String,
    query: String,
    /// Media types that the client accepts, in its order.
    accepted: Vec<String>,
}

// === impl KeptRead ===

impl KeptRead {
    /// Returns the key of a GET; `None` if its answer is not kept.
    #[must_use]
    pub fn of(
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
        info: &RequestInfo,
        component: Option<&str>,
    ) -> Option<Self> {
        if *method != Method::GET || uri.path_and_query().map_or(0, |target| target.as_str().len()) > TARGET_MAX {
            return None;
        }
        let is_discovery = is_discovery(info);
        let is_object = info.is_resource && info.verb == Verb::Get && info.name.is_some() && info.subresource.is_none();
        // The cloud answers other spellings of the path of a document, too. Generated clients end it with a slash.
        let document = uri.path().strip_suffix('/').unwrap_or(uri.path());
        let is_plain = info.path == uri.path() && !document.ends_with('/');
        let component = match (is_discovery, is_object) {
            (true, _) if is_plain => "",
            (false, true) => component?,
            _ => return None,
        };
        let accept = headers.get(ACCEPT).map(|accept| accept.to_str().unwrap_or_default());
        Some(Self {
            component: component.to_owned(),
            path: if is_discovery { document } else { uri.path() }.to_owned(),
            query: query(uri, info)?,
            accepted: accepted(accept, is_discovery),
        })
    }

    /// Returns the key of the object at `path`, as `component` would read it in protobuf or JSON.
    #[must_use]
    pub fn of_object(component: &str, path: &str) -> Self {
        Self {
            component: component.to_owned(),
            path: path.to_owned(),
            query: String::new(),
            accepted: vec![PROTOBUF.to_owned(), JSON.to_owned()],
        }
    }

    /// The component of a caller with a token, for [`Self::of`]. A token claims its component: what the cloud refuses
    /// it must not delete what the node may read.
    #[must_use]
    pub fn component_of_token(component: &str) -> String {
        format!("{component}{OF_TOKEN}")
    }

    /// True if this is a discovery document, which every authenticated caller may read.
    #[must_use]
    pub fn is_discovery(&self) -> bool {
        self.component.is_empty()
    }

    /// Keys of the records that may answer, the preferred one first.
    pub fn keys(&self) -> impl Iterator<Item = String> {
        self.accepted.iter().map(|class| self.key(class))
    }

    /// Key of the record for an answer of this content type; `None` if the client did not ask for that type.
    #[must_use]
    pub fn key_of(&self, content_type: &str) -> Option<String> {
        let class = match class_of(content_type) {
            class if class == TEXT && self.path == INDEX => JSON.to_owned(),
            class => class,
        };
        self.accepted.contains(&class).then(|| self.key(&class))
    }

    fn key(&self, class: &str) -> String {
        json!([self.component, self.path, self.query, class]).to_string()
    }
}

/// Returns the callers that the answer with this key is for.
#[must_use]
pub fn readers_of(key: &str) -> Readers {
    let parts: Vec<String> = serde_json::from_str(key).unwrap_or_default();
    match parts.first().map(String::as_str) {
        Some("") => Readers::All,
        Some(component) if component.ends_with(OF_TOKEN) => Readers::Tokens,
        _ => Readers::Node,
    }
}

/// True for a document that describes the API: versions, groups, resources and schemas.
fn is_discovery(info: &RequestInfo) -> bool {
    if info.is_resource || info.verb != Verb::Get {
        return false;
    }
    let parts: Vec<&str> = info.path.trim_end_matches('/').split('/').skip(1).collect();
    match parts.as_slice() {
        ["version" | "api" | "apis"] | ["api", _] | ["apis", _] | ["apis", _, _] => true,
        ["openapi", version, ..] => ["v2", "v3"].contains(version),
        _ => false,
    }
}

/// The part of the query that decides about the answer; `None` if that is unknown.
fn query(uri: &Uri, info: &RequestInfo) -> Option<String> {
    let pairs = uri.query().unwrap_or_default().split('&');
    let named = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let mut deciding = named.filter(|(name, _)| !name.is_empty() && !IGNORED_PARAMETERS.contains(name));
    let is_hash = |value: &str| !value.is_empty() && value.bytes().all(|b| b.is_ascii_alphanumeric());
    match (deciding.next(), deciding.next()) {
        (None, _) => Some(String::new()),
        (Some((HASH, value)), None) if info.path.starts_with("/openapi/v3/") && is_hash(value) => {
            Some(format!("{HASH}={value}"))
        }
        _ => None,
    }
}

/// The accepted media types. Tables and metadata of objects are made from the object, so their types are left out for
/// objects: a client that also accepts the object receives it.
pub(super) fn accepted(accept: Option<&str>, is_document: bool) -> Vec<String> {
    let mut classes: Vec<String> = Vec::new();
    for clause in accept.unwrap_or_default().split(',') {
        let class = class_of(clause);
        let is_usable = !class.is_empty() && (is_document || !class.contains(";as="));
        if is_usable && !classes.contains(&class) && classes.len() < CLASSES_MAX {
            classes.push(class);
        }
    }
    if accept.is_none_or(|accept| accept.trim().is_empty()) {
        classes.push(JSON.to_owned());
    }
    classes
}

/// Normal form of a media type: lower case, parameters in order, wildcards as JSON. The schema's type is written with
/// `@` in requests and with `.` in answers.
pub(super) fn class_of(media_type: &str) -> String {
    let mut parts = media_type.split(';').map(|part| part.trim().to_ascii_lowercase());
    let base = parts.next().unwrap_or_default().replace('@', ".");
    let base = if matches!(base.as_str(), "*/*" | "application/*") {
        JSON.to_owned()
    } else {
        base
    };
    let matters = |part: &String| {
        let name = part.split('=').next().unwrap_or_default();
        !name.is_empty() && !IGNORED_MEDIA_PARAMETERS.contains(&name)
    };
    let mut parameters: Vec<String> = parts.filter(matters).collect();
    parameters.sort();
    std::iter::once(base).chain(parameters).collect::<Vec<_>>().join(";")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(method: &str, target: &str, accept: Option<&str>, component: Option<&str>) -> Option<KeptRead> {
        let uri: Uri = target.parse().unwrap();
        let info = RequestInfo::parse(method, uri.path(), uri.query()).unwrap();
        let headers = accept.map(|accept| (ACCEPT, accept.parse().unwrap()));
        let method = method.parse().unwrap();
        KeptRead::of(&method, &uri, &headers.into_iter().collect(), &info, component)
    }

    #[test]
    fn discovery_is_kept_for_all_and_objects_for_cacheable_components() {
        for path in [
            "/version",
            "/api",
            "/api/v1",
            "/apis",
            "/apis/apps",
            "/apis/apps/v1",
            "/openapi/v2",
            "/openapi/v3",
            "/openapi/v3/apis/apps/v1?hash=1",
        ] {
            assert!(
                read("GET", path, None, None).is_some_and(|read| read.is_discovery()),
                "{path}"
            );
        }
        let pod = "/api/v1/namespaces/shop/pods/web";
        assert!(read("GET", pod, None, None).is_none());
        assert!(read("GET", pod, None, Some("kubelet")).is_some_and(|read| !read.is_discovery()));
        for (method, path) in [
            ("HEAD", pod),
            ("PATCH", pod),
            ("GET", "/api/v1/namespaces/shop/pods"),
            ("GET", "/api/v1/namespaces/shop/pods/web/log"),
            (
                "GET",
                "/api/v1/namespaces/shop/pods?watch=1&fieldSelector=metadata.name=web",
            ),
            ("GET", "/healthz"),
            ("GET", "/metrics"),
            ("GET", "/openapi"),
            ("POST", "/version"),
        ] {
            assert_eq!(read(method, path, None, Some("kubelet")), None, "{method} {path}");
        }
        let long = format!("/version?{}", "x".repeat(TARGET_MAX));
        assert_eq!(read("GET", &long, None, None), None);
    }

    #[test]
    fn answers_are_found_by_component_path_query_and_media_type() {
        let key = |target: &str, accept: &str, component: &str| {
            let read = read("GET", target, Some(accept), Some(component)).unwrap();
            read.keys().next().unwrap()
        };
        let node = "/api/v1/nodes/n1";
        let first = key(node, JSON, "kubelet");
        assert_eq!(
            key(
                "/api/v1/nodes/n1?resourceVersion=0&timeout=10s",
                "application/json; charset=utf-8",
                "kubelet"
            ),
            first
        );
        for other in [
            key("/api/v1/nodes/n2", JSON, "kubelet"),
            key(node, PROTOBUF, "kubelet"),
            key(node, JSON, "kube-proxy"),
            key("/version", JSON, "kubelet"),
        ] {
            assert_ne!(other, first);
        }
    }

    #[test]
    fn spellings_of_a_discovery_request_have_one_key_or_none() {
        let key = |target: &str| read("GET", target, None, None).map(|read| read.key(JSON));
        let groups = "/openapi/v3/apis/apps/v1";
        assert_eq!(key("/version?timeout=32s&"), key("/version"));
        assert_ne!(key(&format!("{groups}?hash=1A")), key(groups));
        assert_eq!(key("/version/"), key("/version"));
        for target in [
            "/version?x=1",
            "/version?hash=1A",
            "/version?pretty=true",
            "/openapi/v2?x=1",
            "/openapi/v3?hash=1A",
            "/openapi/v3/api/v1?hash=1A&hash=1B",
            "/openapi/v3/api/v1?hash=%31A",
            "/openapi/v3/api/v1?%68ash=1A",
            "/openapi/v3/api/v1?hash",
            "/version//",
            "/vers%69on",
            "/apis/apps/v1//",
        ] {
            assert_eq!(key(target), None, "{target}");
        }
    }

    #[test]
    fn object_that_is_read_with_unknown_parameters_is_not_kept() {
        for query in ["pretty=true", "x=1", "hash=1A"] {
            let target = format!("/api/v1/nodes/n1?{query}");
            assert_eq!(read("GET", &target, None, Some("kubelet")), None, "{query}");
        }
    }

    #[test]
    fn key_says_who_the_answer_is_for() {
        let of_token = KeptRead::component_of_token("kubelet");
        for (target, component, expected) in [
            ("/api/v1/nodes/n1", "kubelet", Readers::Node),
            ("/api/v1/nodes/n1", of_token.as_str(), Readers::Tokens),
            ("/version", "kubelet", Readers::All),
            ("/version", of_token.as_str(), Readers::All),
        ] {
            let read = read("GET", target, None, Some(component)).unwrap();
            assert_eq!(readers_of(&read.key(JSON)), expected, "{target} for {component}");
        }
    }

    /// kube-apiserver gives it a type by its first bytes.
    #[test]
    fn index_of_the_schemas_is_json_although_it_is_called_text() {
        let text = "text/plain; charset=utf-8";
        for accept in [None, Some("application/json, */*")] {
            let index = read("GET", "/openapi/v3", accept, None).unwrap();
            assert_eq!(index.key_of(text), index.keys().next());
            assert_eq!(index.key_of(text), index.key_of(JSON));
        }
        for path in ["/openapi/v2", "/openapi/v3/api/v1", "/version"] {
            assert_eq!(read("GET", path, None, None).unwrap().key_of(text), None, "{path}");
        }
        assert_eq!(
            read("GET", "/openapi/v3", Some("text/html"), None)
                .unwrap()
                .key_of(text),
            None
        );
    }

    #[test]
    fn client_finds_only_types_that_it_accepts() {
        let both = read(
            "GET",
            "/api/v1/nodes/n1",
            Some("application/vnd.kubernetes.protobuf,application/json"),
            Some("kubelet"),
        );
        let both = both.unwrap();
        let keys: Vec<String> = both.keys().collect();
        assert_eq!(both.key_of(PROTOBUF).as_ref(), keys.first());
        assert_eq!(both.key_of("application/json"), keys.get(1).cloned());
        assert_eq!(both.key_of("text/html"), None);
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
        let table = read("GET", "/api/v1/nodes/n1", Some(table), Some("kubelet")).unwrap();
        assert_eq!(table.keys().count(), 1, "a table is not an object");
        let grouped = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let aggregated = read("GET", "/apis", Some(grouped), None).unwrap();
        assert_eq!(aggregated.key_of("application/json"), None);
        let answered = "application/json;as=APIGroupDiscoveryList;g=apidiscovery.k8s.io;v=v2";
        assert_eq!(aggregated.key_of(answered), aggregated.keys().next());
        let schema = read(
            "GET",
            "/openapi/v2",
            Some("application/com.github.proto-openapi.spec.v2@v1.0+protobuf"),
            None,
        );
        assert!(
            schema
                .unwrap()
                .key_of("application/com.github.proto-openapi.spec.v2.v1.0+protobuf")
                .is_some()
        );
        for wildcard in [None, Some("*/*")] {
            assert!(read("GET", "/version", wildcard, None).unwrap().key_of(JSON).is_some());
        }
    }
}
