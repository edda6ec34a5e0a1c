//! Admission of write contents, beyond authorization: NodeRestriction, in profile `standalone`.
//!
//! A node may write its own Node, its mirror pods and the status of its pods. The node authorizer sees no bodies and
//! leaves the rest of that rule to this module. In profile `pool` the table of rules covers everything.

use serde_json::Value;
use yurt_apimachinery::{GroupResource, Object, ObjectKey, Status};

use crate::app::App;
use crate::authn::User;
use crate::authz::{Attributes, references};
use crate::config::Profile;
use crate::registry::Resource;
use crate::request::Call;

mod node_restriction;

use node_restriction::{KnownNodes, NodeRefusal, NodeRestriction};

/// Checks an object before it is created; its name is settled.
///
/// # Errors
/// 403 with the reason; 404 when what the object refers to does not exist.
pub(crate) fn create(call: &Call, object: &Value) -> Result<(), Status> {
    let name = yurt_apimachinery::meta::text(object, "name");
    check(call, &call.resource, name, |rule| rule.create(name, object))
}

/// Checks the new state of an object, as the client requests it.
///
/// # Errors
/// As [`create`].
pub(crate) fn update(call: &Call, current: &Object, new: &Value) -> Result<(), Status> {
    let name = current.name();
    check(call, &call.resource, name, |rule| {
        rule.update(name, &current.to_value(), new)
    })
}

/// Checks an object before it is deleted.
///
/// # Errors
/// As [`create`].
pub(crate) fn delete(call: &Call, resource: &Resource, current: &Object) -> Result<(), Status> {
    // A deletecollection has no name: every rule that is bound to a name refuses it.
    let named = call.info.name.as_deref().unwrap_or_default();
    check(call, resource, current.name(), |rule| rule.delete(named, current))
}

/// Checks a request for a token of the service account `namespace`/`name`. A node gets one only for a pod of its own,
/// and only for an audience that the pod's volumes name.
///
/// # Errors
/// As [`create`].
pub(crate) fn token_request(
    app: &App,
    user: &User,
    namespace: &str,
    name: &str,
    request: &Value,
) -> Result<(), Status> {
    let Some(node) = restricted(app.settings.profile, user) else {
        return Ok(());
    };
    let accounts = GroupResource::new("", "serviceaccounts");
    let forbid = |why: &str| Err(Status::forbidden_because(&accounts, name, why));
    let reference = &request["spec"]["boundObjectRef"];
    let text = |field: &str| reference[field].as_str().unwrap_or_default();
    if text("apiVersion") != "v1" || text("kind") != "Pod" || text("name").is_empty() {
        return forbid("node requested token not bound to a pod");
    }
    if text("uid").is_empty() {
        return forbid("node requested token with a pod binding without a uid");
    }
    let key = ObjectKey::new(Some(namespace), text("name"));
    let served = app.served();
    let pods = served.registry.find("", "pods");
    let pod = pods.and_then(|pods| pods.objects().read(|held| held.object(&key).cloned()));
    let pod = pod.ok_or_else(|| Status::not_found(&GroupResource::new("", "pods"), text("name")))?;
    if pod.uid() != text("uid") {
        return forbid(&format!(
            "the UID in the bound object reference ({}) does not match the UID in record. The object might have been \
             deleted and then recreated",
            text("uid")
        ));
    }
    if pod.field("spec.nodeName") != Some(node) {
        return forbid("node requested token bound to a pod scheduled on a different node");
    }
    let audience = match request["spec"]["audiences"].as_array().map_or(&[][..], Vec::as_slice) {
        [] => "",
        [one] => one.as_str().unwrap_or_default(),
        _ => return forbid("node may only request 0 or 1 audiences"),
    };
    if references::mounts_token_for(&pod.to_value(), audience) {
        return Ok(());
    }
    let attributes = Attributes {
        verb: "request-serviceaccounts-token-audience",
        resource: audience,
        namespace,
        name,
        ..Attributes::default()
    };
    if app.authorize(user, &attributes).is_allowed() {
        return Ok(());
    }
    forbid(&format!(
        "audience \"{audience}\" not found in pod spec volume, {} is not authorized to request tokens for this audience",
        user.name
    ))
}

fn check(
    call: &Call,
    resource: &Resource,
    name: &str,
    look: impl FnOnce(&NodeRestriction<'_>) -> Result<(), NodeRefusal>,
) -> Result<(), Status> {
    let forbid = |why: &str| Status::forbidden_because(&resource.kind.group_resource(), name, why);
    if call.app.settings.profile == Profile::Standalone && call.user.is_unnamed_node() {
        return Err(forbid(&format!(
            "could not determine node from user \"{}\"",
            call.user.name
        )));
    }
    let Some(node) = restricted(call.app.settings.profile, &call.user) else {
        return Ok(());
    };
    let served = call.app.served();
    let nodes = served.registry.find("", "nodes");
    let node_uid = |name: &str| {
        let key = ObjectKey::new(None, name);
        nodes?
            .objects()
            .read(|held| held.object(&key).map(|node| node.uid().to_owned()))
    };
    let rule = NodeRestriction {
        node,
        resource: &resource.name,
        subresource: call.info.subresource.as_deref().unwrap_or_default(),
        namespace: call.info.namespace.as_deref().unwrap_or_default(),
        known: KnownNodes { node_uid: &node_uid },
    };
    look(&rule).map_err(|refusal| match refusal {
        NodeRefusal::Forbidden(why) => forbid(&why),
        NodeRefusal::NoNode(name) => Status::not_found(&GroupResource::new("", "nodes"), &name),
    })
}

/// Name of the node whose writes are restricted.
fn restricted(profile: Profile, user: &User) -> Option<&str> {
    user.node_name().filter(|_| profile == Profile::Standalone)
}
