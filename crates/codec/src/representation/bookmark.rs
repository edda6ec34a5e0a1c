//! JSON of a bookmark's object.

use bytes::Bytes;
use yurt_apimachinery::ResourceVersion;
use yurt_apimachinery::json_text::quote;

/// The beginning of an object, up to its type.
pub(super) fn head(kind: &str, api_version: &str) -> String {
    format!(r#"{{"kind":{},"apiVersion":{}"#, quote(kind), quote(api_version))
}

/// The object of a bookmark.
pub(super) fn object(kind: &str, api_version: &str, version: ResourceVersion, annotations: &[(&str, &str)]) -> Bytes {
    let mut object = head(kind, api_version);
    object.push_str(&format!(r#","metadata":{{"resourceVersion":"{version}""#));
    if !annotations.is_empty() {
        let pairs: Vec<String> = annotations
            .iter()
            .map(|(key, value)| format!("{}:{}", quote(key), quote(value)))
            .collect();
        object.push_str(&format!(r#","annotations":{{{}}}"#, pairs.join(",")));
    }
    object.push_str("}}");
    object.into()
}
