//! Texts and numbers that a field accepts, by its type, and Go's texts for those that it rejects.

use crate::base64_text;
use crate::schema::FieldType;
use yurt_apimachinery::time::{MicroTime, Time};

/// True if strings may be values of the type.
pub(super) fn takes_text(ty: FieldType) -> bool {
    !matches!(
        ty,
        FieldType::Bool | FieldType::Int32 | FieldType::Int64 | FieldType::StringList
    )
}

/// Fault of a text as a value of the type, which takes texts.
pub(super) fn text_fault(ty: FieldType, text: &str) -> Option<String> {
    match ty {
        FieldType::Time => Time::parse(text).err().map(|error| error.to_string()),
        FieldType::MicroTime => MicroTime::parse(text).err().map(|error| error.to_string()),
        FieldType::Bytes => base64_fault(text),
        FieldType::Quantity => quantity_fault(text),
        _ => None,
    }
}

/// True if a number is a value of the type.
pub(super) fn number_fits(ty: FieldType, number: &serde_json::Number) -> bool {
    match ty {
        FieldType::Int64 => number.is_i64(),
        FieldType::Int32 | FieldType::IntOrString => {
            number.as_i64().is_some_and(|number| i32::try_from(number).is_ok())
        }
        FieldType::Quantity | FieldType::FieldsV1 | FieldType::RawExtension => true,
        _ => false,
    }
}

/// Go's text for a string that is not base64.
fn base64_fault(text: &str) -> Option<String> {
    let is_alphabet = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=');
    base64_text::decode(text).err().map(|_| {
        let at = text.find(|c| !is_alphabet(c)).unwrap_or(text.len() / 4 * 4);
        format!("illegal base64 data at input byte {at}")
    })
}

/// The pattern of quantities, coarsely: a number, then a suffix.
fn quantity_fault(text: &str) -> Option<String> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let suffix = unsigned.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let has_digits = unsigned[..unsigned.len() - suffix.len()].contains(|c: char| c.is_ascii_digit());
    let exponent = suffix
        .strip_prefix(['e', 'E'])
        .map(|rest| rest.strip_prefix(['+', '-']).unwrap_or(rest));
    let is_exponent = exponent.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()));
    let is_known = matches!(
        suffix,
        "" | "n" | "u" | "m" | "k" | "M" | "G" | "T" | "P" | "E" | "Ki" | "Mi" | "Gi" | "Ti" | "Pi" | "Ei"
    );
    if has_digits && (is_known || is_exponent) {
        return None;
    }
    Some("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'".to_owned())
}
