//! Creates below a pod: a binding, with which a scheduler assigns it to a node, and an eviction, which deletes it
//! gracefully. Every eviction is allowed, because there are no disruption budgets.

use http::{HeaderValue, Response, StatusCode};
use serde_json::{Value, json};
use yurt_apimachinery::gvr::GroupKind;
use yurt_apimachinery::options::FieldValidation;
use yurt_apimachinery::status::{ErrorList, FieldError};
use yurt_apimachinery::{DeleteOptions, GroupResource, Status, Verb, WriteOptions, meta};
use yurt_codec::negotiation::Shape;
use yurt_runtime::http::{self as web, Body};

use crate::handlers::reading::{self, Expected};
use crate::handlers::{delete, update, version_in};
use crate::registry::own::{Change, Current};
use crate::registry::prepare;
use crate::request::Call;

/// PodSubresource of the created object.
#[derive(Clone, Copy)]
enum PodSubresource {
    Binding,
    Eviction,
}

/// Answers a create below a pod; `None` for what is not one of these.
pub(crate) async fn handle(call: &Call) -> Option<Result<Response<Body>, Status>> {
    let kind = match (call.resource.name.as_str(), call.info.subresource.as_deref()?) {
        ("pods", "binding") => PodSubresource::Binding,
        ("pods", "eviction") => PodSubresource::Eviction,
        _ => return None,
    };
    Some(create(call, kind).await)
}

async fn create(call: &Call, kind: PodSubresource) -> Result<Response<Body>, Status> {
    let negotiated = call.negotiate(Shape::Object)?;
    let options = WriteOptions::parse(call.query.as_deref(), Verb::Create)?;
    let body = read(call, kind, options.field_validation)?;
    match kind {
        PodSubresource::Binding => bind(call, &body, options).await?,
        PodSubresource::Eviction => evict(call, &body, &options).await?,
    }
    let content_type = HeaderValue::from_static(negotiated.format.content_type());
    let done = web::full(negotiated.status(&Status::success_created()));
    Ok(web::respond(StatusCode::CREATED, content_type, done))
}

// === impl PodSubresource ===

impl PodSubresource {
    fn name(self) -> &'static str {
        match self {
            Self::Binding => "Binding",
            Self::Eviction => "Eviction",
        }
    }

    /// Accepted versions of the kind.
    fn api_versions(self) -> &'static [&'static str] {
        match self {
            Self::Binding => &["v1"],
            Self::Eviction => &["policy/v1", "policy/v1beta1"],
        }
    }
}

fn read(call: &Call, kind: PodSubresource, validation: FieldValidation) -> Result<Value, Status> {
    let name = kind.name();
    let expected = Expected {
        kind: name,
        api_versions: kind.api_versions(),
    };
    let content_type = call.header(http::header::CONTENT_TYPE);
    let body = reading::read(&expected, content_type, &call.body, validation, &call.warnings)?;
    expected.check(&body)?;
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

/// Assigns a pod to a node, once.
async fn bind(call: &Call, binding: &Value, options: WriteOptions) -> Result<(), Status> {
    let target = |field: &str| binding["target"][field].as_str().unwrap_or_default();
    let mut errors = ErrorList::default();
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
            return Err(update::not_that_one(call, "UID", uid, current.uid()));
        }
        let version = current.resource_version().to_string();
        if let Some(wanted) = wanted.as_deref().filter(|wanted| *wanted != version) {
            return Err(update::not_that_one(call, "ResourceVersion", wanted, &version));
        }
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

/// Reason for which a pod cannot be bound.
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

/// Sets the node and the condition, and copies the metadata of the binding.
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
    if let Some(status) = pod["status"].as_object_mut() {
        status.remove("nominatedNodeName");
    }
    set_condition(pod, scheduled(now));
}

/// Replaces the condition of the same type. A state that already holds keeps its time.
fn set_condition(pod: &mut Value, mut new: Value) {
    let Some(status) = pod["status"].as_object_mut() else {
        return;
    };
    let conditions = status.entry("conditions").or_insert_with(|| json!([]));
    let Some(conditions) = conditions.as_array_mut() else {
        return;
    };
    let Some(held) = conditions.iter_mut().find(|held| held["type"] == new["type"]) else {
        return conditions.push(new);
    };
    if held["status"] == new["status"] {
        new["lastTransitionTime"] = held["lastTransitionTime"].clone();
    }
    *held = new;
}

fn scheduled(now: &str) -> Value {
    json!({ "type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": now })
}

/// Sets the pod's disruption condition, and deletes it with the options of the eviction.
async fn evict(call: &Call, eviction: &Value, options: &WriteOptions) -> Result<(), Status> {
    let wanted = match &eviction["deleteOptions"] {
        Value::Null => json!({}),
        wanted => wanted.clone(),
    };
    let mut wanted = DeleteOptions::parse(None, wanted.to_string().as_bytes())?;
    wanted.dry_run |= options.dry_run;
    let intent = call.intent(None, wanted.dry_run);
    let (judge, key) = (delete::judge(call), call.key());
    if !wanted.dry_run {
        let now = call.now().to_string();
        let marked = call.app.own.update(&call.resource, &key, &intent, |current| {
            delete::check_preconditions(&call.resource, current, &wanted)?;
            judge(current)?;
            let mut pod = current.stored().clone();
            set_condition(&mut pod, evicted(&now));
            prepare::complete(&call.resource, &mut pod);
            Ok(Change::Put {
                new: pod,
                is_conditional: wanted.preconditions.resource_version.is_some(),
            })
        });
        let marked = marked.await?.into_object();
        if let Some(version) = &mut wanted.preconditions.resource_version {
            // The pod is the same one, and the change since is our own.
            *version = marked.resource_version().to_string();
        }
    }
    let deleted = delete::delete(&call.app, &call.resource, &key, &wanted, &intent, &judge);
    deleted.await.map(drop)
}

fn evicted(now: &str) -> Value {
    json!({ "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting", "lastProbeTime": null, "lastTransitionTime": now })
}
