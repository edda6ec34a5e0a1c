//! ConfigMaps: keys that can be file names, a limit of size, and optionally immutable contents.

use serde_json::Value;
use yurt_apimachinery::Status;
use yurt_apimachinery::status::{ErrorList, FieldError};
use yurt_apimachinery::values::config_key_errors;
use yurt_codec::base64_text;

use super::fields::{at, invalid};
use super::strategy::{MetaPass, Strategy};

/// Rules of `configmaps`.
pub(crate) struct ConfigMaps;

/// Maximum bytes of all values of a ConfigMap or Secret.
pub(crate) const DATA_BYTES_MAX: usize = 1 << 20;

impl Strategy for ConfigMaps {
    fn validate(&self, object: &Value, old: Option<&Value>) -> Result<ErrorList, Status> {
        let mut errors = ErrorList::default();
        check_frozen(object, old, &["data", "binaryData"], &mut errors);
        let mut size = 0;
        for (key, value) in entries(object, "data") {
            let field = format!("data[{key}]");
            invalid(&mut errors, &field, &key.into(), config_key_errors(key));
            if object["binaryData"].get(key).is_some() {
                let why = "duplicate of key present in binaryData";
                errors.push(FieldError::invalid(field, key, why));
            }
            size += value.len();
        }
        for (key, value) in entries(object, "binaryData") {
            invalid(
                &mut errors,
                format_args!("binaryData[{key}]"),
                &key.into(),
                config_key_errors(key),
            );
            size += decode("ConfigMap", value)?.len();
        }
        if size > DATA_BYTES_MAX {
            // The fault concerns the whole object; this is the spelling of its path.
            errors.push(FieldError::too_long("[]", DATA_BYTES_MAX));
        }
        Ok(errors)
    }

    fn meta_passes(&self) -> &'static [MetaPass] {
        &[MetaPass::Change, MetaPass::Whole]
    }
}

/// The entries of a map with text values.
pub(crate) fn entries<'a>(object: &'a Value, field: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let map = at(object, &[field]).as_object().into_iter().flatten();
    map.filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
}

/// Errors of a change that `immutable` forbids.
pub(crate) fn check_frozen(object: &Value, old: Option<&Value>, frozen: &[&str], errors: &mut ErrorList) {
    const WHY: &str = "field is immutable when `immutable` is set";
    let Some(old) = old.filter(|old| old["immutable"] == true) else {
        return;
    };
    if object["immutable"] != true {
        errors.push(FieldError::forbidden("immutable", WHY));
    }
    let changed = frozen.iter().filter(|field| object[**field] != old[**field]);
    errors.extend(changed.map(|field| FieldError::forbidden(*field, WHY)));
}

/// Decodes a value in base64.
///
/// # Errors
/// 400 with the message of Go's decoder.
pub(crate) fn decode(kind: &str, value: &str) -> Result<Vec<u8>, Status> {
    base64_text::decode(value).map_err(|error| {
        let at = match error {
            base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _) => at,
            base64::DecodeError::InvalidLength(_) | base64::DecodeError::InvalidPadding => value.len(),
        };
        let message =
            format!("{kind} in version \"v1\" cannot be handled as a {kind}: illegal base64 data at input byte {at}");
        Status::bad_request(message)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn faults(object: &Value, old: Option<&Value>) -> Vec<String> {
        let errors = ConfigMaps.validate(object, old).unwrap();
        errors.iter().map(ToString::to_string).collect()
    }

    /// Conformance: 3.B11
    #[test]
    fn frozen_contents_stay() {
        let old = json!({"data": {"k": "v"}, "immutable": true});
        assert_eq!(faults(&old, Some(&old)), [""; 0]);
        assert_eq!(
            faults(&json!({"data": {"k": "w"}}), Some(&old)),
            [
                "immutable: Forbidden: field is immutable when `immutable` is set",
                "data: Forbidden: field is immutable when `immutable` is set",
            ]
        );
    }

    #[test]
    fn size_is_limited_to_a_mebibyte() {
        let of = |size: usize| json!({"data": {"k": "x".repeat(size)}});
        for (size, count) in [(DATA_BYTES_MAX - 1, 0), (DATA_BYTES_MAX, 0), (DATA_BYTES_MAX + 1, 1)] {
            assert_eq!(faults(&of(size), None).len(), count, "{size}");
        }
        assert_eq!(
            faults(&of(DATA_BYTES_MAX + 1), None),
            ["[]: Too long: may not be more than 1048576 bytes"]
        );
    }

    #[test]
    fn base64_is_refused_as_go_refuses_it() {
        let error = decode("Secret", "not base64").unwrap_err();
        assert!(
            error.to_string().ends_with("illegal base64 data at input byte 3"),
            "{error}"
        );
        assert_eq!(decode("Secret", "YW\nI=").unwrap(), b"ab");
    }
}
