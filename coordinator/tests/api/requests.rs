//! The rules of requests over HTTP: the meaning of path, query and body, and the messages of refusals.

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use crate::harness::{Answer, Client, Server, config_map, rv};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
const PODS: &str = "/api/v1/namespaces/default/pods";
const JSON: &str = "application/json";
const YAML: &str = "application/yaml";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const HERE: &str = "in the namespace \"default\"";
const EVERYWHERE: &str = "at the cluster scope";
/// Method and path, and the parts of the refusal: object, verb, resource and scope.
const REFUSALS: [(&str, &str, &str, &str, &str, &str); 20] = [
    (
        "GET",
        "/api/v1/namespaces/default/configmaps/a",
        "configmaps \"a\"",
        "get",
        "configmaps",
        HERE,
    ),
    (
        "GET",
        "/api/v1/namespaces/default/configmaps/a?watch=1",
        "configmaps \"a\"",
        "get",
        "configmaps",
        HERE,
    ),
    ("GET", MAPS, "configmaps", "list", "configmaps", HERE),
    (
        "GET",
        "/api/v1/namespaces/default/configmaps?limit=x",
        "configmaps",
        "list",
        "configmaps",
        HERE,
    ),
    (
        "GET",
        "/api/v1/namespaces/default/configmaps?watch=False",
        "configmaps",
        "list",
        "configmaps",
        HERE,
    ),
    (
        "GET",
        "/api/v1/namespaces/default/configmaps?fieldSelector=metadata.name%3Da",
        "configmaps \"a\"",
        "list",
        "configmaps",
        HERE,
    ),
    (
        "GET",
        "/api/v1/namespaces/default/configmaps?watch",
        "configmaps",
        "watch",
        "configmaps",
        HERE,
    ),
    (
        "GET",
        "/api/v1/namespaces/default/configmaps?watch=1&limit=x",
        "configmaps",
        "watch",
        "configmaps",
        HERE,
    ),
    (
        "GET",
        "/api/v1/namespaces/default/configmaps?fieldSelector=metadata.name%3Da&watch=1",
        "configmaps \"a\"",
        "watch",
        "configmaps",
        HERE,
    ),
    (
        "GET",
        "/api/v1/configmaps",
        "configmaps",
        "list",
        "configmaps",
        EVERYWHERE,
    ),
    ("POST", MAPS, "configmaps", "create", "configmaps", HERE),
    (
        "PUT",
        "/api/v1/namespaces/default/configmaps/a",
        "configmaps \"a\"",
        "update",
        "configmaps",
        HERE,
    ),
    (
        "PATCH",
        "/api/v1/namespaces/default/configmaps/a",
        "configmaps \"a\"",
        "patch",
        "configmaps",
        HERE,
    ),
    (
        "DELETE",
        "/api/v1/namespaces/default/configmaps/a",
        "configmaps \"a\"",
        "delete",
        "configmaps",
        HERE,
    ),
    ("DELETE", MAPS, "configmaps", "deletecollection", "configmaps", HERE),
    (
        "GET",
        "/api/v1/namespaces",
        "namespaces",
        "list",
        "namespaces",
        EVERYWHERE,
    ),
    (
        "GET",
        "/api/v1/namespaces/default",
        "namespaces \"default\"",
        "get",
        "namespaces",
        HERE,
    ),
    (
        "PUT",
        "/api/v1/namespaces/default/status",
        "namespaces \"default\"",
        "update",
        "namespaces/status",
        HERE,
    ),
    (
        "PUT",
        "/api/v1/namespaces/default/finalize",
        "namespaces \"default\"",
        "update",
        "namespaces/finalize",
        HERE,
    ),
    (
        "GET",
        "/api/v1/namespaces/default/pods/p/status",
        "pods \"p\"",
        "get",
        "pods/status",
        HERE,
    ),
];
/// Query of a list or watch, and the field and message of the cause of its refusal.
const BAD_OPTIONS: [(&str, &str, &str); 7] = [
    (
        "sendInitialEvents=true",
        "sendInitialEvents",
        "Forbidden: sendInitialEvents is forbidden for list",
    ),
    (
        "resourceVersionMatch=Exact",
        "resourceVersionMatch",
        "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
    ),
    (
        "resourceVersionMatch=NotOlderThan&resourceVersion=1&continue=x",
        "resourceVersionMatch",
        "Forbidden: resourceVersionMatch is forbidden when continue is provided",
    ),
    (
        "resourceVersionMatch=Exact&resourceVersion=0",
        "resourceVersionMatch",
        "Forbidden: resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
    ),
    (
        "resourceVersionMatch=foo&resourceVersion=1",
        "resourceVersionMatch",
        "Unsupported value: \"foo\": supported values: \"Exact\", \"NotOlderThan\", \"\"",
    ),
    (
        "watch=1&sendInitialEvents=false&resourceVersion=5",
        "resourceVersionMatch",
        "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
    ),
    (
        "watch=1&resourceVersionMatch=NotOlderThan&resourceVersion=5",
        "resourceVersionMatch",
        "Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
    ),
];

fn names(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().expect("items are never null");
    items
        .iter()
        .filter_map(|item| item["metadata"]["name"].as_str())
        .collect()
}

/// The body as it was sent: the order of its fields counts.
#[track_caller]
fn text(answer: &Answer, code: u16) -> &str {
    let text = std::str::from_utf8(&answer.bytes).unwrap();
    assert_eq!(answer.code, code, "{text}");
    text
}

/// The refusal of a user without rights shows how a request was parsed.
///
/// Conformance: 2.01, 2.02, 2.03, 2.05, 2.06, 2.14, 2.16, 4.03
#[tokio::test]
async fn refusal_names_the_verb_and_the_object_that_were_asked_for() {
    let server = Server::standalone().await;
    let jane = server.user("jane", &[]);
    for (method, path, object, verb, resource, scope) in REFUSALS {
        let method: Method = method.parse().unwrap();
        let json_patch = [("content-type", "application/merge-patch+json")];
        let refused = jane.send(method.clone(), path, Some(&json!({})), &json_patch).await;
        let want = format!(
            "{object} is forbidden: User \"jane\" cannot {verb} resource \"{resource}\" in API group \"\" {scope}"
        );
        assert_eq!(refused.expect(403)["message"], want, "{method} {path}");
    }
    let refused = jane.get(&format!("{LEASES}/n")).await;
    let want = concat!(
        r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","#,
        r#""message":"leases.coordination.k8s.io \"n\" is forbidden: User \"jane\" cannot get resource \"leases\" in API group "#,
        r#"\"coordination.k8s.io\" in the namespace \"default\"","reason":"Forbidden","#,
        r#""details":{"name":"n","group":"coordination.k8s.io","kind":"leases"},"code":403}"#
    );
    assert_eq!(text(&refused, 403).trim_end(), want);
    let refused = jane.get("/metrics").await.expect(403);
    assert_eq!(
        refused["message"],
        "forbidden: User \"jane\" cannot get path \"/metrics\""
    );
}

/// Conformance: 2.05, 2.07, 2.11, 2.13, 2.14, 2.15, 2.16, 2.32
#[tokio::test]
async fn queries_and_names_are_read_as_go_reads_them() {
    let server = Server::standalone().await;
    let admin = server.admin();
    for name in ["a", "b-c"] {
        admin.post(MAPS, &config_map(name, "1")).await.expect(201);
    }
    for (query, count) in [
        ("limit=1&limit=5", 1),
        ("unheard=of&limit=1", 1),
        ("limit=0", 2),
        ("limit=-1", 2),
        ("watch=0", 2),
        ("watch=False", 2),
        ("watch=0&watch=1", 2),
    ] {
        let list = admin.get(&format!("{MAPS}?{query}")).await.expect(200);
        assert_eq!(
            (&list["kind"], names(&list).len()),
            (&json!("ConfigMapList"), count),
            "{query}"
        );
    }
    for query in ["watch", "watch=no", "watch=1&watch=0"] {
        let stream = admin.get(&format!("{MAPS}?{query}&timeoutSeconds=1")).await;
        assert!(
            stream.bytes.starts_with(br#"{"type":"ADDED","object":{"#),
            "{query}: {}",
            stream.body
        );
    }
    for query in ["limit=x", "watch=1&limit=x"] {
        let refused = admin.get(&format!("{MAPS}?{query}")).await.expect(400);
        assert_eq!(refused["message"], "strconv.ParseInt: parsing \"x\": invalid syntax");
    }
    for path in ["a?watch=1", "b%2Dc"] {
        let one = admin.get(&format!("{MAPS}/{path}")).await.expect(200);
        assert_eq!(one["kind"], "ConfigMap", "{path}");
    }
    for (name, why) in [
        ("..", "may not be '..'"),
        ("%2e%2e", "may not be '..'"),
        ("a%25b", "may not contain '%'"),
    ] {
        let refused = admin.get(&format!("{MAPS}/{name}")).await.expect(400);
        assert!(refused["message"].as_str().unwrap().ends_with(why), "{name}: {refused}");
    }
    let refused = admin
        .get("/api/v1/watch/namespaces/default/configmaps/a?timeoutSeconds=1&fieldSelector=metadata.name%3Db")
        .await
        .expect(400);
    assert_eq!(
        refused["message"],
        "fieldSelector metadata.name doesn't match requested name"
    );
}

/// Conformance: 2.20, 2.21, 2.22, 2.23, 2.25, 2.35, 4.01
#[tokio::test]
async fn options_of_lists_and_watches_are_held_to_their_rules() {
    let server = Server::standalone().await;
    let admin = server.admin();
    for (query, field, why) in BAD_OPTIONS {
        let refused = admin.get(&format!("{MAPS}?{query}")).await.expect(422);
        let details = &refused["details"];
        assert_eq!(
            (&refused["reason"], &details["group"], &details["kind"]),
            (&json!("Invalid"), &json!("meta.k8s.io"), &json!("ListOptions")),
            "{query}"
        );
        let cause = &details["causes"][0];
        assert_eq!(
            (&cause["field"], &cause["message"]),
            (&json!(field), &json!(why)),
            "{query}"
        );
    }
    for (path, why) in [
        (
            format!("{MAPS}?resourceVersion=abc"),
            "invalid resource version: resourceVersion: Invalid value: \"abc\": strconv.ParseUint: parsing \"abc\": \
             invalid syntax",
        ),
        (
            format!("{MAPS}?fieldSelector=spec.x%3D1"),
            "\"spec.x\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
        ),
        (
            format!("{PODS}?watch=1&fieldSelector=spec.x%3D1"),
            "field label not supported: spec.x",
        ),
        (
            format!("{PODS}?fieldSelector=a"),
            "invalid selector: 'a'; can't understand 'a'",
        ),
    ] {
        let want = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                          "message": why, "reason": "BadRequest", "code": 400});
        assert_eq!(admin.get(&path).await.expect(400), want, "{path}");
    }
}

/// Conformance: 2.33, 2.34
#[tokio::test]
async fn every_operator_of_a_selector_selects() {
    let server = Server::standalone().await;
    let admin = server.admin();
    for (name, labels) in [
        ("a", json!({"app": "1", "size": "5"})),
        ("b", json!({"app": "2"})),
        ("c", json!({})),
    ] {
        let map = json!({"metadata": {"name": name, "labels": labels}});
        admin.post(MAPS, &map).await.expect(201);
    }
    for (selector, want) in [
        ("app%21%3D1", "b c"),
        ("app+in+(1,3)", "a"),
        ("app+notin+(1,3)", "b c"),
        ("app", "a b"),
        ("%21app,%21service.kubernetes.io/headless", "c"),
        ("size%3E4,app%3D%3D1", "a"),
    ] {
        let list = admin.get(&format!("{MAPS}?labelSelector={selector}")).await.expect(200);
        assert_eq!(names(&list).join(" "), want, "{selector}");
    }
    for (selector, want) in [("metadata.name%21%3Da", "b c"), ("metadata.name%3D%3Da,", "a")] {
        let list = admin.get(&format!("{MAPS}?fieldSelector={selector}")).await.expect(200);
        assert_eq!(names(&list).join(" "), want, "{selector}");
    }
}

/// Conformance: 2.38, 2.39, 2.40, 2.43, 2.44, 2.83, 3.A09
#[tokio::test]
async fn options_of_writes_are_held_to_their_rules() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let long = "a".repeat(129);
    for (query, kind, field) in [
        (format!("fieldManager={long}"), "CreateOptions", "fieldManager"),
        ("fieldManager=a%00b".to_owned(), "CreateOptions", "fieldManager"),
        ("dryRun=Some".to_owned(), "CreateOptions", "dryRun"),
        ("fieldValidation=Some".to_owned(), "CreateOptions", "fieldValidation"),
    ] {
        let refused = admin
            .post(&format!("{MAPS}?{query}"), &config_map("a", "1"))
            .await
            .expect(422);
        let details = &refused["details"];
        assert_eq!(
            (&details["kind"], &details["causes"][0]["field"]),
            (&json!(kind), &json!(field)),
            "{refused}"
        );
    }
    for (metadata, field) in [
        (
            json!({"annotations": {"a": "x".repeat(262_144)}}),
            "metadata.annotations",
        ),
        (json!({"annotations": {"not valid!": "x"}}), "metadata.annotations"),
        (
            json!({"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n"}]}),
            "metadata.ownerReferences.uid",
        ),
        (json!({"finalizers": ["a b"]}), "metadata.finalizers"),
    ] {
        let mut map = config_map("a", "1");
        for (key, value) in metadata.as_object().unwrap() {
            map["metadata"][key] = value.clone();
        }
        let refused = admin.post(MAPS, &map).await.expect(422);
        let at = refused["details"]["causes"][0]["field"].as_str().unwrap();
        assert!(at.starts_with(field), "{refused}");
    }
    admin.post(MAPS, &config_map("a", "1")).await.expect(201);
    let path = format!("{MAPS}/a");
    for query in [
        "propagationPolicy=Some",
        "propagationPolicy=Orphan&orphanDependents=true",
    ] {
        let refused = admin.delete(&format!("{path}?{query}")).await.expect(422);
        assert_eq!(refused["details"]["kind"], "DeleteOptions", "{query}");
    }
    let body = json!({"kind": "DeleteOptions", "apiVersion": "v1", "dryRun": ["All"]});
    let json_body = [("content-type", JSON)];
    admin
        .send(Method::DELETE, &path, Some(&body), &json_body)
        .await
        .expect(200);
    admin.get(&path).await.expect(200);
    // The query is ignored if there is a body.
    let body = json!({"kind": "DeleteOptions", "apiVersion": "v1"});
    let dry = format!("{path}?dryRun=All");
    admin
        .send(Method::DELETE, &dry, Some(&body), &json_body)
        .await
        .expect(200);
    admin.get(&path).await.expect(404);
}

/// Conformance: 2.42, 2.50, 2.51, 2.52, 2.55, 2.57, 2.58, 4.06
#[tokio::test]
async fn formats_are_chosen_and_refused_over_http() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let created = admin.post(MAPS, &config_map("a", "1")).await.expect(201);
    let path = format!("{MAPS}/a");
    for (accept, want) in [
        ("*/*", JSON),
        ("text/html,*/*;q=0.1", JSON),
        ("application/yaml;q=0.5,application/json", JSON),
        ("application/json;q=0.5,application/yaml", YAML),
        ("application/vnd.kubernetes.protobuf,application/json", PROTOBUF),
        ("application/json;as=Unknown;g=x;v=y,application/yaml", YAML),
        ("application/json;stream=watch,application/yaml", JSON),
    ] {
        let answer = admin.get_with(&path, &[("accept", accept)]).await;
        assert_eq!(
            (answer.code, answer.header("content-type")),
            (200, Some(want)),
            "{accept}"
        );
    }
    let unknown = "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, \
                   application/vnd.kubernetes.protobuf";
    let of_lists =
        format!("{unknown}, application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch");
    let unusable = "only the following media types are accepted: application/json, application/yaml, \
                    application/vnd.kubernetes.protobuf";
    let list_asked_for_one =
        "you requested PartialObjectMetadata, but the requested object is a list (*core.ConfigMapList)";
    for (path, accept, why) in [
        (path.as_str(), "application/*", unknown),
        (&path, "application/xml", unknown),
        (MAPS, "image/png,text/*", &of_lists),
        (&path, "application/json;stream=x", unusable),
        (&path, "application/json;as=Unknown;g=meta.k8s.io;v=v1", unusable),
        (
            MAPS,
            "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
            list_asked_for_one,
        ),
    ] {
        let refused = admin.get_with(path, &[("accept", accept)]).await.expect(406);
        assert_eq!(
            (&refused["reason"], &refused["message"]),
            (&json!("NotAcceptable"), &json!(why)),
            "{accept}"
        );
    }
    let stream = admin
        .get_with(&format!("{MAPS}?watch=1&timeoutSeconds=1"), &[("accept", YAML)])
        .await;
    assert_eq!(stream.code, 406, "YAML has no streams");
    for (query, agent, is_indented) in [
        ("", "kubectl/1", false),
        ("", "curl/8", true),
        ("?pretty=true", "kubectl/1", true),
        ("?pretty=0", "curl/8", false),
    ] {
        let answer = admin
            .get_with(&format!("{path}{query}"), &[("user-agent", agent)])
            .await;
        assert_eq!(answer.bytes.starts_with(b"{\n  \""), is_indented, "{query} {agent}");
        assert_eq!(answer.expect(200), created);
    }
    let watch = format!("{MAPS}?watch=1&timeoutSeconds=1&pretty=true");
    let stream = admin.get_with(&watch, &[("user-agent", "curl/8")]).await;
    assert_eq!(
        stream.bytes.trim_ascii_end().split(|byte| *byte == b'\n').count(),
        1,
        "one event is one line"
    );
}

/// Conformance: 2.54, 2.60, 3.G01, 3.G04, 4.11
#[tokio::test]
async fn bodies_are_read_in_their_format_or_refused() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let mut watch = admin.watch(MAPS).await;
    let post = async |path: &str, format: &str, body: Bytes| {
        let headers = [("content-type", format)];
        let headers = if format.is_empty() { &[][..] } else { &headers };
        admin.send_bytes(Method::POST, path, body, headers).await
    };
    let map = |name: &str| Bytes::from(format!("{{\n  \"metadata\": {{\n    \"name\": \"{name}\"\n  }}\n}}\n"));
    post(MAPS, "", map("untyped")).await.expect(201);
    assert_eq!(watch.told().await, "ADDED untyped");
    post(MAPS, "application/json; charset=utf-8", map("parameter"))
        .await
        .expect(201);
    assert_eq!(
        watch.told().await,
        "ADDED parameter",
        "indented as it came, and yet one line in a stream"
    );
    let refused = post(MAPS, "application/cbor", map("cbor")).await.expect(415);
    let why = "the body of the request was in an unknown format - accepted media types include: application/json, \
               application/yaml, application/vnd.kubernetes.protobuf";
    assert_eq!(
        (&refused["reason"], &refused["message"]),
        (&json!("UnsupportedMediaType"), &json!(why))
    );
    let refused = post(MAPS, PROTOBUF, map("no-prefix")).await.expect(400);
    let words = refused["message"].as_str().unwrap();
    assert!(words.contains("expected prefix [107 56 115 0]"), "{words}");
    // An object without its type is of the kind that the path names.
    let bare = yurt_codec::protobuf::envelope("", "", b"\x0a\x06\x0a\x04bare");
    post(MAPS, PROTOBUF, bare.into()).await.expect(201);
    assert_eq!(watch.told().await, "ADDED bare");
    let pools = "/apis/apps.openyurt.io/v1beta2/nodepools";
    let typed = yurt_codec::protobuf::envelope("apps.openyurt.io/v1beta2", "NodePool", b"\x0a\x03\x0a\x01p");
    let refused = post(pools, PROTOBUF, typed.into()).await;
    assert_eq!(refused.code, 415, "custom resources have no protobuf: {}", refused.body);
    let list = admin.get(&format!("{MAPS}?resourceVersion=0")).await.expect(200);
    assert_eq!(names(&list), ["bare", "parameter", "untyped"]);
}

/// Conformance: 3.B02, 3.B05, 3.D01, 4.04, 4.05, 4.07, 4.08, 4.12, 5.03
#[tokio::test]
async fn failures_have_the_fields_and_words_clients_look_for() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let lease = |seconds: i64| json!({"metadata": {"name": "n"}, "spec": {"leaseDurationSeconds": seconds}});
    let failure = |rest: &str| {
        format!(r#"{{"kind":"Status","apiVersion":"v1","metadata":{{}},"status":"Failure","message":{rest}}}"#)
    };
    let check = |answer: &Answer, code: u16, rest: &str| assert_eq!(text(answer, code).trim_end(), failure(rest));
    check(
        &admin.get(&format!("{LEASES}/n")).await,
        404,
        r#""leases.coordination.k8s.io \"n\" not found","reason":"NotFound","details":{"name":"n","group":"coordination.k8s.io","kind":"leases"},"code":404"#,
    );
    check(
        &admin.get(&format!("{PODS}/n")).await,
        404,
        r#""pods \"n\" not found","reason":"NotFound","details":{"name":"n","kind":"pods"},"code":404"#,
    );
    check(
        &admin.post(LEASES, &lease(0)).await,
        422,
        concat!(
            r#""Lease.coordination.k8s.io \"n\" is invalid: spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0","#,
            r#""reason":"Invalid","details":{"name":"n","group":"coordination.k8s.io","kind":"Lease","causes":["#,
            r#"{"reason":"FieldValueInvalid","message":"Invalid value: 0: must be greater than 0","field":"spec.leaseDurationSeconds"}]},"#,
            r#""code":422"#
        ),
    );
    check(
        &admin.post("/api/v1/configmaps", &config_map("a", "1")).await,
        405,
        r#""the server does not allow this method on the requested resource","reason":"MethodNotAllowed","details":{},"code":405"#,
    );
    let created = admin.post(LEASES, &lease(1)).await.expect(201);
    check(
        &admin.post(LEASES, &lease(1)).await,
        409,
        r#""leases.coordination.k8s.io \"n\" already exists","reason":"AlreadyExists","details":{"name":"n","group":"coordination.k8s.io","kind":"leases"},"code":409"#,
    );
    let path = format!("{LEASES}/n");
    let mut changed = created.clone();
    changed["spec"]["leaseDurationSeconds"] = json!(2);
    admin.put(&path, &changed).await.expect(200);
    changed["spec"]["leaseDurationSeconds"] = json!(3);
    check(
        &admin.put(&path, &changed).await,
        409,
        concat!(
            r#""Operation cannot be fulfilled on leases.coordination.k8s.io \"n\": the object has been modified; please apply "#,
            r#"your changes to the latest version and try again","reason":"Conflict","#,
            r#""details":{"name":"n","group":"coordination.k8s.io","kind":"leases"},"code":409"#
        ),
    );
    let uid = created["metadata"]["uid"].as_str().unwrap();
    changed["metadata"]["uid"] = json!("other");
    let refused = admin.put(&path, &changed).await.expect(409);
    let want = format!("Precondition failed: UID in precondition: other, UID in object meta: {uid}");
    assert!(refused["message"].as_str().unwrap().contains(&want), "{refused}");
    let gone = admin.delete(&path).await;
    let want = format!(
        r#"{{"kind":"Status","apiVersion":"v1","metadata":{{}},"status":"Success","details":{{"name":"n","group":"coordination.k8s.io","kind":"leases","uid":"{uid}"}}}}"#
    );
    assert_eq!(text(&gone, 200).trim_end(), want);
}

/// Names of the objects that a field selector selects.
async fn selected(admin: &Client, path: &str, selector: &str) -> String {
    let escaped = selector.replace("!=", "%21%3D").replace('=', "%3D");
    let answer = admin.get(&format!("{path}?fieldSelector={escaped}")).await;
    assert_eq!(answer.code, 200, "{path} {selector}: {}", answer.body);
    names(&answer.body).join(" ")
}

/// Conformance: 2.36, 2.37, 3.E15
#[tokio::test]
async fn every_field_of_pods_selects_by_its_value() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let full = json!({"metadata": {"name": "full"}, "spec": {"nodeName": "n1", "restartPolicy": "Never", "schedulerName": "own",
        "serviceAccountName": "robot", "hostNetwork": true, "containers": [{"name": "c", "image": "i"}]}});
    let plain = json!({"metadata": {"name": "plain"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    for pod in [full, plain] {
        admin.post(PODS, &pod).await.expect(201);
    }
    let status = json!({"status": {"phase": "Running", "podIP": "10.1.0.1", "podIPs": [{"ip": "10.1.0.1"}]}});
    admin.merge(&format!("{PODS}/full/status"), &status).await.expect(200);
    let status = json!({"status": {"nominatedNodeName": "n2"}});
    admin.merge(&format!("{PODS}/plain/status"), &status).await.expect(200);
    for (selector, want) in [
        ("spec.nodeName=n1", "full"),
        ("spec.host=n1", "full"),
        ("spec.nodeName=", "plain"),
        ("spec.restartPolicy=Never", "full"),
        ("spec.restartPolicy=Always", "plain"),
        ("spec.schedulerName=own", "full"),
        ("spec.serviceAccountName=robot", "full"),
        ("spec.hostNetwork=true", "full"),
        ("spec.hostNetwork=false", "plain"),
        ("status.phase=Running", "full"),
        ("status.phase!=Running", "plain"),
        ("status.podIP=10.1.0.1", "full"),
        ("status.nominatedNodeName=n2", "plain"),
        ("metadata.name=plain", "plain"),
        ("metadata.namespace=default", "full plain"),
        ("metadata.namespace=other", ""),
    ] {
        assert_eq!(selected(&admin, "/api/v1/pods", selector).await, want, "{selector}");
    }
    // A watch of one name in all namespaces, and a path that names no namespace for it.
    let mut watch = admin.watch("/api/v1/pods?fieldSelector=metadata.name%3Dplain").await;
    assert_eq!(watch.told().await, "ADDED plain");
    admin.get("/api/v1/watch/pods/plain").await.expect(404);
}

/// Conformance: 2.36
#[tokio::test]
async fn every_field_of_other_kinds_selects_by_its_value() {
    let server = Server::standalone().await;
    let admin = server.admin();
    for (path, objects, selectors) in [
        (
            "/api/v1/nodes",
            vec![
                json!({"metadata": {"name": "off"}, "spec": {"unschedulable": true}}),
                json!({"metadata": {"name": "on"}}),
            ],
            vec![("spec.unschedulable=true", "off"), ("spec.unschedulable=false", "on")],
        ),
        (
            "/api/v1/namespaces/default/secrets",
            vec![
                json!({"metadata": {"name": "a"}, "type": "example.com/t"}),
                json!({"metadata": {"name": "b"}}),
            ],
            vec![("type=example.com/t", "a"), ("type=Opaque", "b")],
        ),
        (
            "/api/v1/namespaces/default/services",
            vec![
                json!({"metadata": {"name": "none"}, "spec": {"clusterIP": "None", "ports": [{"port": 80}]}}),
                json!({"metadata": {"name": "out"}, "spec": {"type": "ExternalName", "externalName": "example.com"}}),
            ],
            vec![
                ("spec.clusterIP!=None", "out"),
                ("spec.clusterIP=None", "none"),
                ("spec.type=ExternalName", "out"),
            ],
        ),
        (
            "/api/v1/namespaces/default/events",
            vec![
                json!({"metadata": {"name": "e"}, "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default", "uid": "u"},
                "reason": "Started", "message": "m", "type": "Normal", "source": {"component": "kubelet"}}),
            ],
            vec![
                (
                    "involvedObject.kind=Pod,involvedObject.name=p,involvedObject.uid=u",
                    "e",
                ),
                ("involvedObject.kind=Node", ""),
                ("reason=Started,type=Normal,source=kubelet", "e"),
                ("reason!=Started", ""),
                ("type=Warning", ""),
                ("source=other", ""),
            ],
        ),
    ] {
        for object in objects {
            admin.post(path, &object).await.expect(201);
        }
        for (selector, want) in selectors {
            assert_eq!(selected(&admin, path, selector).await, want, "{path} {selector}");
        }
    }
    assert_eq!(
        selected(&admin, "/api/v1/namespaces", "status.phase=Terminating").await,
        ""
    );
    assert!(
        selected(&admin, "/api/v1/namespaces", "status.phase=Active")
            .await
            .contains("default")
    );
}

/// Every read of kube-proxy with its own rights, and the event it writes at its start.
///
/// Conformance: 5.22
#[tokio::test]
async fn kube_proxy_reads_what_it_selects() {
    let server = Server::standalone().await;
    let (admin, proxy) = (server.admin(), server.user("system:kube-proxy", &[]));
    admin
        .post("/api/v1/nodes", &json!({"metadata": {"name": "n1"}}))
        .await
        .expect(201);
    let services = "/api/v1/namespaces/default/services";
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    let headless = "service.kubernetes.io/headless";
    let labelled = |name: &str, label: &str| {
        let mut object = json!({"metadata": {"name": name, "labels": {}}});
        if !label.is_empty() {
            object["metadata"]["labels"][label] = json!("");
        }
        object
    };
    for (name, label) in [
        ("plain", ""),
        ("hidden", headless),
        ("foreign", "service.kubernetes.io/service-proxy-name"),
    ] {
        let mut slice = labelled(name, label);
        slice["addressType"] = json!("IPv4");
        slice["endpoints"] = json!([]);
        admin.post(slices, &slice).await.expect(201);
        let mut service = labelled(name, label);
        service["spec"] = json!({"clusterIP": "None", "ports": [{"port": 80}]});
        admin.post(services, &service).await.expect(201);
    }
    let older = "labelSelector=%21service.kubernetes.io/headless,%21service.kubernetes.io/service-proxy-name";
    let newer = "labelSelector=%21service.kubernetes.io/service-proxy-name&fieldSelector=spec.clusterIP%21%3DNone";
    for (path, want) in [
        (format!("/api/v1/services?{older}"), "plain"),
        (format!("/api/v1/services?{newer}"), ""),
        (format!("/apis/discovery.k8s.io/v1/endpointslices?{older}"), "plain"),
        (
            "/apis/discovery.k8s.io/v1/endpointslices?labelSelector=%21service.kubernetes.io/headless".to_owned(),
            "foreign plain",
        ),
        ("/api/v1/nodes?fieldSelector=metadata.name%3Dn1".to_owned(), "n1"),
        ("/api/v1/nodes?fieldSelector=metadata.name%3Dn2".to_owned(), ""),
    ] {
        let list = proxy.get(&path).await.expect(200);
        assert_eq!(names(&list).join(" "), want, "{path}");
        let mut watch = proxy
            .watch(&format!("{path}&resourceVersion=0&allowWatchBookmarks=true"))
            .await;
        let mut told = Vec::new();
        while let Some(("ADDED", name)) = watch.told().await.split_once(' ') {
            told.push(name.to_owned());
        }
        assert_eq!(told.join(" "), want, "{path}");
    }
    let event = json!({"metadata": {"name": "start", "namespace": "default"}, "regarding": {"kind": "Node", "name": "n1"},
        "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "kube-proxy", "reportingInstance": "kube-proxy-n1",
        "action": "StartKubeProxy", "reason": "Starting", "type": "Normal"});
    let events = "/apis/events.k8s.io/v1/namespaces/default/events";
    let written = proxy.post(events, &event).await.expect(201);
    assert!(!rv(&written).is_empty());
}

/// Conformance: 5.11, 5.12, 5.25
#[tokio::test]
async fn events_and_slices_are_held_to_the_rules_of_their_kinds() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let core = "/api/v1/namespaces/default/events";
    let about = |namespace: &str| json!({"kind": "Pod", "name": "p", "namespace": namespace});
    let event = |namespace: &str| json!({"metadata": {"name": "e"}, "involvedObject": about(namespace), "reason": "r"});
    let refused = admin.post(core, &event("other")).await.expect(422);
    assert_eq!(refused["details"]["causes"][0]["field"], "involvedObject.namespace");
    admin.post(core, &event("default")).await.expect(201);

    let new = "/apis/events.k8s.io/v1/namespaces/default/events";
    let whole = json!({"metadata": {"name": "n"}, "regarding": about("default"), "type": "Normal", "reason": "r", "note": "n",
        "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "example.com/c", "reportingInstance": "i",
        "action": "a"});
    for (field, value) in [
        ("eventTime", json!(null)),
        ("reportingController", json!("a b")),
        ("note", json!("x".repeat(1025))),
        ("deprecatedCount", json!(1)),
    ] {
        let mut odd = whole.clone();
        odd[field] = value;
        admin.post(new, &odd).await.expect(422);
    }
    admin.post(new, &whole).await.expect(201);
    let path = format!("{new}/n");
    admin.merge(&path, &json!({"note": "other"})).await.expect(422);
    let series = json!({"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:01.000000Z"}});
    let counted = admin.patch("strategic-merge", &path, &series).await.expect(200);
    assert_eq!(counted["series"]["count"], 2);

    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    let labels = json!({"kubernetes.io/service-name": "s", "endpointslice.kubernetes.io/managed-by": "me"});
    let slice = |count: usize| {
        let endpoints = vec![json!({"addresses": ["10.0.0.1"]}); count];
        json!({"metadata": {"name": "s", "labels": labels}, "addressType": "IPv4", "endpoints": endpoints})
    };
    let refused = admin.post(slices, &slice(1001)).await.expect(422);
    assert_eq!(refused["details"]["causes"][0]["field"], "endpoints");
    let created = admin.post(slices, &slice(1000)).await.expect(201);
    assert_eq!(created["metadata"]["labels"], labels);
    let change = json!({"addressType": "IPv6", "endpoints": []});
    let refused = admin.merge(&format!("{slices}/s"), &change).await.expect(422);
    assert_eq!(refused["details"]["causes"][0]["field"], "addressType");
}
