//! Options as kube-apiserver parses and rejects them.

use proptest::prelude::*;

use super::*;
use crate::kind::{ResourceKind, find_kind};
use crate::resource_version::ResourceVersion;
use crate::verb::Verb;

fn pods() -> &'static ResourceKind {
    find_kind("", "pods").unwrap()
}

fn list(query: &str) -> Result<ListOptions, Status> {
    ListOptions::parse(Some(query), false, pods())
}

fn watch(query: &str) -> Result<ListOptions, Status> {
    ListOptions::parse(Some(query), true, pods())
}

/// Code, then field and text of every cause.
fn causes(result: Result<ListOptions, Status>) -> Vec<String> {
    let status = result.unwrap_err();
    assert_eq!(status.code(), 422, "{status}");
    assert_eq!(status.details().unwrap().kind, "ListOptions");
    assert_eq!(status.details().unwrap().group, "meta.k8s.io");
    status
        .causes()
        .iter()
        .map(|cause| format!("{}: {}", cause.field, cause.message))
        .collect()
}

#[test]
fn nothing_is_latest_everything_unlimited() {
    assert_eq!(ListOptions::parse(None, false, pods()).unwrap(), ListOptions::default());
}

/// Conformance: 2.25
#[test]
fn unset_and_zero_versions_differ() {
    assert_eq!(list("resourceVersion=").unwrap().resource_version, None);
    assert_eq!(
        list("resourceVersion=0").unwrap().resource_version,
        Some(ResourceVersion::ZERO)
    );
    assert_eq!(
        list("resourceVersion=7").unwrap().resource_version,
        Some(ResourceVersion(7))
    );
    assert_eq!(
        list("resourceVersion=abc").unwrap_err().message(),
        "invalid resource version: resourceVersion: Invalid value: \"abc\": strconv.ParseUint: parsing \"abc\": \
         invalid syntax"
    );
}

/// Conformance: 2.20
#[test]
fn list_refuses_initial_events() {
    assert_eq!(
        causes(list("sendInitialEvents=true")),
        ["sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list"]
    );
}

/// Conformance: 2.23
#[test]
fn list_match_rules() {
    let forbidden = "resourceVersionMatch: Forbidden: resourceVersionMatch";
    let cases = [
        (
            "resourceVersionMatch=Exact",
            format!("{forbidden} is forbidden unless resourceVersion is provided"),
        ),
        (
            "resourceVersionMatch=NotOlderThan&resourceVersion=1&continue=x",
            format!("{forbidden} is forbidden when continue is provided"),
        ),
        (
            "resourceVersionMatch=Exact&resourceVersion=0",
            format!("{forbidden} \"exact\" is forbidden for resourceVersion \"0\""),
        ),
        (
            "resourceVersionMatch=foo&resourceVersion=1",
            "resourceVersionMatch: Unsupported value: \"foo\": supported values: \"Exact\", \"NotOlderThan\", \"\""
                .to_owned(),
        ),
    ];
    for (query, want) in cases {
        assert_eq!(causes(list(query)), [want], "{query}");
    }
    let options = list("resourceVersionMatch=Exact&resourceVersion=5").unwrap();
    assert_eq!(options.resource_version_match, Some(ResourceVersionMatch::Exact));
}

/// Conformance: 2.21, 2.22
#[test]
fn watch_match_rules() {
    assert_eq!(
        causes(watch("sendInitialEvents=false&resourceVersion=5")),
        ["resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"]
    );
    assert_eq!(
        causes(watch("resourceVersionMatch=NotOlderThan&resourceVersion=5")),
        [
            "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is \
          provided"
        ]
    );
    assert_eq!(
        causes(watch("sendInitialEvents=true&resourceVersionMatch=Exact")).len(),
        2
    );
    let options = watch("sendInitialEvents=1&resourceVersionMatch=NotOlderThan&resourceVersion=5").unwrap();
    assert_eq!(options.send_initial_events, Some(true));
}

/// Conformance: 3.F04
#[test]
fn watch_from_nothing_starts_with_the_state() {
    for query in ["", "resourceVersion=0"] {
        let options = watch(query).unwrap();
        assert_eq!(options.send_initial_events, Some(true), "{query}");
        assert_eq!(options.resource_version_match, Some(ResourceVersionMatch::NotOlderThan));
    }
    assert_eq!(watch("resourceVersion=1").unwrap().send_initial_events, None);
    assert_eq!(list("").unwrap().send_initial_events, None);
}

/// Conformance: 2.24
#[test]
fn continue_excludes_a_version() {
    let token = ContinueToken::after(Some(ResourceVersion(7)), "a/b").encode();
    let status = list(&format!("continue={token}&resourceVersion=3")).unwrap_err();
    assert_eq!(
        status.message(),
        "specifying resource version is not allowed when using continue"
    );
    let malformed = list("continue=x&resourceVersion=3").unwrap_err();
    assert!(malformed.message().starts_with("invalid continue token:"));
    assert_eq!(
        list("continue=x&resourceVersion=0").unwrap().continue_token.as_deref(),
        Some("x")
    );
}

/// Conformance: 2.15, 2.32
#[test]
fn numbers_follow_go() {
    assert_eq!(list("limit=-5").unwrap().limit, 0);
    assert_eq!(list("limit=5").unwrap().limit, 5);
    assert_eq!(
        list("limit=").unwrap_err().message(),
        "strconv.ParseInt: parsing \"\": invalid syntax"
    );
    assert_eq!(watch("timeoutSeconds=0").unwrap().timeout_seconds, None);
    assert_eq!(watch("timeoutSeconds=9").unwrap().timeout_seconds, Some(9));
}

/// Conformance: 2.35
#[test]
fn selectors_are_parsed_and_fields_checked() {
    let options = list("labelSelector=a%3Db&fieldSelector=spec.nodeName%3Dn1").unwrap();
    assert_eq!(options.field_selector.requires("spec.nodeName"), Some("n1"));
    assert!(!options.selects_everything());
    assert_eq!(
        list("fieldSelector=spec.x%3D1").unwrap_err().message(),
        "field label not supported: spec.x"
    );
    assert_eq!(list("labelSelector=a%20b").unwrap_err().code(), 400);
    assert_eq!(
        list("fieldSelector=a").unwrap_err().message(),
        "invalid selector: 'a'; can't understand 'a'"
    );
}

/// Conformance: 2.07
#[test]
fn name_of_a_legacy_path_must_match() {
    let mut options = watch("resourceVersion=1").unwrap();
    options.require_name("x").unwrap();
    assert_eq!(options.field_selector.requires("metadata.name"), Some("x"));
    options.require_name("x").unwrap();
    let status = options.require_name("y").unwrap_err();
    assert_eq!(
        status.message(),
        "fieldSelector metadata.name doesn't match requested name"
    );
}

/// Conformance: 2.38, 2.39
#[test]
fn write_options() {
    let options = WriteOptions::parse(Some("dryRun=All&dryRun=All&fieldValidation=Strict"), Verb::Create).unwrap();
    assert!(options.dry_run);
    assert_eq!(options.field_validation, FieldValidation::Strict);
    assert_eq!(options.manager("kubectl/v1 (linux)"), "kubectl");
    assert_eq!(options.manager("a\u{7}b"), "ab");
    assert_eq!(options.manager(&"é".repeat(100)), "é".repeat(64), "128 bytes");
    assert!(!WriteOptions::parse(None, Verb::Create).unwrap().dry_run);
    let named = WriteOptions::parse(Some("fieldManager=me"), Verb::Update).unwrap();
    assert_eq!(named.manager("kubectl/v1"), "me");
}

/// Conformance: 2.38, 2.39, 2.40
#[test]
fn write_options_break_rules() {
    let status = WriteOptions::parse(Some("dryRun=x&fieldValidation=y"), Verb::Update).unwrap_err();
    assert_eq!(status.details().unwrap().kind, "UpdateOptions");
    let causes: Vec<_> = status.causes().iter().map(|cause| cause.message.as_str()).collect();
    assert_eq!(
        causes,
        [
            "Unsupported value: [\"x\"]: supported values: \"All\"",
            "Unsupported value: \"y\": supported values: \"\", \"Ignore\", \"Strict\", \"Warn\""
        ]
    );
    let long = format!("fieldManager={}", "a".repeat(129));
    let status = WriteOptions::parse(Some(&long), Verb::Patch).unwrap_err();
    assert_eq!(status.causes()[0].message, "Too long: may not be more than 128 bytes");
    assert_eq!(
        WriteOptions::parse(Some("fieldManager=a%00b"), Verb::Patch)
            .unwrap_err()
            .code(),
        422
    );
}

#[test]
fn patch_types_have_their_own_rules() {
    let fields = |query, is_apply| -> Vec<String> {
        let refused = WriteOptions::parse_patch(Some(query), is_apply).unwrap_err();
        refused.causes().iter().map(|cause| cause.field.clone()).collect()
    };
    assert_eq!(fields("force=true", false), ["force"]);
    assert_eq!(fields("force=true&dryRun=Some", true), ["fieldManager", "dryRun"]);
    let named = WriteOptions::parse_patch(Some("fieldManager=me&force=true"), true).unwrap();
    assert_eq!(named.force, Some(true));
}

/// Conformance: 2.43
#[test]
fn delete_options_of_the_body_win() {
    let body = br#"{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":0,"preconditions":{"uid":"u"}}"#;
    let options = DeleteOptions::parse(Some("gracePeriodSeconds=9"), body).unwrap();
    assert_eq!(options.grace_period_seconds, Some(0));
    assert_eq!(options.preconditions.uid.as_deref(), Some("u"));
    let options = DeleteOptions::parse(Some("gracePeriodSeconds=9&dryRun=All&orphanDependents=true"), b"").unwrap();
    assert_eq!(options.grace_period_seconds, Some(9));
    assert_eq!(options.propagation_policy, Some(PropagationPolicy::Orphan));
    assert!(options.dry_run && options.preconditions.is_empty());
}

/// Conformance: 2.44
#[test]
fn delete_options_break_rules() {
    assert_eq!(DeleteOptions::parse(None, b"{").unwrap_err().code(), 400);
    assert_eq!(
        DeleteOptions::parse(None, br#"{"kind":"Pod"}"#).unwrap_err().code(),
        400
    );
    assert_eq!(
        DeleteOptions::parse(Some("gracePeriodSeconds=x"), b"")
            .unwrap_err()
            .code(),
        400
    );
    let status = DeleteOptions::parse(Some("propagationPolicy=x"), b"").unwrap_err();
    assert_eq!(
        status.causes()[0].message,
        "Unsupported value: \"x\": supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\""
    );
    let status = DeleteOptions::parse(Some("propagationPolicy=Orphan&orphanDependents=0"), b"").unwrap_err();
    assert_eq!(status.causes()[0].reason, "FieldValueInvalid");
}

proptest! {
    #[test]
    fn any_query_is_survived(query in "\\PC{0,64}", is_watch in any::<bool>()) {
        let _ = ListOptions::parse(Some(&query), is_watch, pods());
        let _ = WriteOptions::parse(Some(&query), Verb::Create);
        let _ = DeleteOptions::parse(Some(&query), b"");
    }

    #[test]
    fn any_value_of_a_known_key_is_survived(
        pairs in proptest::collection::vec((
            proptest::sample::select(vec![
                "labelSelector", "fieldSelector", "resourceVersion", "resourceVersionMatch", "limit", "continue",
                "timeoutSeconds", "sendInitialEvents", "dryRun", "fieldManager",
            ]),
            "\\PC{0,12}",
        ), 0..5),
        is_watch in any::<bool>(),
    ) {
        let query: Vec<String> = pairs.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let query = query.join("&");
        let _ = ListOptions::parse(Some(&query), is_watch, pods());
        let _ = WriteOptions::parse(Some(&query), Verb::Patch);
    }

    #[test]
    fn any_body_is_survived(body in proptest::collection::vec(any::<u8>(), 0..64)) {
        let _ = DeleteOptions::parse(None, &body);
    }
}
