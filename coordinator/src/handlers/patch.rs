//! PATCH: JSON patch, merge patch, strategic merge patch. An apply is passed on.

use http::{Response, StatusCode};
use serde_json::Value;
use yurt_apimachinery::negotiation::{PatchType, Shape, patch_type};
use yurt_apimachinery::patch::{apply_json_patch, apply_merge_patch, apply_strategic_merge_patch};
use yurt_apimachinery::schema::{self, Message};
use yurt_apimachinery::{Object, Status, Verb, WriteOptions, meta};
use yurt_runtime::http::Body;

use super::{Call, apply, check_version, reading, update, version_in};
use crate::admission;
use crate::registry::own::Outcome;
use crate::registry::prepare::{self, Account};

/// Answers a patch. Without a resourceVersion in it, lost races are repeated here and never the client's concern.
///
/// # Errors
/// The answer to give.
pub(crate) async fn handle(call: &Call) -> Result<Response<Body>, Status> {
    let options = WriteOptions::parse(call.query.as_deref(), Verb::Patch)?;
    let negotiated = call.negotiate(Shape::Object)?;
    let patch_type = patch_type(call.header(http::header::CONTENT_TYPE))?;
    options.check_patch(patch_type == PatchType::Apply)?;
    let Some(patch) = Patch::new(call, patch_type)? else {
        return apply::handle(call, options, negotiated).await;
    };
    let manager = call.manager(&options);
    let account = Account::Writer {
        manager: &manager,
        now: call.now(),
    };
    let intent = call.intent(options.field_manager, options.dry_run);
    let is_conditional = names_version(patch_type, &call.body);
    let key = call.key();
    let outcome = call.app.own.update(&call.resource, &key, &intent, |current| {
        let mut new = call.resource.shown(current).to_value();
        patch.apply(&mut new, &call.body)?;
        let new = reading::patched(call, new, options.field_validation)?;
        check_identity(call, current, &new)?;
        check_version(call, current, version_in(&new).as_deref())?;
        admission::update(call, current, &new)?;
        let new = prepare::updated(&call.resource, current.stored(), new, update::part(call), account)?;
        Ok(update::settle(&call.resource, new, is_conditional))
    });
    let object = outcome.await.map(Outcome::into_object)?;
    call.object(StatusCode::OK, &object, negotiated)
}

/// How a patch is applied.
enum Patch {
    Json,
    Merge,
    /// By the rules of this type.
    Strategic(Message),
}

// === impl Patch ===

impl Patch {
    /// `None` for an apply; 415 for a type that is not for this kind: custom resources have no merge rules.
    fn new(call: &Call, patch_type: PatchType) -> Result<Option<Self>, Status> {
        let kind = call.resource.kind;
        Ok(Some(match patch_type {
            PatchType::Json => Self::Json,
            PatchType::Merge => Self::Merge,
            PatchType::StrategicMerge => {
                let schema = schema::find(&kind.group, &kind.version, &kind.kind);
                Self::Strategic(schema.ok_or_else(Status::unsupported_patch_type)?)
            }
            PatchType::Apply => return Ok(None),
        }))
    }

    fn apply(&self, object: &mut Value, body: &[u8]) -> Result<(), Status> {
        match self {
            Self::Json => apply_json_patch(object, body),
            Self::Merge => apply_merge_patch(object, body),
            Self::Strategic(schema) => {
                let patch = serde_json::from_slice(body).map_err(|error| Status::bad_request(error.to_string()))?;
                apply_strategic_merge_patch(object, patch, *schema)
            }
        }
    }
}

/// Whether a patch says which resourceVersion it is based on.
fn names_version(patch_type: PatchType, body: &[u8]) -> bool {
    let Ok(patch) = serde_json::from_slice::<Value>(body) else {
        return false;
    };
    match patch_type {
        PatchType::Json => {
            let operations = patch.as_array().into_iter().flatten();
            operations
                .into_iter()
                .any(|operation| operation["path"] == "/metadata/resourceVersion")
        }
        _ => version_in(&patch).is_some(),
    }
}

/// A patch may not turn an object into another one.
fn check_identity(call: &Call, current: &Object, new: &Value) -> Result<(), Status> {
    let name = meta::text(new, "name");
    if name != current.name() {
        let why = format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            current.name()
        );
        return Err(Status::bad_request(why));
    }
    if call.resource.kind.namespaced && meta::text(new, "namespace") != current.namespace().unwrap_or_default() {
        return Err(Status::bad_request(
            "the namespace of the object does not match the namespace on the request",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn optimistic_patches_are_recognised() {
        let merge = |text: &str| names_version(PatchType::Merge, text.as_bytes());
        assert!(merge(r#"{"metadata":{"resourceVersion":"5"}}"#));
        assert!(!merge(r#"{"metadata":{"resourceVersion":""}}"#) && !merge(r#"{"spec":{}}"#) && !merge("nonsense"));
        let json = |text: &str| names_version(PatchType::Json, text.as_bytes());
        assert!(json(
            r#"[{"op":"test","path":"/metadata/resourceVersion","value":"5"}]"#
        ));
        assert!(!json(r#"[{"op":"remove","path":"/spec"}]"#));
    }
}
