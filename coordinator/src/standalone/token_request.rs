//! POST serviceaccounts/NAME/token: signs a token for a service account, optionally bound to a pod, node or Secret.

use http::Response;
use serde_json::{Value, json};
use yurt_apimachinery::status::FieldError;
use yurt_apimachinery::time::Time;
use yurt_apimachinery::{GroupKind, GroupResource, Object, ObjectKey, RequestInfo, Status, Verb, meta};
use yurt_runtime::http::Body;

use crate::admission;
use crate::app::App;
use crate::authn::User;
use crate::authn::claims::{Bound, Claims};
use crate::handlers::review::Exchange;
use crate::registry::reviews::VERSION;
use crate::registry::{Authority, Resource};

const GROUP: &str = "authentication.k8s.io";
const KIND: &str = "TokenRequest";
/// Default lifetime of a token, in seconds.
const DEFAULT_SECONDS: i64 = 3600;
/// Shortest lifetime that a client may request, in seconds.
pub(crate) const SECONDS_MIN: i64 = 600;
/// Longest lifetime, in seconds.
pub(crate) const SECONDS_MAX: i64 = 1 << 32;

/// Object that a token is bound to.
#[derive(Default)]
struct Binding {
    pod: Option<Bound>,
    node: Option<Bound>,
    secret: Option<Bound>,
}

/// True for a request for a token, if this server signs any.
pub(crate) fn is_meant(app: &App, resource: &Resource, info: &RequestInfo) -> bool {
    let is_own = matches!(resource.authority, Authority::Own(_));
    let is_token = resource.name == "serviceaccounts" && info.subresource.as_deref() == Some("token");
    is_own && is_token && info.rest.is_none() && app.filters.tokens.issuer().is_some()
}

/// Answers a token request.
///
/// # Errors
/// The error to return.
pub(crate) fn handle(
    app: &App,
    user: &User,
    info: &RequestInfo,
    exchange: &Exchange<'_>,
) -> Result<Response<Body>, Status> {
    let (Some(namespace), Some(name), Verb::Create) = (&info.namespace, &info.name, info.verb) else {
        return Err(Status::method_not_allowed());
    };
    let api_version = format!("{GROUP}/{VERSION}");
    exchange.run(&api_version, KIND, |request| sign(app, user, namespace, name, request))
}

fn sign(app: &App, user: &User, namespace: &str, name: &str, mut request: Value) -> Result<Value, Status> {
    let account = object(app, "serviceaccounts", Some(namespace), name)?;
    check_metadata(&request, &account)?;
    let audiences = audiences(app, &request);
    let seconds = lifetime(&request)?;
    admission::token_request(app, user, namespace, name, &request)?;
    let binding = binding(app, &account, &request["spec"]["boundObjectRef"])?;
    let now = app.clock.unix().secs;
    let claims = Claims {
        issuer: app.filters.tokens.issuer().unwrap_or_default().to_owned(),
        audiences: audiences.clone(),
        expires: now + seconds,
        not_before: now,
        issued: now,
        id: uuid::Uuid::new_v4().to_string(),
        namespace: namespace.to_owned(),
        account: bound(&account),
        pod: binding.pod,
        node: binding.node,
        secret: binding.secret,
    };
    let token = app.filters.tokens.issue(&claims);
    let token = token.ok_or_else(|| Status::internal("failed to generate token"))?;
    let metadata = meta::metadata_mut(&mut request);
    metadata.insert("name".to_owned(), json!(name));
    metadata.insert("namespace".to_owned(), json!(namespace));
    metadata.insert("uid".to_owned(), json!(account.uid()));
    metadata.insert("creationTimestamp".to_owned(), json!(Time::from_unix(now)));
    request["spec"]["audiences"] = json!(audiences);
    request["spec"]["expirationSeconds"] = json!(seconds);
    // Always present, even when null.
    request["spec"]["boundObjectRef"] = request["spec"]["boundObjectRef"].take();
    request["status"] = json!({ "token": token, "expirationTimestamp": Time::from_unix(now + seconds) });
    Ok(request)
}

fn check_metadata(request: &Value, account: &Object) -> Result<(), Status> {
    let (name, namespace) = (account.name(), account.namespace().unwrap_or_default());
    let invalid = |field: &str, value: &str, why: &str| {
        let errors = FieldError::invalid(format!("metadata.{field}"), value, why).into();
        Err(Status::invalid(&GroupKind::new(GROUP, KIND), name, &errors))
    };
    let given = |field: &str| Some(meta::text(request, field)).filter(|text| !text.is_empty());
    if let Some(other) = given("name").filter(|given| *given != name) {
        return invalid("name", other, "must match the service account name if specified");
    }
    if let Some(other) = given("namespace").filter(|given| *given != namespace) {
        return invalid(
            "namespace",
            other,
            "must match the service account namespace if specified",
        );
    }
    if let Some(other) = given("uid").filter(|given| *given != account.uid()) {
        let why = format!(
            "the UID in the token request ({other}) does not match the UID of the service account ({})",
            account.uid()
        );
        return Err(Status::conflict(&GroupResource::new(GROUP, KIND), name, &why));
    }
    Ok(())
}

fn audiences(app: &App, request: &Value) -> Vec<String> {
    let named = request["spec"]["audiences"].as_array().into_iter().flatten();
    let named: Vec<String> = named.filter_map(|one| one.as_str().map(str::to_owned)).collect();
    if named.is_empty() {
        app.filters.tokens.audiences().to_vec()
    } else {
        named
    }
}

fn lifetime(request: &Value) -> Result<i64, Status> {
    let seconds = &request["spec"]["expirationSeconds"];
    let seconds = if seconds.is_null() {
        DEFAULT_SECONDS
    } else {
        seconds.as_i64().unwrap_or_default()
    };
    let why = if seconds < SECONDS_MIN {
        "may not specify a duration less than 10 minutes"
    } else if seconds > SECONDS_MAX {
        "may not specify a duration larger than 2^32 seconds"
    } else {
        return Ok(seconds);
    };
    let errors = FieldError::invalid("spec.expirationSeconds", seconds, why).into();
    Err(Status::invalid(&GroupKind::new(GROUP, KIND), "", &errors))
}

fn binding(app: &App, account: &Object, reference: &Value) -> Result<Binding, Status> {
    let mut binding = Binding::default();
    if !reference.is_object() {
        return Ok(binding);
    }
    let text = |field: &str| reference[field].as_str().unwrap_or_default();
    let (version, kind, name) = (text("apiVersion"), text("kind"), text("name"));
    let namespace = account.namespace();
    let (plural, namespace) = match (version, kind) {
        ("v1" | "", "Pod") => ("pods", namespace),
        ("v1" | "", "Secret") => ("secrets", namespace),
        ("v1" | "", "Node") => ("nodes", None),
        _ => {
            let what = format!("{version}, Kind={kind}");
            return Err(Status::bad_request(format!(
                "cannot bind token to object of type {what}"
            )));
        }
    };
    let found = object(app, plural, namespace, name)?;
    if plural == "pods" {
        let pod = found.to_value();
        if pod["spec"]["serviceAccountName"] != account.name() {
            return Err(Status::bad_request(format!(
                "cannot bind token for serviceaccount \"{}\" to pod running with different serviceaccount name.",
                account.name()
            )));
        }
        binding.node = pod["spec"]["nodeName"].as_str().map(|node| node_of(app, node));
    }
    if !text("uid").is_empty() && text("uid") != found.uid() {
        let why = format!(
            "the UID in the bound object reference ({}) does not match the UID in record. The object might have been \
             deleted and then recreated",
            text("uid")
        );
        return Err(Status::conflict(&GroupResource::new("", kind), name, &why));
    }
    match plural {
        "pods" => binding.pod = Some(bound(&found)),
        "secrets" => binding.secret = Some(bound(&found)),
        _ => binding.node = Some(bound(&found)),
    }
    Ok(binding)
}

/// The node of a pod; without an object for it, only its name.
fn node_of(app: &App, name: &str) -> Bound {
    let node = object(app, "nodes", None, name);
    node.map_or_else(
        |_| Bound {
            name: name.to_owned(),
            uid: String::new(),
        },
        |node| bound(&node),
    )
}

fn bound(object: &Object) -> Bound {
    Bound {
        name: object.name().to_owned(),
        uid: object.uid().to_owned(),
    }
}

fn object(app: &App, plural: &str, namespace: Option<&str>, name: &str) -> Result<Object, Status> {
    let key = ObjectKey::new(namespace, name);
    let served = app.served();
    let resource = served.registry.find("", plural);
    let found = resource.and_then(|resource| resource.objects().read(|held| held.object(&key).cloned()));
    found.ok_or_else(|| Status::not_found(&GroupResource::new("", plural), name))
}
