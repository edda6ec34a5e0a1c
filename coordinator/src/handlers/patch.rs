//! PATCH: JSON patch, merge patch, strategic merge patch. An apply is delegated.

use http::{Response, StatusCode};
use serde_json::Value;
use yurt_apimachinery::options::FieldValidation;
use yurt_apimachinery::{Object, ResourceVersion, Status, WriteOptions, json_text, meta};
use yurt_codec::decoded;
use yurt_codec::negotiation::{PatchType, Shape, patch_type};
use yurt_codec::schema::{self, Message};
use yurt_codec::typed;
use yurt_patch::{
    apply_json_patch, apply_merge_patch, apply_strategic_merge_patch, read_strategic_merge_patch, show_patch,
};
use yurt_runtime::http::Body;

use super::{apply, check_version, reading, update, version_in};
use crate::admission;
use crate::registry::prepare::{self, Account};
use crate::request::Call;

/// Answers a patch. Without a resourceVersion in it, conflicts are retried here and never reach the client.
///
/// # Errors
/// The error to return.
pub(crate) async fn handle(call: &Call) -> Result<Response<Body>, Status> {
    let negotiated = call.negotiate(Shape::Object)?;
    let patch_type = patch_type(call.header(http::header::CONTENT_TYPE)).map_err(|_| unsupported(call))?;
    let options = WriteOptions::parse_patch(call.query.as_deref(), patch_type == PatchType::Apply)?;
    let Some(patch) = Patch::new(call, patch_type)? else {
        return apply::handle(call, options, negotiated).await;
    };
    decoded::check(&call.body)?;
    let manager = call.manager(&options);
    let account = Account::Writer {
        manager: &manager,
        now: call.now(),
    };
    let intent = call.intent(options.field_manager, options.dry_run);
    let is_conditional = names_version(patch_type, &call.body);
    let faults = match options.field_validation {
        FieldValidation::Ignore => Vec::new(),
        FieldValidation::Warn | FieldValidation::Strict => patch.faults(&call.body),
    };
    let key = call.key();
    let mut based_on = ResourceVersion::ZERO;
    let outcome = call.app.own.update(&call.resource, &key, &intent, |current| {
        based_on = current.resource_version();
        let mut new = reading::stored(&call.resource, current);
        patch.apply(&mut new, &call.body)?;
        let shown = |new: &Value| patch.shown(new, &call.body);
        let new = reading::patched(call, new, &faults, options.field_validation, &shown)?;
        check_identity(current, &new)?;
        let wanted = version_in(&new);
        check_version(call, current, wanted.as_deref())?;
        if wanted.is_none() && !call.resource.kind.unconditional_update {
            let resource = call.resource.kind.group_resource();
            return Err(Status::resource_version_required(&resource, current.name()));
        }
        admission::update(call, current, &new)?;
        let (old, part) = (current.stored(), update::part(call));
        let new = prepare::updated(&call.resource, old, new, part, account)?;
        update::warn(call, &new, old, part);
        Ok(update::settle(&call.resource, new, is_conditional))
    });
    let object = update::written(outcome.await?, based_on);
    call.object(StatusCode::OK, &object, negotiated)
}

/// Members that identify an object's type.
const TYPE_META: [&str; 2] = ["apiVersion", "kind"];

/// Method of a patch.
enum Patch {
    Json,
    Merge,
    /// By the merge rules of this type.
    Strategic(Message),
}

// === impl Patch ===

impl Patch {
    /// `None` for an apply. 415 for a patch type that the kind does not support: custom resources have no merge
    /// rules.
    fn new(call: &Call, patch_type: PatchType) -> Result<Option<Self>, Status> {
        let kind = call.resource.kind;
        Ok(Some(match patch_type {
            PatchType::Json => Self::Json,
            PatchType::Merge => Self::Merge,
            PatchType::StrategicMerge => {
                let schema = schema::find(&kind.group, &kind.version, &kind.kind);
                Self::Strategic(schema.ok_or_else(|| unsupported(call))?)
            }
            PatchType::Apply => return Ok(None),
        }))
    }

    fn apply(&self, object: &mut Value, body: &[u8]) -> Result<(), Status> {
        match self {
            Self::Json => apply_json_patch(object, body),
            Self::Merge => apply_merge_patch(object, body),
            Self::Strategic(schema) => {
                let kept = TYPE_META.map(|name| (name, object.get(name).cloned()));
                apply_strategic_merge_patch(object, read_strategic_merge_patch(body)?, *schema)?;
                // The patch applies to a value of the type, which cannot become one of another.
                if let Value::Object(members) = object {
                    members.extend(
                        kept.into_iter()
                            .filter_map(|(name, held)| Some((name.to_owned(), held?))),
                    );
                }
                Ok(())
            }
        }
    }

    /// Fields that the patch names twice, and members of its operations that do not exist.
    fn faults(&self, body: &[u8]) -> Vec<String> {
        match self {
            Self::Json => {
                let faults = typed::operation_faults(body).into_iter();
                faults.map(|fault| format!("json patch {fault}")).collect()
            }
            Self::Merge | Self::Strategic(_) => typed::repeated_fields(body),
        }
    }

    /// The text in a refusal: the body of a strategic merge patch, the resulting object of other patches.
    fn shown(&self, new: &Value, body: &[u8]) -> String {
        match self {
            Self::Json | Self::Merge => new.to_string(),
            Self::Strategic(_) => show_patch(&json_text::parse(body).unwrap_or_default()),
        }
    }
}

/// 415: custom resources name the types that they take, as kube-apiserver does.
fn unsupported(call: &Call) -> Status {
    if !call.resource.kind.is_custom() {
        return Status::unsupported_patch_type();
    }
    Status::unsupported_media_type(&[
        "application/json-patch+json",
        "application/merge-patch+json",
        "application/apply-patch+yaml",
    ])
}

/// True if a patch names the resourceVersion it is based on.
fn names_version(patch_type: PatchType, body: &[u8]) -> bool {
    let Ok(patch) = json_text::parse(body) else {
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

/// Refuses a patch that turns an object into another one.
fn check_identity(current: &Object, new: &Value) -> Result<(), Status> {
    let name = meta::text(new, "name");
    if name.is_empty() {
        let why = format!(
            "the name of the object ({} based on URL) was undeterminable: name must be provided",
            current.name()
        );
        return Err(Status::bad_request(why));
    }
    if name != current.name() {
        let why = format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            current.name()
        );
        return Err(Status::bad_request(why));
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
