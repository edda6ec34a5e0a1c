//! What a write may contain, beyond who may write at all: NodeRestriction, in profile `standalone`.
//!
//! A node may write its own Node, its mirror pods and the status of its pods; the node authorizer, which sees no bodies,
//! leaves the rest of that rule to this place. In profile `pool` the table of rules says it all.

use serde_json::Value;
use yurt_apimachinery::{Object, ObjectKey, Status};

use crate::authn::User;
use crate::config::Profile;
use crate::handlers::Call;
use crate::registry::Resource;

mod node_restriction;

use node_restriction::{Known, NodeRestriction, Refusal};

/// Looks at an object before it is created; its name is settled.
///
/// # Errors
/// 403 with the reason; 404 when what the object refers to does not exist.
pub(crate) fn create(call: &Call, object: &Value) -> Result<(), Status> {
    let name = yurt_apimachinery::meta::text(object, "name");
    check(call, &call.resource, name, |rule| rule.create(name, object))
}

/// Looks at the new state of an object, as the client wishes it.
///
/// # Errors
/// As [`create`].
pub(crate) fn update(call: &Call, current: &Object, new: &Value) -> Result<(), Status> {
    let name = current.name();
    check(call, &call.resource, name, |rule| {
        rule.update(name, &current.to_value(), new)
    })
}

/// Looks at an object before it is deleted.
///
/// # Errors
/// As [`create`].
pub(crate) fn delete(call: &Call, resource: &Resource, current: &Object) -> Result<(), Status> {
    // A deletecollection names nobody: what is bound to a name refuses it.
    let named = call.info.name.as_deref().unwrap_or_default();
    check(call, resource, current.name(), |rule| rule.delete(named, current))
}

fn check(
    call: &Call,
    resource: &Resource,
    name: &str,
    look: impl FnOnce(&NodeRestriction<'_>) -> Result<(), Refusal>,
) -> Result<(), Status> {
    let Some(node) = restricted(call.app.settings.profile, &call.user) else {
        return Ok(());
    };
    let nodes = call.app.registry.find("", "nodes");
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
        known: Known { node_uid: &node_uid },
    };
    look(&rule).map_err(|refusal| match refusal {
        Refusal::Forbidden(why) => Status::forbidden_because(&resource.kind.group_resource(), name, &why),
        Refusal::NoNode(name) => {
            let nodes = yurt_apimachinery::GroupResource::new("", "nodes");
            Status::not_found(&nodes, &name)
        }
    })
}

/// The node whose writes are restricted.
fn restricted(profile: Profile, user: &User) -> Option<&str> {
    user.node_name().filter(|_| profile == Profile::Standalone)
}
