//! What is created below a pod: a binding, with which a scheduler puts it on a node, and an eviction, with which it is asked
//! to leave. There are no disruption budgets here: nothing speaks against an eviction.

use http::{HeaderValue, Response, StatusCode};
use serde_json::{Value, json};
use yurt_apimachinery::gvr::GroupKind;
use yurt_apimachinery::negotiation::{Shape, body_format, body_json};
use yurt_apimachinery::status::FieldError;
use yurt_apimachinery::{DeleteOptions, GroupResource, Status, Verb, WriteOptions, meta};
use yurt_runtime::http::{self as web, Body};

use super::{Call, check_version, delete, version_in};
use crate::registry::own::{Change, Current};
use crate::registry::prepare;

/// What is created.
#[derive(Clone, Copy)]
enum Kind {
    Binding,
    Eviction,
}

/// Answers a create below a pod; `None` for what is not one of these.
pub(crate) async fn handle(call: &Call) -> Option<Result<Response<Body>, Status>> {
    let kind = match (call.resource.name.as_str(), call.info.subresource.as_deref()?) {
        ("pods", "binding") => Kind::Binding,
        ("pods", "eviction") => Kind::Eviction,
        _ => return None,
    };
    Some(create(call, kind).await)
}

async fn create(call: &Call, kind: Kind) -> Result<Response<Body>, Status> {
    let negotiated = call.negotiate(Shape::Object)?;
    let options = WriteOptions::parse(call.query.as_deref(), Verb::Create)?;
    let body = read(call, kind)?;
    match kind {
        Kind::Binding => bind(call, &body, options).await?,
        Kind::Eviction => evict(call, &body, &options).await?,
    }
    let content_type = HeaderValue::from_static(negotiated.format.content_type());
    let done = web::full(negotiated.status(&Status::success_created()));
    Ok(web::respond(StatusCode::CREATED, content_type, done))
}

// === impl Kind ===

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Binding => "Binding",
            Self::Eviction => "Eviction",
        }
    }

    fn api_version(self) -> &'static str {
        match self {
            Self::Binding => "v1",
            Self::Eviction => "policy/v1",
        }
    }
}

fn read(call: &Call, kind: Kind) -> Result<Value, Status> {
    let format = body_format(call.header(http::header::CONTENT_TYPE))?;
    let name = kind.name();
    let text = body_json(format, kind.api_version(), name, &call.body)?;
    let body: Value = serde_json::from_slice(&text)
        .map_err(|error| Status::bad_request(format!("couldn't get version/kind; json parse error: {error}")))?;
    let claims = |field: &str, wanted: &str| {
        let claimed = body.get(field).and_then(Value::as_str).unwrap_or_default();
        claimed.is_empty() || claimed == wanted
    };
    if !claims("kind", name) || !claims("apiVersion", kind.api_version()) {
        return Err(Status::bad_request(format!("not a {name} object")));
    }
    if meta::text(&body, "name") != call.name() {
        let why = format!("name in URL does not match name in {name} object");
        return Err(Status::bad_request(why));
    }
    let namespace = meta::text(&body, "namespace");
    if !namespace.is_empty() && Some(namespace) != call.namespace() {
        let why = "the namespace of the provided object does not match the namespace sent on the request";
        return Err(Status::bad_request(why));
    }
    Ok(body)
}

/// Puts a pod on a node, once.
async fn bind(call: &Call, binding: &Value, options: WriteOptions) -> Result<(), Status> {
    let target = |field: &str| binding["target"][field].as_str().unwrap_or_default();
    let mut errors = Vec::new();
    if !matches!(target("kind"), "" | "Node") {
        let known = ["Node", "<empty>"];
        errors.push(FieldError::not_supported("target.kind", target("kind"), &known));
    }
    if target("name").is_empty() {
        errors.push(FieldError::required("target.name", ""));
    }
    if !errors.is_empty() {
        return Err(Status::invalid(&GroupKind::new("", "Binding"), call.name(), &errors));
    }
    let intent = call.intent(options.field_manager, options.dry_run);
    let (wanted, now) = (version_in(binding), call.now().to_string());
    let change = |current: &Current| {
        let conflict = |why: &str| Status::conflict(&GroupResource::new("", "pods/binding"), call.name(), why);
        let uid = meta::text(binding, "uid");
        if !uid.is_empty() && uid != current.uid() {
            return Err(conflict(&format!(
                "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
                current.uid()
            )));
        }
        check_version(call, current, wanted.as_deref())?;
        let mut pod = current.stored().clone();
        if let Some(why) = refusal(&pod, call.name()) {
            return Err(conflict(&why));
        }
        place(&mut pod, binding, target("name"), &now);
        prepare::complete(&call.resource, &mut pod);
        Ok(Change::Put {
            new: pod,
            is_conditional: wanted.is_some(),
        })
    };
    let key = call.key();
    let bound = call.app.own.update(&call.resource, &key, &intent, change);
    bound.await.map(drop)
}

/// Why a pod cannot be put anywhere.
fn refusal(pod: &Value, name: &str) -> Option<String> {
    let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
    if !meta::text(pod, "deletionTimestamp").is_empty() {
        Some(format!("pod {name} is being deleted, cannot be assigned to a host"))
    } else if !node.is_empty() {
        Some(format!("pod {name} is already assigned to node {node:?}"))
    } else if pod["spec"]["schedulingGates"]
        .as_array()
        .is_some_and(|gates| !gates.is_empty())
    {
        Some(format!("pod {name} has non-empty .spec.schedulingGates"))
    } else {
        None
    }
}

/// Names the node, says so in the conditions, and takes over what the binding brings along.
fn place(pod: &mut Value, binding: &Value, node: &str, now: &str) {
    pod["spec"]["nodeName"] = json!(node);
    for field in ["annotations", "labels"] {
        let Some(brought) = binding["metadata"][field].as_object() else {
            continue;
        };
        let held = meta::metadata_mut(pod).entry(field).or_insert_with(|| json!({}));
        if let Some(held) = held.as_object_mut() {
            held.extend(brought.clone());
        }
    }
    let Some(status) = pod["status"].as_object_mut() else {
        return;
    };
    status.remove("nominatedNodeName");
    let conditions = status.entry("conditions").or_insert_with(|| json!([]));
    let Some(conditions) = conditions.as_array_mut() else {
        return;
    };
    let is_known = |condition: &&mut Value| condition["type"] == "PodScheduled";
    match conditions.iter_mut().find(is_known) {
        Some(condition) if condition["status"] == "True" => {}
        Some(condition) => *condition = scheduled(now),
        None => conditions.push(scheduled(now)),
    }
}

fn scheduled(now: &str) -> Value {
    json!({ "type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": now })
}

/// Deletes the pod, as the eviction says.
async fn evict(call: &Call, eviction: &Value, options: &WriteOptions) -> Result<(), Status> {
    let wanted = match &eviction["deleteOptions"] {
        Value::Null => json!({}),
        wanted => wanted.clone(),
    };
    let mut wanted = DeleteOptions::parse(None, wanted.to_string().as_bytes())?;
    wanted.dry_run |= options.dry_run;
    let intent = call.intent(None, wanted.dry_run);
    let (judge, key) = (delete::judge(call), call.key());
    let deleted = delete::delete(&call.app, &call.resource, &key, &wanted, &intent, &judge);
    deleted.await.map(drop)
}
