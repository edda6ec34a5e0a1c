//! Choice of the representation as in kube-apiserver, and its rejections.

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use yurt_apimachinery::kind::find_kind;

fn choose(accept: &str, shape: Shape, has_protobuf: bool) -> Result<(Format, Transform), Status> {
    let negotiated = negotiate(Some(accept), shape, has_protobuf, None, None);
    negotiated.map(|negotiated| (negotiated.format, negotiated.transform))
}

fn transform(accept: &str, shape: Shape) -> Result<Transform, Status> {
    choose(accept, shape, true).map(|chosen| chosen.1)
}

const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const PARTIAL: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const PARTIAL_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const REDUCED: Transform = Transform::PartialObjectMetadata(MetaVersion::V1);

/// Conformance: 2.50, 2.51, 2.57, 2.58
#[test]
fn json_is_found() {
    for accept in [
        "",
        " ",
        "*/*",
        "*",
        "application/json",
        "APPLICATION/JSON",
        "application/json;charset=utf-8",
        "text/html,*/*;q=0.1",
        "application/json;as=Unknown;g=x;v=y,application/json",
        "application/json;stream=watch",
        "application/cbor,application/json",
        "application/yaml;q=0.5,application/json",
    ] {
        assert_eq!(
            choose(accept, Shape::List, true),
            Ok((Format::Json, Transform::None)),
            "{accept}"
        );
    }
    assert_eq!(
        negotiate(None, Shape::Object, true, None, None),
        Ok(Negotiated::default())
    );
}

/// Conformance: 2.52, 2.53, 2.54
#[test]
fn protobuf_is_for_built_in_kinds() {
    let typed_client = "application/vnd.kubernetes.protobuf,application/json";
    assert_eq!(
        choose(typed_client, Shape::Watch, true),
        Ok((Format::Protobuf, Transform::None))
    );
    assert_eq!(
        choose(typed_client, Shape::Watch, false),
        Ok((Format::Json, Transform::None))
    );
    assert_eq!(
        choose("application/vnd.kubernetes.protobuf, */*", Shape::List, false),
        Ok((Format::Json, Transform::None))
    );
    assert_eq!(choose(PROTOBUF, Shape::Object, false).unwrap_err().code(), 406);
    let streams = "application/vnd.kubernetes.protobuf;stream=watch";
    assert_eq!(
        choose(streams, Shape::Object, true),
        Ok((Format::Protobuf, Transform::None))
    );
    assert_eq!(
        choose(
            "application/json,application/vnd.kubernetes.protobuf",
            Shape::List,
            true
        )
        .unwrap()
        .0,
        Format::Json
    );
    let watch = negotiate(Some(PROTOBUF), Shape::Watch, true, None, None).unwrap();
    assert_eq!(
        watch.content_type(Shape::Watch),
        "application/vnd.kubernetes.protobuf;stream=watch"
    );
    assert_eq!(watch.content_type(Shape::List), PROTOBUF);
}

/// Conformance: 2.58
#[test]
fn yaml_has_no_stream() {
    assert_eq!(
        choose("application/yaml", Shape::List, true),
        Ok((Format::Yaml, Transform::None))
    );
    for accept in ["application/yaml", "application/yaml,application/json"] {
        let status = choose(accept, Shape::Watch, true).unwrap_err();
        assert_eq!(
            status.message(),
            "only the following media types are accepted: application/json;stream=watch, \
             application/vnd.kubernetes.protobuf;stream=watch"
        );
    }
    assert_eq!(
        choose("application/yaml;stream=watch,application/json", Shape::Watch, true)
            .unwrap()
            .0,
        Format::Json
    );
}

/// Conformance: 2.55
#[test]
fn partial_metadata() {
    assert_eq!(transform(PARTIAL, Shape::Object), Ok(REDUCED));
    assert_eq!(transform(PARTIAL, Shape::Watch), Ok(REDUCED));
    assert_eq!(transform(PARTIAL_LIST, Shape::List), Ok(REDUCED));
    let metadata_client = format!(
        "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,{PARTIAL_LIST},application/json"
    );
    // Custom resources, too.
    assert_eq!(
        choose(&metadata_client, Shape::List, false),
        Ok((Format::Protobuf, REDUCED))
    );
    let beta = PARTIAL.replace("v=v1", "v=v1beta1");
    assert_eq!(
        transform(&beta, Shape::Object),
        Ok(Transform::PartialObjectMetadata(MetaVersion::V1Beta1))
    );
    let misfit = |accept, shape| {
        let negotiated = negotiate(Some(accept), shape, true, None, None).unwrap();
        let status = negotiated
            .check(find_kind("", "configmaps").unwrap(), shape)
            .unwrap_err();
        (status.code(), status.message().to_owned())
    };
    assert_eq!(
        misfit(PARTIAL, Shape::List),
        (
            406,
            "you requested PartialObjectMetadata, but the requested object is a list (*core.ConfigMapList)".to_owned()
        )
    );
    assert_eq!(
        misfit(PARTIAL_LIST, Shape::Object),
        (
            406,
            "you requested PartialObjectMetadataList, but the requested object is not a list (*core.ConfigMap)"
                .to_owned()
        )
    );
    assert_eq!(transform(PARTIAL_LIST, Shape::Watch), Ok(Transform::None));
}

/// Conformance: 1.31, 2.56
#[test]
fn tables_come_in_text() {
    let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
    let table = |version, include| Transform::Table(TableOptions { version, include });
    let plain = table(MetaVersion::V1, Include::Metadata);
    for shape in [Shape::Object, Shape::List, Shape::Watch] {
        assert_eq!(choose(kubectl, shape, true), Ok((Format::Json, plain)));
    }
    let beta = "application/json;as=Table;v=v1beta1;g=meta.k8s.io";
    assert_eq!(
        transform(beta, Shape::List),
        Ok(table(MetaVersion::V1Beta1, Include::Metadata))
    );
    let protobuf_first = format!("{PROTOBUF};as=Table;v=v1;g=meta.k8s.io,{JSON}");
    assert_eq!(transform(&protobuf_first, Shape::List), Ok(Transform::None));
    let with = |query| negotiate(Some(kubectl), Shape::List, true, Some(query), None).map(|chosen| chosen.transform);
    assert_eq!(
        with("includeObject=Object"),
        Ok(table(MetaVersion::V1, Include::Object))
    );
    assert_eq!(with("includeObject=None"), Ok(table(MetaVersion::V1, Include::None)));
    assert_eq!(with("includeObject=Some").unwrap_err().code(), 400);
}

/// Conformance: 2.51
#[test]
fn quality_orders_the_clauses() {
    let accept = format!("application/json;q=0.5,{PARTIAL};q=0.9");
    assert_eq!(transform(&accept, Shape::Object), Ok(REDUCED));
    let accept = format!("application/json,{PARTIAL}");
    assert_eq!(
        transform(&accept, Shape::Object),
        Ok(Transform::None),
        "equal quality keeps the order"
    );
    let accept = format!("*/*,{PARTIAL}");
    assert_eq!(transform(&accept, Shape::Object), Ok(REDUCED), "wildcards come last");
}

/// Conformance: 2.52, 4.06
#[test]
fn refusals_have_two_texts() {
    for accept in ["application/*", "application/xml", "text/html", "image/png,text/*"] {
        let status = transform(accept, Shape::List).unwrap_err();
        assert_eq!(
            status.message(),
            "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, \
             application/vnd.kubernetes.protobuf, application/json;stream=watch, \
             application/vnd.kubernetes.protobuf;stream=watch",
            "{accept}"
        );
        assert!(status.details().is_some());
    }
    for accept in [
        "application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1",
        "application/json;as=Unknown;g=meta.k8s.io;v=v1",
        "application/json;stream=x",
        "application/json;sv=v7",
    ] {
        let status = transform(accept, Shape::Object).unwrap_err();
        assert_eq!(
            status.message(),
            "only the following media types are accepted: application/json, application/yaml, \
             application/vnd.kubernetes.protobuf",
            "{accept}"
        );
        assert!(status.details().is_none());
    }
}

/// Conformance: 2.59
#[test]
fn failures_are_never_refused() {
    let format = |accept: &str| Negotiated::of_status(Some(accept), true).format;
    assert_eq!(Negotiated::of_status(None, true), Negotiated::default());
    assert!(Negotiated::of_status(Some("image/png"), true).pretty);
    assert_eq!(format(PROTOBUF), Format::Protobuf);
    assert_eq!(format("application/yaml"), Format::Yaml);
    assert_eq!(Negotiated::of_status(Some(PROTOBUF), false).format, Format::Json);
    for accept in ["image/png", "application/json;as=Table;g=meta.k8s.io;v=v1", JSON, "*/*"] {
        assert_eq!(format(accept), Format::Json, "{accept}");
    }
    let table_then_protobuf = format!("application/json;as=Table;g=meta.k8s.io;v=v1,{PROTOBUF}");
    assert_eq!(format(&table_then_protobuf), Format::Protobuf);
}

/// Conformance: 2.42
#[test]
fn people_get_indented_bodies() {
    let pretty = |shape, query, agent| negotiate(None, shape, true, query, agent).unwrap().pretty;
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

/// Conformance: 2.60, 2.61, 4.11
#[test]
fn media_types_of_bodies() {
    assert_eq!(body_format(None), Ok(Format::Json));
    assert_eq!(body_format(Some("application/json; charset=utf-8")), Ok(Format::Json));
    assert_eq!(body_format(Some("application/yaml")), Ok(Format::Yaml));
    assert_eq!(body_format(Some(PROTOBUF)), Ok(Format::Protobuf));
    let status = body_format(Some("application/cbor")).unwrap_err();
    assert_eq!(status.code(), 415);
    assert_eq!(
        status.message(),
        "the body of the request was in an unknown format - accepted media types include: application/json, \
         application/yaml, application/vnd.kubernetes.protobuf"
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

fn config_map(format: Format, body: &[u8]) -> Result<String, Status> {
    let body = Bytes::copy_from_slice(body);
    body_json(format, "v1", "ConfigMap", &body).map(|json| String::from_utf8(json.to_vec()).unwrap())
}

/// Conformance: 3.G04
#[test]
fn bodies_become_json() {
    let envelope = |api_version: &str, kind: &str| crate::protobuf::envelope(api_version, kind, b"\x0a\x03\x0a\x01a");
    let named = r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"}}"#;
    assert_eq!(
        config_map(Format::Protobuf, &envelope("v1", "ConfigMap")).unwrap(),
        named
    );
    assert_eq!(
        config_map(Format::Protobuf, &envelope("", "")).unwrap(),
        named,
        "the endpoint's kind"
    );
    let other = crate::protobuf::envelope("v1", "DeleteOptions", b"\x08\x00");
    assert_eq!(
        config_map(Format::Protobuf, &other).unwrap(),
        r#"{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":0}"#,
        "refused later for its type"
    );
    assert_eq!(config_map(Format::Json, b"anything").unwrap(), "anything");
    let empty = config_map(Format::Protobuf, b"").unwrap_err();
    assert!(empty.message().ends_with("empty data (<empty>)"), "{empty}");
    assert_eq!(
        config_map(Format::Yaml, b"kind: ConfigMap\n").unwrap(),
        r#"{"kind":"ConfigMap"}"#
    );
}

#[test]
fn options_of_a_delete_are_read_in_the_version_of_any_group() {
    for version in [
        "v1",
        "meta.k8s.io/v1",
        "coordination.k8s.io/v1",
        "apps.openyurt.io/v1beta2",
    ] {
        let body = crate::protobuf::envelope(version, "DeleteOptions", b"\x08\x00\x2a\x03All");
        let json = body_json(Format::Protobuf, "v1", "DeleteOptions", &body.into()).unwrap();
        let want =
            format!(r#"{{"kind":"DeleteOptions","apiVersion":"{version}","gracePeriodSeconds":0,"dryRun":["All"]}}"#);
        assert_eq!(json, want);
    }
}

/// Conformance: 2.54, 3.G04
#[test]
fn bodies_that_cannot_be_read_are_400() {
    let message = |format, body: &[u8]| {
        let status = config_map(format, body).unwrap_err();
        assert_eq!((status.code(), status.reason()), (400, "BadRequest"));
        status.message().to_owned()
    };
    assert_eq!(
        message(Format::Protobuf, b"{\"kind\":\"ConfigMap\"}"),
        "the object provided is unrecognized (must be of type ConfigMap): provided data does not appear to be a protobuf \
         message, expected prefix [107 56 115 0] ({\"kind\":\"ConfigMap\"})"
    );
    let cut = crate::protobuf::envelope("v1", "ConfigMap", b"\x0a\x05");
    assert_eq!(
        message(Format::Protobuf, &cut),
        "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: unexpected EOF"
    );
    let unknown = crate::protobuf::envelope("example.com/v9", "Thing", b"\x0a\x03\x0a\x01a");
    assert_eq!(
        message(Format::Protobuf, &unknown),
        "Thing in version \"v9\" cannot be handled as a ConfigMap: no kind \"Thing\" is registered for version \
         \"example.com/v9\""
    );
    assert!(
        message(Format::Yaml, b"a: [").starts_with("couldn't get version/kind; json parse error: error converting")
    );
    let custom = body_json(
        Format::Protobuf,
        "apps.openyurt.io/v1beta1",
        "NodePool",
        &Bytes::from_static(b"k8s\0"),
    );
    assert_eq!(custom.unwrap_err().code(), 415);
}

proptest! {
    #[test]
    fn any_text_is_survived(accept in "\\PC{0,64}", parts in proptest::collection::vec(
        proptest::sample::select(vec!["application/json", "*/*", ";", ",", "q=", "0.5", "nan", "as=Table", "=", "\"", " "]), 0..12,
    )) {
        for text in [accept.as_str(), parts.concat().as_str()] {
            let _ = negotiate(Some(text), Shape::List, true, Some(text), Some(text));
            let _ = (wants_aggregated_discovery(Some(text)), body_format(Some(text)), patch_type(Some(text)));
        }
    }
}
