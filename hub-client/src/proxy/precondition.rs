//! The resourceVersion that a write requires its object to have: reads and replaces it in the body. Pure.
//!
//! | body | place |
//! |---|---|
//! | object, merge patch, strategic merge patch, apply configuration | `metadata.resourceVersion` |
//! | JSON patch | `value` of each operation on `/metadata/resourceVersion` |
//! | `DeleteOptions` | `preconditions.resourceVersion` |
//!
//! Every other byte stays. YAML is not read, unless it is JSON.

use bytes::Bytes;
use serde::de::IgnoredAny;
use yurt_apimachinery::json_text::quote;
use yurt_apimachinery::{ResourceVersion, Verb};
use yurt_codec::protobuf;

use crate::filter::json::{Edit, Json};

const FIELD: &str = "resourceVersion";
const POINTER: &str = "/metadata/resourceVersion";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// Content type of a JSON patch (RFC 6902).
pub(super) const JSON_PATCH: &str = "application/json-patch+json";

/// Replaces the required RV by what `to` returns. `None` if the body has none, cannot be read, or nothing changes.
pub(super) fn replaced(
    verb: Verb,
    content_type: &str,
    body: &Bytes,
    to: &dyn Fn(ResourceVersion) -> Option<ResourceVersion>,
) -> Option<Bytes> {
    let to = |text: &str| {
        let required = ResourceVersion::parse(text)
            .ok()
            .filter(|required| !required.is_zero())?;
        to(required).map(|version| version.to_string())
    };
    let content_type = content_type.split(';').next().unwrap_or_default().trim();
    if content_type == PROTOBUF {
        // ObjectMeta.resourceVersion; DeleteOptions.preconditions.resourceVersion.
        let path: [u32; 2] = if verb == Verb::Delete { [2, 2] } else { [1, 6] };
        return protobuf::replace_text(body, &path, &to).ok()?.map(Bytes::from);
    }
    // Most patches name no RV, and are not parsed.
    memchr::memmem::find(body, FIELD.as_bytes())?;
    // Edits expect valid JSON. The cloud refuses the rest, as it is.
    serde_json::from_slice::<IgnoredAny>(body).ok()?;
    let text = Json::of(body.trim_ascii());
    let value = |value: Json<'_>| Some(quote(&to(&value.text()?)?).into_bytes());
    let edited = match (verb, content_type) {
        (_, JSON_PATCH) => text.edit_items(|operation| {
            let is_required = operation.text_at(&["path"]).is_ok_and(|path| path == POINTER);
            let edited = is_required.then(|| operation.edit_at(&["value"], &value)).flatten();
            edited.map_or(Edit::Keep, Edit::Set)
        }),
        (Verb::Delete, _) => text.edit_at(&["preconditions", FIELD], &value),
        _ => text.edit_at(&["metadata", FIELD], &value),
    };
    edited.map(Bytes::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The body after a write with RV 99 was given RV 7.
    fn mapped(verb: Verb, content_type: &str, body: &str) -> Option<String> {
        let to = |version: ResourceVersion| (version.0 == 99).then_some(ResourceVersion(7));
        let replaced = replaced(verb, content_type, &Bytes::from(body.to_owned()), &to)?;
        Some(String::from_utf8(replaced.to_vec()).unwrap())
    }

    #[test]
    fn required_version_is_replaced_and_nothing_else() {
        let object =
            r#" { "x":1.0, "metadata" : {"name":"a","resourceVersion":"99"},"spec":{"resourceVersion":"99"}} "#;
        let put = mapped(Verb::Update, "application/json; charset=utf-8", object).unwrap();
        assert_eq!(
            put,
            r#"{"x":1.0,"metadata":{"name":"a","resourceVersion":"7"},"spec":{"resourceVersion":"99"}}"#
        );
        let patch =
            r#"[{"op":"test","path":"/metadata/resourceVersion","value":"99"},{"op":"add","path":"/a","value":"99"}]"#;
        assert_eq!(
            mapped(Verb::Patch, JSON_PATCH, patch).unwrap(),
            patch.replacen("\"99\"", "\"7\"", 1)
        );
        let options = r#"{"preconditions":{"resourceVersion":"99","uid":"u"}}"#;
        assert_eq!(
            mapped(Verb::Delete, "application/json", options).unwrap(),
            options.replace("99", "7")
        );
    }

    #[test]
    fn body_without_a_known_version_stays() {
        for body in [
            "",
            "{",
            "[1]",
            "null",
            r#"{"metadata":{"resourceVersion":"98"}}"#,
            r#"{"metadata":{"resourceVersion":99}}"#,
            r#"{"metadata":{"resourceVersion":"0"}}"#,
            r#"{"status":{"resourceVersion":"99"}}"#,
            "metadata:\n  resourceVersion: \"99\"\n",
            // An edit would close what is open, and drop what follows.
            r#"{"metadata":{"resourceVersion":"99"},"data":{"a":"1""#,
            r#"{"metadata":{"resourceVersion":"99"}} x"#,
            r#"[{"path":"/metadata/resourceVersion","value":"99"},{"op":"add""#,
            r#"{"preconditions":{"resourceVersion":"99"},"#,
        ] {
            for (verb, kind) in [
                (Verb::Update, "application/json"),
                (Verb::Patch, JSON_PATCH),
                (Verb::Delete, "application/json"),
                (Verb::Update, PROTOBUF),
            ] {
                assert_eq!(mapped(verb, kind, body), None, "{verb:?} {kind} {body}");
            }
        }
    }
}
