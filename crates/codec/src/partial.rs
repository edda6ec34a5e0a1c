//! Objects reduced to their metadata, for clients that ask for `PartialObjectMetadata`.

use bytes::Bytes;

use crate::negotiation::MetaVersion;
use yurt_apimachinery::{Object, json_text};

/// `kind` of one reduced object.
pub(crate) const KIND: &str = "PartialObjectMetadata";

/// The object's metadata, byte for byte, as a `PartialObjectMetadata`.
pub fn partial_object_metadata(object: &Object, version: MetaVersion) -> Bytes {
    reduce(&object.bytes(), version).expect("an Object must have metadata, as it has a name")
}

/// The same from an object's bytes, which may be those of a bookmark; `None` if they hold no metadata.
pub fn reduce(bytes: &Bytes, version: MetaVersion) -> Option<Bytes> {
    let metadata = json_text::member(bytes, "metadata")?;
    let api_version = version.api_version();
    let head = format!(r#"{{"kind":"{KIND}","apiVersion":"{api_version}","metadata":"#);
    Some([head.as_bytes(), &metadata, b"}"].concat().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use yurt_apimachinery::kind::find_kind;

    #[test]
    fn metadata_is_kept_as_it_is() {
        let text = r#"{"metadata" : {"name":"a" , "z":[1.0,"}"]},"data":{"metadata":{}}}"#;
        let object = Object::parse(text.into(), find_kind("", "nodes").unwrap()).unwrap();
        assert_eq!(
            partial_object_metadata(&object, MetaVersion::V1),
            r#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"a" , "z":[1.0,"}"]}}"#
        );
        let beta = reduce(&object.bytes(), MetaVersion::V1Beta1).unwrap();
        assert!(beta.starts_with(br#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1beta1","#));
    }
}
