//! Merge patches (RFC 7396).

use serde_json::Value;
use yurt_apimachinery::{Status, json_text};

/// Applies a merge patch (RFC 7396): null deletes, arrays are replaced.
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
    json_patch::merge(document, &Value::Object(patch));
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn merge(mut document: Value, patch: &Value) -> Value {
        apply_merge_patch(&mut document, patch.to_string().as_bytes()).unwrap();
        document
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
            assert_eq!(merge(document, &patch), want, "{patch}");
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
