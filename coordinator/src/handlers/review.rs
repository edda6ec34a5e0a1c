//! Reviews: questions a caller may ask about itself. They are answered, never stored.

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use serde_json::{Value, json};
use yurt_apimachinery::negotiation::{Shape, body_format, body_json, negotiate};
use yurt_apimachinery::representation::document;
use yurt_apimachinery::status::FieldError;
use yurt_apimachinery::{GroupKind, Status};
use yurt_runtime::http::{self as web, Body};

use crate::app::App;
use crate::authn::User;
use crate::authz::{Attributes, Decision};
use crate::config::Profile;

/// A kind that can only be created, and only as a question.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReviewKind {
    /// API group.
    pub(crate) group: &'static str,
    /// Plural.
    pub(crate) plural: &'static str,
    /// Singular.
    pub(crate) singular: &'static str,
    /// Kind.
    pub(crate) kind: &'static str,
    answer: fn(&App, &User, Value) -> Result<Value, Status>,
}

/// Version of all of them.
pub(crate) const VERSION: &str = "v1";

/// Every review served.
pub(crate) const KINDS: [ReviewKind; 3] = [
    ReviewKind {
        group: "authentication.k8s.io",
        plural: "selfsubjectreviews",
        singular: "selfsubjectreview",
        kind: "SelfSubjectReview",
        answer: who_am_i,
    },
    ReviewKind {
        group: "authorization.k8s.io",
        plural: "selfsubjectaccessreviews",
        singular: "selfsubjectaccessreview",
        kind: "SelfSubjectAccessReview",
        answer: may_i,
    },
    ReviewKind {
        group: "authorization.k8s.io",
        plural: "selfsubjectrulesreviews",
        singular: "selfsubjectrulesreview",
        kind: "SelfSubjectRulesReview",
        answer: my_rules,
    },
];

/// The review a path names.
pub(crate) fn find(group: &str, version: &str, plural: &str) -> Option<&'static ReviewKind> {
    KINDS
        .iter()
        .find(|kind| kind.group == group && kind.plural == plural && version == VERSION)
}

/// Answers a review.
///
/// # Errors
/// The answer to give.
pub(crate) fn handle(
    app: &App,
    user: &User,
    kind: &ReviewKind,
    query: Option<&str>,
    headers: &HeaderMap,
    body: &Bytes,
) -> Result<Response<Body>, Status> {
    let header = |name: HeaderName| headers.get(name)?.to_str().ok();
    let negotiated = negotiate(header(ACCEPT), Shape::Object, true, query, header(USER_AGENT))?;
    let api_version = format!("{}/{VERSION}", kind.group);
    let body = body_json(body_format(header(CONTENT_TYPE))?, &api_version, kind.kind, body)?;
    let unreadable = |error: serde_json::Error| {
        Status::bad_request(format!(
            "{} in version \"v1\" cannot be handled as a {}: {error}",
            kind.kind, kind.kind
        ))
    };
    let review: Value = serde_json::from_slice(&body).map_err(unreadable)?;
    if !review.is_object() {
        return Err(Status::bad_request(format!("the body is not a {}", kind.kind)));
    }
    let mut answer = (kind.answer)(app, user, review)?;
    answer["kind"] = json!(kind.kind);
    answer["apiVersion"] = json!(api_version);
    let body = document(negotiated.format, negotiated.pretty, &answer.to_string().into());
    let content_type = HeaderValue::from_static(negotiated.content_type(Shape::Object));
    Ok(web::respond(StatusCode::CREATED, content_type, web::full(body)))
}

fn who_am_i(app: &App, user: &User, review: Value) -> Result<Value, Status> {
    let now = yurt_apimachinery::time::Time::from_unix(app.clock.unix().secs);
    let mut metadata = review
        .get("metadata")
        .cloned()
        .filter(Value::is_object)
        .unwrap_or_else(|| json!({}));
    metadata["creationTimestamp"] = json!(now);
    let info = json!({ "username": user.name, "groups": user.groups });
    Ok(json!({ "metadata": metadata, "status": { "userInfo": info } }))
}

fn may_i(app: &App, user: &User, review: Value) -> Result<Value, Status> {
    let spec = &review["spec"];
    let (resource, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    let text = |from: &'_ Value, field: &str| from[field].as_str().unwrap_or_default().to_owned();
    let decision = match (resource.is_object(), path.is_object()) {
        (true, false) => {
            let [verb, group, name, namespace, plural, subresource] =
                ["verb", "group", "name", "namespace", "resource", "subresource"].map(|field| text(resource, field));
            app.authorize(
                user,
                &Attributes {
                    verb: &verb,
                    path: None,
                    group: &group,
                    resource: &plural,
                    subresource: &subresource,
                    namespace: &namespace,
                    name: &name,
                    fields: Vec::new(),
                },
            )
        }
        (false, true) => {
            let (verb, path) = (text(path, "verb"), text(path, "path"));
            app.authorize(
                user,
                &Attributes {
                    verb: &verb,
                    path: Some(&path),
                    ..Attributes::default()
                },
            )
        }
        _ => {
            let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            let field = if resource.is_object() {
                "spec.nonResourceAttributes"
            } else {
                "spec.resourceAttributes"
            };
            let kind = GroupKind::new("authorization.k8s.io", "SelfSubjectAccessReview");
            return Err(Status::invalid(
                &kind,
                "",
                &[FieldError::invalid(field, Value::Null, why)],
            ));
        }
    };
    let status = match decision {
        Decision::Allowed(why) if why.is_empty() => json!({ "allowed": true }),
        Decision::Allowed(why) => json!({ "allowed": true, "reason": *why }),
        Decision::Denied(why) if why.is_empty() => json!({ "allowed": false }),
        Decision::Denied(why) => json!({ "allowed": false, "reason": why }),
    };
    let metadata = review
        .get("metadata")
        .cloned()
        .filter(Value::is_object)
        .unwrap_or_else(|| json!({}));
    Ok(json!({ "metadata": metadata, "spec": spec, "status": status }))
}

/// The rules of roles that are bound to the caller. What a node or a pool's member may beside that is not listed.
fn my_rules(app: &App, user: &User, review: Value) -> Result<Value, Status> {
    let namespace = review["spec"]["namespace"].as_str().unwrap_or_default();
    if namespace.is_empty() {
        return Err(Status::bad_request("no namespace on request"));
    }
    let policy = app.gate.rbac.current();
    let found = policy.rules_for(user, namespace);
    let mut errors = Vec::new();
    if app.settings.profile == Profile::Pool {
        errors.push("the rules of profile pool are not listed".to_owned());
    } else if user.node_name().is_some() {
        errors.push("node authorizer does not support user rule resolution".to_owned());
    }
    let incomplete = !errors.is_empty();
    errors.extend(found.errors);
    let (mut resources, mut paths) = (Vec::new(), Vec::new());
    for rule in found.rules {
        if !rule.resources.is_empty() {
            let mut entry = json!({ "verbs": rule.verbs, "apiGroups": rule.api_groups, "resources": rule.resources });
            if !rule.resource_names.is_empty() {
                entry["resourceNames"] = json!(rule.resource_names);
            }
            resources.push(entry);
        } else if !rule.paths.is_empty() {
            paths.push(json!({ "verbs": rule.verbs, "nonResourceURLs": rule.paths }));
        }
    }
    let mut status = json!({ "resourceRules": resources, "nonResourceRules": paths, "incomplete": incomplete });
    if !errors.is_empty() {
        status["evaluationError"] = json!(errors.join(", "));
    }
    // As kube-apiserver: the question is not repeated.
    Ok(json!({ "metadata": {}, "spec": {}, "status": status }))
}
