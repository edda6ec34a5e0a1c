//! Merge patches (RFC 7396), with the effect that kube-apiserver's library (`evanphx/json-patch`) gives to them.

use serde_json::Value;
use yurt_apimachinery::{Status, json_text};

use crate::without_nulls;

/// Applies a merge patch: null deletes, lists are replaced. The library goes beyond the RFC in one point: members that
/// are null are also dropped from the objects of a list, unless the list replaces an object.
///
/// # Errors
///
/// 400 if the bytes are no JSON object.
pub fn apply_merge_patch(document: &mut Value, patch: &[u8]) -> Result<(), Status> {
    if patch.trim_ascii() == b"null" {
        return Err(Status::bad_request("Invalid JSON Patch"));
    }
    let patch = json_text::parse_object(patch)
        .map_err(|error| Status::bad_request(format!("error decoding patch: {error}")))?;
    merge(document, Value::Object(patch));
    Ok(())
}

/// Recursion is bounded by the nesting of a parsed patch.
fn merge(document: &mut Value, patch: Value) {
    match (document, patch) {
        (Value::Object(members), Value::Object(patch)) => {
            for (name, value) in patch {
                if value.is_null() {
                    members.remove(&name);
                } else {
                    merge(members.entry(name).or_insert(Value::Null), value);
                }
            }
        }
        (document @ Value::Object(_), patch) => *document = patch,
        (document, patch) => *document = without_nulls(patch),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn merged(mut document: Value, patch: &Value) -> Value {
        apply_merge_patch(&mut document, patch.to_string().as_bytes()).unwrap();
        document
    }

    #[test]
    fn objects_of_a_list_have_no_nulls() {
        let list = json!([{"b": null, "c": {"d": null}}, null, [{"e": null}]]);
        let pruned = json!([{"c": {}}, null, [{}]]);
        for (document, want) in [
            (json!({}), &pruned),
            (json!({"a": null}), &pruned),
            (json!({"a": [1]}), &pruned),
            (json!({"a": {"b": 1}}), &list),
        ] {
            assert_eq!(merged(document, &json!({ "a": list })), json!({ "a": want }));
        }
    }

    /// Conformance: 3.C02
    #[test]
    fn merge_follows_the_rfc() {
        for (document, patch, want) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (
                json!({"a": {"b": "c"}}),
                json!({"a": {"b": "d", "c": null}}),
                json!({"a": {"b": "d"}}),
            ),
            (json!({"a": [1, 2]}), json!({"a": [3]}), json!({"a": [3]})),
            (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
        ] {
            assert_eq!(merged(document, &patch), want, "{patch}");
        }
        let mut document = json!({});
        for bad in ["", "[]", "null", "1", "{"] {
            assert_eq!(
                apply_merge_patch(&mut document, bad.as_bytes()).unwrap_err().code(),
                400,
                "{bad}"
            );
        }
    }
}
