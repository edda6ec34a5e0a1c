//! The cases of kube-apiserver's own tests, and arbitrary text from the network.

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::kind::find_kind;
use crate::object::Object;

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().copied().collect()
}

fn selects(selector: &str, pairs: &[(&str, &str)]) -> bool {
    LabelSelector::parse(selector).unwrap().matches(&labels(pairs))
}

#[test]
fn labels_keep_the_last_of_equal_keys() {
    let labels = labels(&[("b", "1"), ("a", "2"), ("b", "3")]);
    assert_eq!(labels.iter().collect::<Vec<_>>(), [("a", "2"), ("b", "3")]);
    assert_eq!((labels.get("b"), labels.get("c"), labels.len()), (Some("3"), None, 2));
}

/// Conformance: 2.33
#[test]
fn label_operators() {
    let some = &[("x", "a"), ("n", "7")][..];
    for (selector, want) in [
        ("", true),
        ("x=a", true),
        ("x==a", true),
        ("x=b", false),
        ("y=a", false),
        ("x=", false),
        ("x!=b", true),
        ("x!=a", false),
        ("y!=a", true),
        ("x in (a,b)", true),
        ("x in (b)", false),
        ("x notin (b)", true),
        ("x notin (a)", false),
        ("y notin (a)", true),
        ("x", true),
        ("y", false),
        ("!y", true),
        ("! x", false),
        ("n>6", true),
        ("n>7", false),
        ("n<8", true),
        ("x>1", false),
        ("y<1", false),
        ("x=a,n in (7)", true),
        ("x=a,!n", false),
    ] {
        assert_eq!(selects(selector, some), want, "{selector}");
    }
}

/// Conformance: 2.33
#[test]
fn selector_of_kube_proxy() {
    let selector = "!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name";
    assert!(selects(selector, &[("a", "b")]));
    assert!(!selects(selector, &[("service.kubernetes.io/headless", "")]));
}

#[test]
fn canonical_text() {
    for (text, want) in [
        ("z in (c,a,,b) , a", "a,z in (,a,b,c)"),
        ("x notin ()", "x notin ()"),
        ("in in (in,notin)", "in in (in,notin)"),
        (" a == b ", "a==b"),
        ("a=,b", "a=,b"),
        ("!a,b>5", "!a,b>5"),
        ("x in (a,a)", "x in (a)"),
    ] {
        assert_eq!(LabelSelector::parse(text).unwrap().to_string(), want, "{text}");
    }
}

#[test]
fn label_selector_errors() {
    for (text, want) in [
        (
            "x=a||y=b",
            "unable to parse requirement: values[0][x]: Invalid value: \"a||y\"",
        ),
        (
            "x y",
            "unable to parse requirement: found 'y', expected: in, notin, =, ==, !=, gt, lt",
        ),
        ("x in a", "unable to parse requirement: found 'a' expected: '('"),
        ("x in (a", "unable to parse requirement: found '', expected: ',' or ')'"),
        (
            "x in (a,",
            "unable to parse requirement: found '', expected: ',', or identifier",
        ),
        (
            "x in (",
            "unable to parse requirement: found '', expected: ',', ')' or identifier",
        ),
        (",x", "found ',', expected: !, identifier, or 'end of string'"),
        ("x,", "found '', expected: identifier after ','"),
        ("!x=a", "found '=', expected: ',' or 'end of string'"),
        (
            "x>a",
            "unable to parse requirement: values[0]: Invalid value: \"a\": for 'Gt', 'Lt' operators",
        ),
        (
            "-a=b",
            "unable to parse requirement: <nil>: Invalid value: \"-a\": name part must consist of alphanumeric",
        ),
        ("!", "unable to parse requirement: found '', expected: identifier"),
    ] {
        let error = LabelSelector::parse(text).unwrap_err().to_string();
        assert!(error.starts_with(want), "{text}: {error}");
    }
}

fn pod(json: &str) -> Object {
    Object::parse(Bytes::copy_from_slice(json.as_bytes()), find_kind("", "pods").unwrap()).unwrap()
}

/// Conformance: 2.34, 2.37
#[test]
fn field_operators() {
    let pod =
        pod(r#"{"metadata":{"name":"p","namespace":"ns"},"spec":{"nodeName":"n1"},"status":{"phase":"Running"}}"#);
    for (selector, want) in [
        ("", true),
        ("metadata.name=p", true),
        ("metadata.name!=p", false),
        ("metadata.namespace==ns", true),
        ("spec.nodeName=n1,status.phase!=Failed", true),
        (
            "status.phase!=Succeeded,status.phase!=Failed,status.phase!=Unknown",
            true,
        ),
        ("spec.hostNetwork=false", true),
        ("spec.hostNetwork!=false", false),
        ("spec.restartPolicy=Always", true),
        ("status.podIP=", true),
        ("unknown=", true),
        ("unknown=x", false),
    ] {
        assert_eq!(
            FieldSelector::parse(selector).unwrap().matches(&pod),
            want,
            "{selector}"
        );
    }
}

/// Conformance: 2.34
#[test]
fn field_selector_text() {
    let selector = FieldSelector::parse(r"b=1\,2,,a!=x\=y\\").unwrap();
    assert_eq!(selector.to_string(), r"a!=x\=y\\,b=1\,2");
    assert_eq!(selector.requires("b"), Some("1,2"));
    assert_eq!(selector.requires("a"), None);
    assert_eq!(selector.requirements()[0].value, r"x=y\");
    assert!(FieldSelector::parse("=").unwrap().is_everything());
}

#[test]
fn spellings_of_a_field_selector_are_one() {
    let parse = |text| FieldSelector::parse(text).unwrap();
    assert_eq!(parse("==5,=<"), parse("=<,=5"));
    assert_eq!(parse("a==b,a=B").to_string(), "a=B,a=b");
}

#[test]
fn field_selector_errors() {
    for (text, want) in [
        ("a", "invalid selector: 'a'; can't understand 'a'"),
        ("a=b\\", "invalid field selector: invalid escape sequence: \\"),
        ("a=b\\c", "invalid field selector: invalid escape sequence: \\c"),
        ("a=b=c", "invalid field selector: unescaped character in value: 61"),
    ] {
        assert_eq!(FieldSelector::parse(text).unwrap_err().to_string(), want);
    }
}

proptest! {
    #[test]
    fn any_text_is_survived(text in "\\PC{0,40}") {
        let _ = LabelSelector::parse(&text);
        let _ = FieldSelector::parse(&text);
    }

    #[test]
    fn any_mix_of_tokens_is_survived_and_canonical_text_is_stable(
        words in proptest::collection::vec(
            proptest::sample::select(vec!["a", "b.c/d", "in", "notin", "(", ")", ",", "!", "=", "==", "!=", ">", "<", "5", " ", "é", "\0"]),
            0..12,
        ),
    ) {
        let text = words.concat();
        if let Ok(selector) = LabelSelector::parse(&text) {
            prop_assert_eq!(LabelSelector::parse(&selector.to_string()), Ok(selector));
        }
        if let Ok(selector) = FieldSelector::parse(&text) {
            prop_assert_eq!(FieldSelector::parse(&selector.to_string()), Ok(selector));
        }
    }

    #[test]
    fn a_set_is_the_union_of_its_values(value in "[a-c]", listed in proptest::collection::vec("[a-c]", 1..4)) {
        let set = format!("k in ({})", listed.join(","));
        let anti = format!("k notin ({})", listed.join(","));
        let want = listed.contains(&value);
        prop_assert_eq!(selects(&set, &[("k", &value)]), want);
        prop_assert_eq!(selects(&anti, &[("k", &value)]), !want);
    }
}
