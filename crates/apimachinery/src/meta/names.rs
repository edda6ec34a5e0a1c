//! Syntax of names, label keys and label values. Each function lists the errors of a text, with kube-apiserver's texts.

use crate::kind::NameRule;
use crate::status::FieldError;

const LABEL_FORMAT: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const SUBDOMAIN_FORMAT: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const KEY_FORMAT: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const KEY_RULE: &str =
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
const HTTP_PATH_FORMAT: &str = "[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+";
/// Longest DNS label, label value, and name part of a label key.
const LABEL_MAX_LEN: usize = 63;
/// Longest DNS subdomain.
const SUBDOMAIN_MAX_LEN: usize = 253;

/// Errors of the name of an object. A prefix is a `generateName`, which may end in a dash.
pub fn name_errors(rule: NameRule, name: &str, is_prefix: bool) -> Vec<String> {
    let masked;
    let mut name = name;
    if is_prefix && name.len() > 1 && name.ends_with('-') {
        // As kube-apiserver does: the last two bytes are replaced by one that is always allowed. If the cut is not at a
        // character boundary, the name is not ASCII and is rejected as it is.
        if let Some(head) = name.get(..name.len() - 2) {
            masked = format!("{head}a");
            name = &masked;
        }
    }
    match rule {
        NameRule::DnsSubdomain => dns_subdomain_errors(name),
        NameRule::DnsLabel => dns_label_errors(name),
        NameRule::PathSegment => path_segment_errors(name, is_prefix),
    }
}

/// Errors that no name may have, as it could not be a path segment.
fn path_segment_errors(name: &str, is_prefix: bool) -> Vec<String> {
    if !is_prefix && matches!(name, "." | "..") {
        return vec![format!("may not be '{name}'")];
    }
    let odd = ["/", "%"].into_iter().filter(|odd| name.contains(odd));
    odd.map(|odd| format!("may not contain '{odd}'")).collect()
}

/// Errors of a DNS-1123 label, such as the name of a namespace.
pub fn dns_label_errors(text: &str) -> Vec<String> {
    let mut errors = too_long(text, LABEL_MAX_LEN, "characters");
    if is_subdomain(text) && text.contains('.') {
        errors.push("must not contain dots".to_owned());
    } else if !is_dns_label(text) {
        errors.push(format!(
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and \
             end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
             '{LABEL_FORMAT}')"
        ));
    }
    errors
}

/// Errors of a DNS-1035 label, which begins with a letter.
pub fn dns_1035_label_errors(text: &str) -> Vec<String> {
    let mut errors = too_long(text, LABEL_MAX_LEN, "characters");
    if !is_dns_label(text) || text.starts_with(|c: char| c.is_ascii_digit()) {
        errors.push(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic \
             character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation \
             is '[a-z]([-a-z0-9]*[a-z0-9])?')"
                .to_owned(),
        );
    }
    errors
}

/// Errors of a DNS-1123 subdomain, such as the name of most objects.
pub fn dns_subdomain_errors(text: &str) -> Vec<String> {
    subdomain_errors(text, "characters")
}

/// Errors of the key of a label, or of any other qualified name, such as a finalizer.
pub fn label_key_errors(key: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let name = match *key.split('/').collect::<Vec<_>>() {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                errors.push("prefix part must be non-empty".to_owned());
            } else {
                errors.extend(
                    subdomain_errors(prefix, "bytes")
                        .iter()
                        .map(|error| format!("prefix part {error}")),
                );
            }
            name
        }
        _ => {
            return vec![format!(
                "a valid label key {} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
                key_rule()
            )];
        }
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    }
    errors.extend(
        too_long(name, LABEL_MAX_LEN, "bytes")
            .iter()
            .map(|error| format!("name part {error}")),
    );
    if !is_key_name(name) {
        errors.push(format!("name part {}", key_rule()));
    }
    errors
}

/// Errors of the text at `field`, which is to be a DNS subdomain, a slash and a path.
pub fn domain_prefixed_path_errors(field: &str, text: &str) -> Vec<FieldError> {
    let parts = text
        .split_once('/')
        .filter(|(host, path)| !host.is_empty() && !path.is_empty());
    let Some((host, path)) = parts else {
        let why = "must be a domain-prefixed path (such as \"acme.io/foo\")";
        return vec![FieldError::invalid(field, text, why)];
    };
    let invalid_host = |error: String| FieldError::invalid(field, host, &error);
    let mut errors: Vec<FieldError> = dns_subdomain_errors(host).into_iter().map(invalid_host).collect();
    let is_of_path = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&byte);
    if !path.bytes().all(is_of_path) {
        let why = format!("Invalid path (regex used for validation is '{HTTP_PATH_FORMAT}')");
        errors.push(FieldError::invalid(field, path, &why));
    }
    errors
}

/// Errors of the value of a label.
pub fn label_value_errors(value: &str) -> Vec<String> {
    let mut errors = too_long(value, LABEL_MAX_LEN, "bytes");
    if !value.is_empty() && !is_key_name(value) {
        errors.push(format!(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must \
             start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for \
             validation is '({KEY_FORMAT})?')"
        ));
    }
    errors
}

fn subdomain_errors(text: &str, unit: &str) -> Vec<String> {
    let mut errors = too_long(text, SUBDOMAIN_MAX_LEN, unit);
    if !is_subdomain(text) {
        errors.push(format!(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
             start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
             '{SUBDOMAIN_FORMAT}')"
        ));
    }
    errors
}

fn key_rule() -> String {
    format!("{KEY_RULE} (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{KEY_FORMAT}')")
}

fn too_long(text: &str, limit: usize, unit: &str) -> Vec<String> {
    if text.len() > limit {
        vec![format!("must be no more than {limit} {unit}")]
    } else {
        Vec::new()
    }
}

fn is_subdomain(text: &str) -> bool {
    text.split('.').all(is_dns_label)
}

fn is_dns_label(text: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !text.is_empty() && text.chars().all(is_inner) && !text.starts_with('-') && !text.ends_with('-')
}

fn is_key_name(text: &str) -> bool {
    let is_outer = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    is_outer(text.as_bytes().first()) && is_outer(text.as_bytes().last()) && text.bytes().all(is_inner)
}
