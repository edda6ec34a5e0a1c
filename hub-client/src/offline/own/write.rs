//! Applies a write of the kubelet to an object as it knows it, by the rules of the `status` subresource. Pure.

use bytes::Bytes;
use http::{HeaderMap, Method, header};
use serde_json::Value;
use yurt_apimachinery::gvr::GroupKind;
use yurt_apimachinery::kind::find_kind;
use yurt_apimachinery::status::FieldError;
use yurt_apimachinery::{RequestInfo, ResourceKind, Status, Verb, meta};
use yurt_codec::negotiation::{PatchType, body_format, body_json, patch_type};
use yurt_codec::schema::{self, Message};
use yurt_codec::{decoded, typed};

use super::merge::{as_listed, part, with_part, without_reports_of};
use crate::offline::reply::patched;

/// Maximum bytes of an object with a local status; etcd takes no larger ones.
const OBJECT_MAX: usize = 3 << 19;
/// Maximum length of a name or a namespace.
const NAME_MAX: usize = 253;

/// Object with a status of the kubelet: a Node, or a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnKey {
    /// Namespace of a pod; `None` for a Node. Nodes come first in the order.
    pub namespace: Option<String>,
    /// Name of the object.
    pub name: String,
}

/// An object as the cloud gave it to this node.
#[derive(Clone, Debug, Default)]
pub struct KnownObject {
    /// The latest state.
    pub latest: Option<Value>,
    /// The state in the selection that the kubelet lists, which may be older; the latest one if it lists none.
    pub listed: Option<Value>,
}

/// A write of a status.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// PATCH or PUT.
    pub method: &'a Method,
    /// Headers of the request.
    pub headers: &'a HeaderMap,
    /// Body of the request.
    pub body: &'a Bytes,
}

// === impl OwnKey ===

impl OwnKey {
    /// Returns the object whose status a request writes; `None` for any other request.
    #[must_use]
    pub fn of_write(info: &RequestInfo) -> Option<Self> {
        let is_status = info.subresource.as_deref() == Some("status");
        let is_write = matches!(info.verb, Verb::Patch | Verb::Update);
        if is_status && is_write { Self::of(info) } else { None }
    }

    /// Returns the object that a request reads by name; `None` for any other request.
    #[must_use]
    pub fn of_read(info: &RequestInfo) -> Option<Self> {
        let is_object = matches!(info.subresource.as_deref(), None | Some("status"));
        if is_object && info.verb == Verb::Get {
            Self::of(info)
        } else {
            None
        }
    }

    fn of(info: &RequestInfo) -> Option<Self> {
        let is_known = info.is_resource && info.group.is_empty() && info.version == "v1" && info.rest.is_none();
        let namespace = match info.resource.as_str() {
            "nodes" if info.namespace.is_none() => None,
            "pods" => Some(info.namespace.clone().filter(|namespace| is_name(namespace))?),
            _ => return None,
        };
        let name = info.name.clone().filter(|name| is_known && is_name(name))?;
        Some(Self { namespace, name })
    }

    /// The Node of this name; `None` if it cannot be one.
    #[must_use]
    pub fn node(name: &str) -> Option<Self> {
        is_name(name).then(|| Self {
            namespace: None,
            name: name.to_owned(),
        })
    }

    /// Reads the form of `to_string`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (namespace, name) = text.split_once('/')?;
        let namespace = Some(namespace).filter(|namespace| !namespace.is_empty());
        let is_valid = is_name(name) && namespace.is_none_or(is_name);
        is_valid.then(|| Self {
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
        })
    }

    /// Path of the object.
    #[must_use]
    pub fn path(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("/api/v1/namespaces/{namespace}/pods/{}", self.name),
            None => format!("/api/v1/nodes/{}", self.name),
        }
    }

    /// Kind of the object; `None` if this build does not know it.
    #[must_use]
    pub fn kind(&self) -> Option<&'static ResourceKind> {
        find_kind("", if self.namespace.is_some() { "pods" } else { "nodes" })
    }

    /// Type of the object.
    #[must_use]
    pub fn schema(&self) -> Option<Message> {
        let kind = self.kind()?;
        schema::find(&kind.group, &kind.version, &kind.kind)
    }

    /// Checks that the object is this node, or runs on it.
    ///
    /// # Errors
    /// 403, as kube-apiserver's NodeRestriction answers.
    pub fn check_owner(&self, node: &str, object: Option<&Value>) -> Result<(), Status> {
        let why = match (&self.namespace, object) {
            (None, _) if self.name == node => return Ok(()),
            (None, _) => format!("node {node:?} is not allowed to modify node {:?}", self.name),
            (Some(_), Some(pod)) if pod["spec"]["nodeName"] == node => return Ok(()),
            (Some(_), None) => return Ok(()),
            (Some(_), Some(_)) => {
                format!("node {node:?} can only update pod status for pods with spec.nodeName set to itself")
            }
        };
        let resource = self.kind().map(ResourceKind::group_resource).unwrap_or_default();
        Err(Status::forbidden_because(&resource, &self.name, &why))
    }
}

// === impl KnownObject ===

impl From<Option<Value>> for KnownObject {
    fn from(listed: Option<Value>) -> Self {
        let latest = listed.clone();
        Self { latest, listed }
    }
}

// === impl Write ===

impl Write<'_> {
    fn content_type(&self) -> Option<&str> {
        self.headers.get(header::CONTENT_TYPE)?.to_str().ok()
    }

    /// Returns the elements of `status.conditions` in a strategic merge patch.
    fn named_conditions(&self) -> Option<Vec<Value>> {
        let is_strategic = matches!(patch_type(self.content_type()), Ok(PatchType::StrategicMerge));
        if *self.method != Method::PATCH || !is_strategic || decoded::check(self.body).is_err() {
            return None;
        }
        let mut patch: Value = serde_json::from_slice(self.body).ok()?;
        match patch.pointer_mut("/status/conditions")?.take() {
            Value::Array(named) => Some(named),
            _ => None,
        }
    }
}

impl std::fmt::Display for OwnKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace.as_deref().unwrap_or_default(), self.name)
    }
}

/// True for text that is safe in a path, as every name of a Node, pod or namespace is.
fn is_name(text: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.');
    !text.is_empty() && text.len() <= NAME_MAX && text.bytes().all(is_plain) && !text.starts_with('.')
}

/// Returns the object to which a write applies, after earlier ones led to `local`. `listed` is the object as the
/// kubelet lists it.
#[must_use]
pub fn target(key: &OwnKey, local: &Value, listed: Option<&Value>, write: Write<'_>) -> Value {
    match own_node(key, local, listed).zip(write.named_conditions()) {
        Some((listed, named)) => without_reports_of(&named, local, listed),
        None => local.clone(),
    }
}

/// Returns the object that a read by name shows, after writes that led to `local`. The kubelet lists its Node for a
/// report, and reads it by name for a repetition: both show the same conditions, so [`target`] knows what a patch is
/// of.
#[must_use]
pub fn shown(key: &OwnKey, local: Value, listed: Option<&Value>) -> Value {
    match own_node(key, &local, listed) {
        Some(listed) => as_listed(&local, listed),
        None => local,
    }
}

/// The listed Node; `None` for a pod, and for another Node of that name.
fn own_node<'a>(key: &OwnKey, local: &Value, listed: Option<&'a Value>) -> Option<&'a Value> {
    listed.filter(|listed| key.namespace.is_none() && meta::text(listed, "uid") == meta::text(local, "uid"))
}

/// Returns the object after a write of its status by the kubelet of `node`.
///
/// # Errors
/// As kube-apiserver: 403 for an object of another node, 409 for another uid or resourceVersion, 400, 413, 415 and 422
/// for a body that cannot be applied. 503 for a server-side apply, which needs the cloud.
pub fn apply(key: &OwnKey, node: &str, current: &Value, write: Write<'_>) -> Result<Value, Status> {
    key.check_owner(node, Some(current))?;
    let kind = key.kind().ok_or_else(Status::unknown_resource)?;
    let content_type = write.content_type();
    let written = if *write.method == Method::PUT {
        let json = body_json(body_format(content_type)?, &kind.api_version(), &kind.kind, write.body)?;
        serde_json::from_slice(&json).map_err(|error| Status::bad_request(error.to_string()))?
    } else {
        patched(kind, current, content_type, write.body)?
    };
    check_identity(key, kind, current, &written)?;
    let new = with_part(current, &written);
    check_types(key, kind, write, &new)?;
    if !new["status"].is_object() {
        return Err(Status::bad_request("the status must be an object"));
    }
    let size = new.to_string().len();
    if size > OBJECT_MAX {
        return Err(Status::too_large_body(OBJECT_MAX));
    }
    Ok(new)
}

/// Refuses values of other types than their fields have. Unknown fields stay: the kubelet and the cloud may be of a
/// later version.
fn check_types(key: &OwnKey, kind: &ResourceKind, write: Write<'_>, new: &Value) -> Result<(), Status> {
    let Some(schema) = key.schema() else { return Ok(()) };
    let new = part(new);
    if typed::conforms(&new, schema) {
        return Ok(());
    }
    let Err(error) = typed::read(new.to_string().as_bytes(), schema) else {
        return Ok(());
    };
    if *write.method == Method::PUT {
        let (name, version) = (&kind.kind, &kind.version);
        let why = format!("{name} in version \"{version}\" cannot be handled as a {name}: {error}");
        return Err(Status::bad_request(why));
    }
    let patch = String::from_utf8_lossy(write.body).into_owned();
    let error = FieldError::invalid("patch", patch, &error.to_string());
    Err(Status::invalid(&GroupKind::default(), "", &error.into()))
}

/// Refuses a write that names another object, or another version of it.
fn check_identity(key: &OwnKey, kind: &ResourceKind, current: &Value, written: &Value) -> Result<(), Status> {
    let said = |name: &str| Some(meta::text(written, name)).filter(|text| !text.is_empty());
    let is_other = |name: &str, own: &str| said(name).is_some_and(|said| said != own);
    if is_other("name", &key.name) || is_other("namespace", key.namespace.as_deref().unwrap_or_default()) {
        let why = format!("the object in the body is not {key}, which the path names");
        return Err(Status::bad_request(why));
    }
    let (held, resource) = (|name| meta::text(current, name), kind.group_resource());
    if let Some(uid) = said("uid").filter(|uid| *uid != held("uid")) {
        let why = format!(
            "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
            held("uid")
        );
        return Err(Status::conflict(&resource, &key.name, &why));
    }
    if is_other("resourceVersion", held("resourceVersion")) {
        return Err(Status::conflict_modified(&resource, &key.name));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use http::header::CONTENT_TYPE;
    use serde_json::json;

    use super::*;

    const STRATEGIC: &str = "application/strategic-merge-patch+json";

    fn pod() -> Value {
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": "shop", "name": "web", "uid": "u1", "resourceVersion": "7"},
            "spec": {"nodeName": "n1"},
            "status": {"phase": "Pending", "conditions": [{"type": "Ready", "status": "False"}, {"type": "Gate", "status": "True"}]}})
    }

    fn key() -> OwnKey {
        OwnKey::parse("shop/web").unwrap()
    }

    fn write(method: Method, content_type: &str, body: &Value) -> Result<Value, u16> {
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, content_type.parse().unwrap())]);
        let body = body.to_string().into();
        let write = Write {
            method: &method,
            headers: &headers,
            body: &body,
        };
        apply(&key(), "n1", &pod(), write).map_err(|status| status.code())
    }

    #[test]
    fn patches_of_all_types_and_puts_change_the_status() {
        let ready = json!([{"type": "Ready", "status": "True"}, {"type": "Gate", "status": "True"}]);
        let strategic = json!({"metadata": {"uid": "u1"}, "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        let merge = json!({"status": {"phase": "Running", "conditions": ready}});
        let operations = json!([{"op": "replace", "path": "/status/phase", "value": "Running"},
            {"op": "replace", "path": "/status/conditions/0/status", "value": "True"}]);
        let mut whole = pod();
        whole["status"] = merge["status"].clone();
        for (method, content_type, body) in [
            (Method::PATCH, STRATEGIC, strategic),
            (Method::PATCH, "application/merge-patch+json", merge),
            (Method::PATCH, "application/json-patch+json", operations),
            (Method::PUT, "application/json", whole.clone()),
        ] {
            assert_eq!(write(method, content_type, &body), Ok(whole.clone()), "{content_type}");
        }
    }

    #[test]
    fn write_of_a_status_changes_nothing_else() {
        let body = json!({"metadata": {"finalizers": ["x"], "ownerReferences": []}, "spec": {"nodeName": "n2"}, "status": {"phase": "Running"}});
        let new = write(Method::PATCH, "application/merge-patch+json", &body).unwrap();
        assert_eq!((&new["metadata"], &new["spec"]), (&pod()["metadata"], &pod()["spec"]));
    }

    #[test]
    fn writes_of_other_objects_and_versions_are_refused() {
        let merge = |body: Value| write(Method::PATCH, "application/merge-patch+json", &body);
        assert_eq!(
            merge(json!({"metadata": {"uid": "u2"}, "status": {"phase": "Running"}})),
            Err(409)
        );
        assert_eq!(merge(json!({"metadata": {"resourceVersion": "6"}})), Err(409));
        assert_eq!(merge(json!({"metadata": {"name": "db"}})), Err(400));
        assert_eq!(merge(json!({"metadata": {"namespace": "kube-system"}})), Err(400));
        assert_eq!(merge(json!({"status": null})), Err(400));
        assert_eq!(merge(json!({"status": {"message": "x".repeat(OBJECT_MAX)}})), Err(413));
        assert_eq!(
            write(Method::PATCH, "application/apply-patch+yaml", &json!({})),
            Err(503)
        );
        assert_eq!(write(Method::PATCH, "text/plain", &json!({})), Err(415));
        assert_eq!(write(Method::PUT, "application/json", &json!("x")), Err(400));
    }

    #[test]
    fn values_that_kube_apiserver_cannot_read_are_refused_at_once() {
        for (path, odd) in [
            ("/status", json!("fine")),
            ("/status/conditions", json!("Ready")),
            ("/status/conditions/0/status", json!(true)),
            ("/status/startTime", json!("yesterday")),
            ("/metadata/labels", json!({"app": 1})),
        ] {
            let mut whole = pod();
            whole["metadata"]["labels"] = json!({});
            let (parent, name) = path.rsplit_once('/').unwrap();
            whole.pointer_mut(parent).unwrap()[name] = odd;
            assert_eq!(write(Method::PUT, "application/json", &whole), Err(400), "{path}");
            let patched = write(Method::PATCH, "application/merge-patch+json", &whole);
            assert_eq!(patched, Err(422), "{path}");
        }
        let later = json!({"status": {"fieldOfALaterVersion": [1]}});
        let new = write(Method::PATCH, "application/merge-patch+json", &later).unwrap();
        assert_eq!(new["status"]["fieldOfALaterVersion"], json!([1]));
    }

    #[test]
    fn node_writes_its_own_objects_only() {
        let code = |key: &str, object: &Value| {
            OwnKey::parse(key)
                .unwrap()
                .check_owner("n1", Some(object))
                .map_err(|status| status.code())
        };
        let on = |node: &str| json!({"spec": {"nodeName": node}});
        assert_eq!(code("/n1", &json!({})), Ok(()));
        assert_eq!(code("/n2", &json!({})), Err(403));
        assert_eq!(code("shop/web", &on("n1")), Ok(()));
        for other in [on("n2"), on(""), json!({})] {
            assert_eq!(code("shop/web", &other), Err(403), "{other}");
        }
    }

    #[test]
    fn only_statuses_of_nodes_and_pods_with_plain_names_are_own_writes() {
        let key = |method: &str, path: &str| {
            let info = RequestInfo::parse(method, path, None).ok()?;
            OwnKey::of_write(&info).map(|key| key.path())
        };
        for (method, path) in [
            ("PATCH", "/api/v1/nodes/n1"),
            ("PUT", "/api/v1/namespaces/shop/pods/web.1-a"),
        ] {
            assert_eq!(key(method, &format!("{path}/status")).as_deref(), Some(path));
            let info = RequestInfo::parse("GET", path, None).unwrap();
            assert_eq!(OwnKey::of_read(&info).map(|key| key.path()).as_deref(), Some(path));
        }
        for (method, path) in [
            ("PATCH", "/api/v1/nodes/n1"),
            ("DELETE", "/api/v1/nodes/n1/status"),
            ("PATCH", "/apis/x/v1/nodes/n1/status"),
            ("PATCH", "/api/v1/namespaces/shop/services/web/status"),
            ("PATCH", "/api/v1/namespaces/shop/pods/..%5cx/status"),
            ("PATCH", "/api/v1/namespaces/%20/pods/web/status"),
            ("PATCH", "/api/v1/namespaces/shop/pods/WEB/status"),
        ] {
            assert_eq!(key(method, path), None, "{method} {path}");
        }
        for text in ["", "web", "a/b/c", "/..", "../web", "/"] {
            assert_eq!(OwnKey::parse(text), None, "{text}");
        }
    }
}
