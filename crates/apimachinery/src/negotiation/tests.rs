//! Which representation kube-apiserver would choose, and its refusals.

use proptest::prelude::*;

use super::*;

fn transform(accept: &str, shape: Shape) -> Result<Transform, Status> {
    negotiate(Some(accept), shape, None, None).map(|negotiated| negotiated.transform)
}

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const PARTIAL: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const PARTIAL_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

#[test]
fn json_is_found_behind_what_is_not_served() {
    let kubectl = format!("{TABLE},application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json");
    for accept in [
        "",
        " ",
        "*/*",
        "*",
        "application/json",
        "APPLICATION/JSON",
        "application/json;charset=utf-8",
        "text/html,*/*;q=0.1",
        "application/vnd.kubernetes.protobuf,application/json",
        "application/vnd.kubernetes.protobuf, */*",
        "application/json;as=Unknown;g=x;v=y,application/json",
        "application/json;stream=watch",
        kubectl.as_str(),
    ] {
        assert_eq!(transform(accept, Shape::List), Ok(Transform::None), "{accept}");
    }
    assert_eq!(negotiate(None, Shape::Object, None, None), Ok(Negotiated::default()));
}

#[test]
fn partial_metadata() {
    assert_eq!(transform(PARTIAL, Shape::Object), Ok(Transform::PartialObjectMetadata));
    assert_eq!(transform(PARTIAL, Shape::Watch), Ok(Transform::PartialObjectMetadata));
    assert_eq!(
        transform(PARTIAL_LIST, Shape::List),
        Ok(Transform::PartialObjectMetadata)
    );
    let metadata_client = format!(
        "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,{PARTIAL_LIST},application/json"
    );
    assert_eq!(
        transform(&metadata_client, Shape::List),
        Ok(Transform::PartialObjectMetadata)
    );
    let status = transform(PARTIAL, Shape::List).unwrap_err();
    assert_eq!(
        status.message(),
        "you requested PartialObjectMetadata, but the requested object is a list"
    );
    assert_eq!(transform(PARTIAL_LIST, Shape::Object).unwrap_err().code(), 406);
}

#[test]
fn quality_orders_the_clauses() {
    let accept = format!("application/json;q=0.5,{PARTIAL};q=0.9");
    assert_eq!(transform(&accept, Shape::Object), Ok(Transform::PartialObjectMetadata));
    let accept = format!("application/json,{PARTIAL}");
    assert_eq!(
        transform(&accept, Shape::Object),
        Ok(Transform::None),
        "equal quality keeps the order"
    );
    let accept = format!("*/*,{PARTIAL}");
    assert_eq!(
        transform(&accept, Shape::Object),
        Ok(Transform::PartialObjectMetadata),
        "wildcards come last"
    );
}

#[test]
fn refusals_have_two_texts() {
    for accept in ["application/*", "application/xml", "text/html", "image/png,text/*"] {
        let status = transform(accept, Shape::List).unwrap_err();
        assert_eq!(
            status.message(),
            "406: Not Acceptable\n\nAvailable representations: application/json, application/json;stream=watch",
            "{accept}"
        );
        assert!(status.details().is_some());
    }
    for accept in [
        TABLE,
        "application/vnd.kubernetes.protobuf",
        "application/yaml",
        "application/json;stream=x",
    ] {
        let status = transform(accept, Shape::Object).unwrap_err();
        assert_eq!(
            status.message(),
            "only the following media types are accepted: application/json",
            "{accept}"
        );
        assert!(status.details().is_none());
    }
    let status = transform("application/yaml", Shape::Watch).unwrap_err();
    assert_eq!(
        status.message(),
        "only the following media types are accepted: application/json;stream=watch"
    );
}

#[test]
fn people_get_indented_bodies() {
    let pretty = |shape, query, agent| negotiate(None, shape, query, agent).unwrap().pretty;
    assert!(pretty(Shape::Object, Some("pretty=true"), None));
    assert!(pretty(Shape::List, None, Some("curl/8")));
    assert!(!pretty(Shape::List, Some("pretty=0"), Some("curl/8")));
    assert!(!pretty(Shape::List, Some("pretty=yes"), Some("curl/8")));
    assert!(!pretty(Shape::List, None, Some("kubectl/1")));
    assert!(!pretty(Shape::Watch, Some("pretty=1"), Some("curl/8")));
}

#[test]
fn aggregated_discovery_is_found_anywhere() {
    let v2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    assert!(wants_aggregated_discovery(Some(v2)));
    assert!(wants_aggregated_discovery(Some(&format!(
        "application/json,{v2};profile=nopeer"
    ))));
    assert!(!wants_aggregated_discovery(Some(&v2.replace("v2;", "v2beta1;"))));
    assert!(!wants_aggregated_discovery(Some(
        &v2.replace("json", "vnd.kubernetes.protobuf")
    )));
    assert!(!wants_aggregated_discovery(None));
}

#[test]
fn bodies() {
    assert_eq!(body_format(None), Ok(Format::Json));
    assert_eq!(body_format(Some("application/json; charset=utf-8")), Ok(Format::Json));
    let status = body_format(Some("application/vnd.kubernetes.protobuf")).unwrap_err();
    assert_eq!(status.code(), 415);
    assert!(
        status
            .message()
            .ends_with("accepted media types include: application/json")
    );
    assert_eq!(
        patch_type(Some("application/merge-patch+json;x=y")),
        Ok(PatchType::Merge)
    );
    assert_eq!(
        patch_type(Some("application/json")).unwrap_err().message(),
        "415: Unsupported Media Type"
    );
    assert_eq!(patch_type(None).unwrap_err().code(), 415);
}

proptest! {
    #[test]
    fn any_text_is_survived(accept in "\\PC{0,64}", parts in proptest::collection::vec(
        proptest::sample::select(vec!["application/json", "*/*", ";", ",", "q=", "0.5", "nan", "as=Table", "=", "\"", " "]), 0..12,
    )) {
        for text in [accept.as_str(), parts.concat().as_str()] {
            let _ = negotiate(Some(text), Shape::List, Some(text), Some(text));
            let _ = (wants_aggregated_discovery(Some(text)), body_format(Some(text)), patch_type(Some(text)));
        }
    }
}
