//! The table of kube-apiserver's own tests, and arbitrary text from the network.

use proptest::prelude::*;

use super::*;
use crate::status::StatusDetails;

fn parse(method: &str, url: &str) -> RequestInfo {
    let (path, query) = url
        .split_once('?')
        .map_or((url, None), |(path, query)| (path, Some(query)));
    RequestInfo::parse(method, path, query).unwrap()
}

/// "verb group/version namespace resource/subresource name", `-` for none.
fn summary(method: &str, url: &str) -> String {
    let info = parse(method, url);
    let dash = |text: &Option<String>| text.clone().unwrap_or("-".into());
    let resource = if info.is_resource {
        info.resource.clone()
    } else {
        "!".into()
    };
    format!(
        "{} {}/{} {} {}/{} {}",
        info.verb,
        info.group,
        info.version,
        dash(&info.namespace),
        resource,
        dash(&info.subresource),
        dash(&info.name)
    )
}

/// Conformance: 2.01, 2.02, 2.03
#[test]
fn resource_paths() {
    for (method, url, want) in [
        ("GET", "/api/v1/namespaces", "list /v1 - namespaces/- -"),
        ("GET", "/api/v1/namespaces/other", "get /v1 other namespaces/- other"),
        ("GET", "/api/v1/namespaces/other/pods", "list /v1 other pods/- -"),
        ("GET", "/api/v1/namespaces/other/pods/foo", "get /v1 other pods/- foo"),
        ("HEAD", "/api/v1/namespaces/other/pods/foo", "get /v1 other pods/- foo"),
        ("GET", "/api/v1/pods", "list /v1 - pods/- -"),
        (
            "GET",
            "/api/v1/namespaces/other/pods/foo/status",
            "get /v1 other pods/status foo",
        ),
        (
            "PUT",
            "/api/v1/namespaces/other/finalize",
            "update /v1 other namespaces/finalize other",
        ),
        (
            "PUT",
            "/api/v1/namespaces/other/status",
            "update /v1 other namespaces/status other",
        ),
        ("GET", "/api/v1/watch/pods", "watch /v1 - pods/- -"),
        (
            "GET",
            "/api/v1/watch/namespaces/other/pods/x",
            "watch /v1 other pods/- x",
        ),
        (
            "GET",
            "/api/v1/proxy/namespaces/other/pods/foo/a/b",
            "proxy /v1 other pods/- foo",
        ),
        ("POST", "/api/v1/namespaces/other/pods", "create /v1 other pods/- -"),
        (
            "PUT",
            "/api/v1/namespaces/other/pods/foo",
            "update /v1 other pods/- foo",
        ),
        ("PATCH", "/api/v1/nodes/n/status", "patch /v1 - nodes/status n"),
        (
            "DELETE",
            "/api/v1/namespaces/other/pods/foo",
            "delete /v1 other pods/- foo",
        ),
        (
            "DELETE",
            "/api/v1/namespaces/other/pods",
            "deletecollection /v1 other pods/- -",
        ),
        (
            "GET",
            "/apis/coordination.k8s.io/v1/leases/",
            "list coordination.k8s.io/v1 - leases/- -",
        ),
        ("TRACE", "/api/v1/pods", " /v1 - pods/- -"),
    ] {
        assert_eq!(summary(method, url), want, "{method} {url}");
    }
}

#[test]
fn other_paths() {
    for (method, url, verb) in [
        ("GET", "/", Verb::Get),
        ("GET", "/healthz", Verb::Get),
        ("POST", "/metrics", Verb::Post),
        ("GET", "/api", Verb::Get),
        ("GET", "/api/v1", Verb::Get),
        ("HEAD", "/apis/apps/v1", Verb::Head),
        ("GET", "//api/v1/pods", Verb::Get),
        ("GET", "", Verb::Get),
    ] {
        let info = parse(method, url);
        assert!(!info.is_resource, "{url}");
        assert_eq!(info.verb, verb, "{url}");
    }
}

/// Conformance: 2.05, 2.14, 2.16
#[test]
fn watch_is_a_go_boolean_and_only_without_a_name() {
    for (url, verb) in [
        ("/api/v1/pods?watch", Verb::Watch),
        ("/api/v1/pods?watch=no", Verb::Watch),
        ("/api/v1/pods?watch=0", Verb::List),
        ("/api/v1/pods?watch=False", Verb::List),
        ("/api/v1/pods?watch=0&watch=1", Verb::List),
        ("/api/v1/namespaces/a/pods/x?watch=1", Verb::Get),
        // An option that cannot be decoded does not change the verb.
        ("/api/v1/pods?watch=1&limit=x", Verb::Watch),
        ("/api/v1/pods?limit=x", Verb::List),
    ] {
        assert_eq!(parse("GET", url).verb, verb, "{url}");
    }
}

/// Conformance: 2.06
#[test]
fn name_selector_names_the_request() {
    let name = |url: &str| parse("GET", url).name;
    assert_eq!(
        name("/api/v1/nodes?fieldSelector=metadata.name%3Dn1"),
        Some("n1".into())
    );
    assert_eq!(
        name("/api/v1/nodes?watch=1&fieldSelector=metadata.name%3Dn1"),
        Some("n1".into())
    );
    assert_eq!(name("/api/v1/nodes?fieldSelector=metadata.name!%3Dn1"), None);
    assert_eq!(
        name("/api/v1/nodes?fieldSelector=metadata.name%3Da%252Fb"),
        None,
        "not a path segment"
    );
    assert_eq!(
        name("/api/v1/nodes?limit=x&fieldSelector=metadata.name%3Dn1"),
        None,
        "options are all or nothing"
    );
    assert_eq!(
        parse("DELETE", "/api/v1/nodes?fieldSelector=metadata.name%3Dn1").name,
        None
    );
}

/// Conformance: 2.11
#[test]
fn paths_are_decoded_once_and_checked() {
    assert_eq!(parse("GET", "/api/v1/nodes/a%2Db").name, Some("a-b".into()));
    let refuse = |path: &str| RequestInfo::parse("GET", path, None).unwrap_err();
    assert_eq!(
        refuse("/api/v1/nodes/..").message(),
        "Name parameter invalid: \"..\": may not be '..'"
    );
    assert_eq!(
        refuse("/api/v1/nodes/a%25b").message(),
        "Name parameter invalid: \"a%b\": may not contain '%'"
    );
    assert_eq!(refuse("/api/v1/namespaces/./pods").code(), 400);
    assert_eq!(refuse("/api/v1/nodes/%zz").code(), 400);
    assert_eq!(refuse("/api/v1/nodes/%ff").code(), 400);
    assert_eq!(refuse("/api/v1/watch").code(), 400);
}

#[test]
fn what_follows_a_subresource_is_kept() {
    let info = parse("GET", "/api/v1/namespaces/a/pods/x/proxy/b/c");
    assert_eq!(
        (info.subresource.as_deref(), info.rest.as_deref()),
        (Some("proxy"), Some("b/c"))
    );
    assert_eq!(parse("GET", "/api/v1/proxy/nodes/n/b").rest.as_deref(), Some("b"));
}

/// Conformance: 4.03
#[test]
fn forbidden_reads_like_an_authorizer() {
    let request = RequestInfo::parse("GET", "/apis/coordination.k8s.io/v1/namespaces/default/leases/n", None).unwrap();
    let status = request.forbidden("jane", "");
    assert_eq!(
        status.message(),
        "leases.coordination.k8s.io \"n\" is forbidden: User \"jane\" cannot get resource \"leases\" in API group \
         \"coordination.k8s.io\" in the namespace \"default\""
    );
    let request = RequestInfo::parse("GET", "/api/v1/nodes", None).unwrap();
    assert_eq!(
        request.forbidden("a<b>&c", "because").message(),
        "nodes is forbidden: User \"a&lt;b&gt;&amp;c\" cannot list resource \"nodes\" in API group \"\" at the cluster \
         scope: because"
    );
    let request = RequestInfo::parse("GET", "/metrics", None).unwrap();
    let status = request.forbidden("jane", "");
    assert_eq!(
        status.message(),
        "forbidden: User \"jane\" cannot get path \"/metrics\""
    );
    assert_eq!(status.details(), Some(&StatusDetails::default()));
}

proptest! {
    #[test]
    fn any_text_is_survived(method in "[A-Z]{0,7}", path in "\\PC{0,64}", query in proptest::option::of("\\PC{0,64}")) {
        let _ = RequestInfo::parse(&method, &path, query.as_deref());
    }

    #[test]
    fn any_path_of_api_words_is_survived(
        words in proptest::collection::vec(
            proptest::sample::select(vec!["api", "apis", "v1", "watch", "proxy", "namespaces", "pods", "status", "", "%2F", ".."]),
            0..10,
        ),
        method in proptest::sample::select(vec!["GET", "POST", "DELETE", "HEAD"]),
    ) {
        let path = format!("/{}", words.join("/"));
        if let Ok(info) = RequestInfo::parse(method, &path, Some("watch")) {
            prop_assert!(info.name.as_deref() != Some("..") && info.namespace.as_deref() != Some(".."));
            prop_assert!(info.is_resource || info.resource.is_empty());
        }
    }
}
