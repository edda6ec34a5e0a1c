//! Objects reduced to their metadata, for clients that ask for `PartialObjectMetadata`.

use bytes::Bytes;

use crate::object::{Object, wire};

/// `apiVersion` of the reduced form.
pub(crate) const API_VERSION: &str = "meta.k8s.io/v1";
/// `kind` of one reduced object.
pub(crate) const KIND: &str = "PartialObjectMetadata";
/// `kind` of a list of them.
pub(crate) const LIST_KIND: &str = "PartialObjectMetadataList";

const HEAD: &[u8] = br#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":"#;

/// The object's metadata, byte for byte, as a `PartialObjectMetadata`.
pub fn partial_object_metadata(object: &Object) -> Bytes {
    reduce(object.bytes()).expect("an Object must have metadata, as it has a name")
}

/// The same from an object's bytes, which may be those of a bookmark; `None` if they hold no metadata.
pub fn reduce(bytes: &Bytes) -> Option<Bytes> {
    let metadata = wire::metadata(bytes)?;
    Some([HEAD, &metadata, b"}"].concat().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::find_kind;

    #[test]
    fn metadata_is_kept_as_it_is() {
        let text = r#"{"metadata" : {"name":"a" , "z":[1.0,"}"]},"data":{"metadata":{}}}"#;
        let object = Object::parse(text.into(), find_kind("", "nodes").unwrap()).unwrap();
        assert_eq!(
            partial_object_metadata(&object),
            r#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"a" , "z":[1.0,"}"]}}"#
        );
        let head = std::str::from_utf8(HEAD).unwrap();
        assert!(head.contains(KIND) && head.contains(API_VERSION));
    }

    #[test]
    fn what_has_no_metadata_cannot_be_reduced() {
        assert_eq!(reduce(&Bytes::from_static(b"{\"kind\":\"Status\"}")), None);
        assert_eq!(reduce(&Bytes::from_static(b"[")), None);
    }
}
