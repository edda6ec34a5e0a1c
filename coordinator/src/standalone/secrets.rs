//! Secrets: an immutable type that determines the required keys, data in base64, `stringData` as a way to write it.

use serde_json::{Value, json};
use yurt_apimachinery::status::{ErrorList, FieldError};
use yurt_apimachinery::values::config_key_errors;
use yurt_apimachinery::{Status, json_text};

use crate::registry::configmaps::{DATA_BYTES_MAX, check_frozen, decode, entries};
use crate::registry::fields::{fill, invalid, members, text};
use crate::registry::strategy::{MetaPass, Strategy};

/// Rules of `secrets`.
pub(crate) struct Secrets;

/// Annotation that names the ServiceAccount of a token.
const ACCOUNT_ANNOTATION: &str = "kubernetes.io/service-account.name";

impl Strategy for Secrets {
    fn default(&self, object: &mut Value) {
        use base64::Engine as _;
        use base64::engine::general_purpose::STANDARD;
        let written = object.as_object_mut().and_then(|members| members.remove("stringData"));
        if let (Some(Value::Object(written)), Some(data)) = (written, members(object, &["data"])) {
            for (key, value) in &written {
                let encoded = STANDARD.encode(value.as_str().unwrap_or_default());
                data.insert(key.clone(), encoded.into());
            }
        }
        if let Some(members) = members(object, &[]) {
            fill(members, "type", "Opaque");
        }
    }

    fn validate(&self, object: &Value, old: Option<&Value>) -> Result<ErrorList, Status> {
        let mut errors = ErrorList::default();
        if old.is_some_and(|old| text(old, &["type"]) != text(object, &["type"])) {
            errors.push(FieldError::invalid(
                "type",
                text(object, &["type"]),
                "field is immutable",
            ));
        }
        check_frozen(object, old, &["data"], &mut errors);
        let mut size = 0;
        for (key, value) in entries(object, "data") {
            invalid(
                &mut errors,
                format_args!("data[{key}]"),
                &key.into(),
                config_key_errors(key),
            );
            size += decode("Secret", value)?.len();
        }
        if size > DATA_BYTES_MAX {
            errors.push(FieldError::too_long("data", DATA_BYTES_MAX));
        }
        check_type(object, &mut errors);
        Ok(errors)
    }

    fn meta_passes(&self) -> &'static [MetaPass] {
        &[MetaPass::Change, MetaPass::Whole]
    }
}

/// Checks the requirements of a Secret's type.
fn check_type(object: &Value, errors: &mut ErrorList) {
    let value = |key: &str| object["data"].get(key);
    let missing = |key: &str| FieldError::required(format!("data[{key}]"), "");
    match text(object, &["type"]) {
        "kubernetes.io/service-account-token" if names_no_account(object) => {
            let field = format!("metadata.annotations[{ACCOUNT_ANNOTATION}]");
            errors.push(FieldError::required(field, ""));
        }
        "kubernetes.io/dockercfg" => check_json(object, ".dockercfg", errors),
        "kubernetes.io/dockerconfigjson" => check_json(object, ".dockerconfigjson", errors),
        "kubernetes.io/basic-auth" if value("username").is_none() && value("password").is_none() => {
            errors.extend(["username", "password"].map(missing));
        }
        "kubernetes.io/ssh-auth" if text(object, &["data", "ssh-privatekey"]).is_empty() => {
            errors.push(missing("ssh-privatekey"));
        }
        "kubernetes.io/tls" => {
            let absent = ["tls.crt", "tls.key"].into_iter().filter(|key| value(key).is_none());
            errors.extend(absent.map(missing));
        }
        _ => {}
    }
}

fn names_no_account(object: &Value) -> bool {
    text(object, &["metadata", "annotations", ACCOUNT_ANNOTATION]).is_empty()
}

fn check_json(object: &Value, key: &str, errors: &mut ErrorList) {
    let field = format!("data[{key}]");
    let Some(encoded) = object["data"].get(key).and_then(Value::as_str) else {
        return errors.push(FieldError::required(field, ""));
    };
    let bytes = decode("Secret", encoded).unwrap_or_default();
    let parsed = json_text::parse_object(&bytes);
    if parsed.is_err() {
        let why = match bytes.iter().find(|byte| !byte.is_ascii_whitespace()) {
            None => "unexpected end of JSON input".to_owned(),
            Some(b'{' | b'[' | b'"' | b'0'..=b'9' | b't' | b'f' | b'n' | b'-') => "is not a JSON object".to_owned(),
            Some(byte) => format!(
                "invalid character '{}' looking for beginning of value",
                byte.escape_ascii()
            ),
        };
        errors.push(FieldError::invalid(field, json!("<secret contents redacted>"), &why));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conformance: 3.B11
    #[test]
    fn string_data_becomes_data() {
        let mut secret = json!({"stringData": {"a": "b"}, "data": {"a": "YQ==", "c": "YQ=="}});
        Secrets.default(&mut secret);
        assert_eq!(secret, json!({"data": {"a": "Yg==", "c": "YQ=="}, "type": "Opaque"}));
        for mut odd in [
            json!({"stringData": 5, "data": 7}),
            json!({"stringData": {"a": 1}, "data": "x"}),
            json!(3),
        ] {
            Secrets.default(&mut odd);
        }
    }

    #[test]
    fn every_type_asks_for_its_keys() {
        for (kind, count) in [
            ("kubernetes.io/tls", 2),
            ("kubernetes.io/basic-auth", 2),
            ("kubernetes.io/ssh-auth", 1),
            ("kubernetes.io/dockercfg", 1),
            ("kubernetes.io/dockerconfigjson", 1),
            ("kubernetes.io/service-account-token", 1),
            ("Opaque", 0),
            ("example.com/own", 0),
        ] {
            let errors = Secrets.validate(&json!({"type": kind}), None).unwrap();
            assert_eq!(errors.len(), count, "{kind}: {errors:?}");
        }
        let broken = json!({"type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": "YQ=="}});
        assert_eq!(
            Secrets.validate(&broken, None).unwrap()[0].to_string(),
            "data[.dockerconfigjson]: Invalid value: \"<secret contents redacted>\": invalid character 'a' looking for \
             beginning of value"
        );
    }
}
