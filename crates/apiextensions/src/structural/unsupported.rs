//! Parts of a schema that cannot be enforced: rejected if objects would be wrong, listed if a rule is left out.

use serde_json::Value;

use super::formats;
use super::pattern::Pattern;

/// Most fields that are named.
const NAMED_MAX: usize = 20;

/// Rejects a schema with a pattern that is no regular expression, or one that needs classes of Unicode (`\p{…}`).
///
/// # Errors
/// The field of the schema, as kube-apiserver names it, and the reason.
pub fn check(schema: &Value) -> Result<(), String> {
    let mut error = None;
    walk(schema, String::new(), &mut |path, schema| {
        if let (None, Some(Err(why))) = (&error, Pattern::of(schema)) {
            error = Some(format!("{path}pattern: {}: {why}", schema["pattern"]));
        }
    });
    error.map_or(Ok(()), Err)
}

/// The fields whose rules in CEL, or whose formats, are not enforced.
pub fn not_enforced(schema: &Value) -> Vec<String> {
    let mut fields = Vec::new();
    walk(schema, String::new(), &mut |path, schema| {
        if schema["x-kubernetes-validations"]
            .as_array()
            .is_some_and(|rules| !rules.is_empty())
        {
            fields.push(format!("{path}x-kubernetes-validations"));
        }
        if formats::is_missed(schema) {
            fields.push(format!("{path}format"));
        }
    });
    fields.truncate(NAMED_MAX);
    fields
}

/// Visits a schema and all within it. A path ends with a dot, or is empty.
fn walk<'a>(schema: &'a Value, path: String, visit: &mut impl FnMut(&str, &'a Value)) {
    visit(&path, schema);
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        walk(inner, format!("{path}properties[{name}]."), visit);
    }
    for name in ["allOf", "anyOf", "oneOf"] {
        for (index, inner) in schema[name].as_array().into_iter().flatten().enumerate() {
            walk(inner, format!("{path}{name}[{index}]."), visit);
        }
    }
    for name in ["items", "additionalProperties", "not"] {
        if schema[name].is_object() {
            walk(&schema[name], format!("{path}{name}."), visit);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn patterns_that_cannot_be_looked_for_are_refused_by_name() {
        let with = |pattern: &str| {
            let text = json!({"type": "string", "pattern": pattern});
            json!({"properties": {"spec": {"properties": {"list": {"items": {"anyOf": [{}, text]}}}}}})
        };
        assert_eq!(check(&with(r"^[a-z]([-a-z0-9]*\.)?\/$")), Ok(()));
        for bad in ["(unfinished", r"\p{L}+", r"(?=look)ahead", &"a".repeat(20_000)] {
            let why = check(&with(bad)).unwrap_err();
            let field = "properties[spec].properties[list].items.anyOf[1].pattern: ";
            assert!(why.starts_with(field), "{why}");
        }
    }

    #[test]
    fn rules_that_are_left_out_are_named() {
        let schema = json!({"properties": {
            "a": {"x-kubernetes-validations": [{"rule": "self > 0"}]},
            "b": {"additionalProperties": {"type": "string", "format": "isbn"}},
            "c": {"type": "string", "format": "date-time", "x-kubernetes-validations": []}}});
        let named = [
            "properties[a].x-kubernetes-validations",
            "properties[b].additionalProperties.format",
        ];
        assert_eq!(not_enforced(&schema), named);
    }
}
