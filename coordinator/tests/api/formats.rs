//! Formats: protobuf and YAML in and out, failures in the requested format.

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use yurt_codec::protobuf::{self, Envelope};
use yurt_codec::{schema, yaml};

use crate::harness::{Answer, Client, Server, config_map};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// `Accept` header of client-go's typed clients.
const TYPED: &str = "application/vnd.kubernetes.protobuf,application/json";

/// The body of an object in protobuf.
fn encoded(api_version: &str, kind: &str, object: &Value) -> Bytes {
    let message = protobuf::message(api_version, kind).unwrap();
    let encoded = protobuf::encode(message, object.to_string().as_bytes()).unwrap();
    protobuf::envelope(api_version, kind, &encoded.bytes).into()
}

/// Kind and object of a body in protobuf.
fn decoded(body: &[u8]) -> (String, Value) {
    let envelope = Envelope::parse(body).unwrap();
    let json = protobuf::decode(envelope.message().unwrap(), envelope.raw).unwrap();
    (envelope.kind.to_owned(), serde_json::from_slice(&json).unwrap())
}

async fn send(client: &Client, method: Method, path: &str, format: &str, body: Bytes) -> Answer {
    client
        .send_bytes(method, path, body, &[("accept", format), ("content-type", format)])
        .await
}

/// Requests of kube-scheduler and client-go's eviction client.
///
/// Conformance: 2.53
#[tokio::test]
async fn bindings_and_evictions_come_in_protobuf() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}});
    admin.post(pods, &pod).await.expect(201);
    let named = |object: Value| {
        let mut object = object;
        object["metadata"] = json!({"name": "a", "namespace": "default"});
        object
    };
    let binding = named(json!({"target": {"kind": "Node", "name": "n1"}}));
    let body = encoded("v1", "Binding", &binding);
    let bound = send(&admin, Method::POST, &format!("{pods}/a/binding"), PROTOBUF, body).await;
    let (kind, status) = decoded(&bound.bytes);
    assert_eq!(
        (bound.code, kind.as_str(), &status["status"]),
        (201, "Status", &json!("Success"))
    );
    let placed = admin.get(&format!("{pods}/a")).await.expect(200);
    assert_eq!(placed["spec"]["nodeName"], "n1");
    let eviction = named(json!({"deleteOptions": {"gracePeriodSeconds": 0}}));
    let body = encoded("policy/v1", "Eviction", &eviction);
    let evicted = send(&admin, Method::POST, &format!("{pods}/a/eviction"), PROTOBUF, body).await;
    assert_eq!((evicted.code, decoded(&evicted.bytes).0.as_str()), (201, "Status"));
    admin.get(&format!("{pods}/a")).await.expect(404);
}

/// Conformance: 2.53
#[tokio::test]
async fn typed_clients_write_and_read_protobuf() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let body = encoded("v1", "ConfigMap", &config_map("a", "1"));
    let created = send(&admin, Method::POST, MAPS, PROTOBUF, body).await;
    assert_eq!((created.code, created.header("content-type")), (201, Some(PROTOBUF)));
    let (kind, mut object) = decoded(&created.bytes);
    assert_eq!((kind.as_str(), &object["data"]["key"]), ("ConfigMap", &json!("1")));
    assert_eq!(
        admin.get(&format!("{MAPS}/a")).await.expect(200)["metadata"],
        object["metadata"]
    );
    object["data"]["key"] = json!("2");
    let body = encoded("v1", "ConfigMap", &object);
    let updated = send(&admin, Method::PUT, &format!("{MAPS}/a"), PROTOBUF, body).await;
    assert_eq!(
        (updated.code, &decoded(&updated.bytes).1["data"]["key"]),
        (200, &json!("2"))
    );
    let got = admin.get_with(&format!("{MAPS}/a"), &[("accept", TYPED)]).await;
    assert_eq!(decoded(&got.bytes), decoded(&updated.bytes));
    let list = admin.get_with(MAPS, &[("accept", TYPED)]).await;
    let envelope = Envelope::parse(&list.bytes).unwrap();
    assert_eq!(
        (envelope.kind, list.header("content-type")),
        ("ConfigMapList", Some(PROTOBUF))
    );
    let item = Envelope::parse(&got.bytes).unwrap().raw;
    assert!(envelope.raw.ends_with(item), "an item has no envelope of its own");
    let options = encoded("v1", "DeleteOptions", &json!({"preconditions": {"uid": "other"}}));
    let refused = send(&admin, Method::DELETE, &format!("{MAPS}/a"), PROTOBUF, options).await;
    assert_eq!((refused.code, decoded(&refused.bytes).0.as_str()), (409, "Status"));
    let options = encoded("v1", "DeleteOptions", &json!({"gracePeriodSeconds": 0}));
    let deleted = send(&admin, Method::DELETE, &format!("{MAPS}/a"), PROTOBUF, options).await;
    assert_eq!(
        (deleted.code, &decoded(&deleted.bytes).1["status"]),
        (200, &json!("Success"))
    );
}

/// client-go's typed clients write options in the version of their group.
///
/// Conformance: 2.53
#[tokio::test]
async fn options_of_a_delete_count_in_the_version_of_any_group() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let message = schema::find("meta.k8s.io", "v1", "DeleteOptions").unwrap();
    let options = |api_version: &str, options: Value| {
        let encoded = protobuf::encode(message, options.to_string().as_bytes()).unwrap();
        Bytes::from(protobuf::envelope(api_version, "DeleteOptions", &encoded.bytes))
    };
    let lease = json!({"metadata": {"name": "a"}});
    let slice = json!({"metadata": {"name": "a"}, "addressType": "IPv4", "endpoints": []});
    let event = json!({"metadata": {"name": "a"}, "eventTime": "2026-01-01T00:00:00.000000Z", "action": "A",
        "reportingController": "example.com/c", "reportingInstance": "i", "reason": "R", "type": "Normal"});
    for (group_version, resource, object) in [
        ("coordination.k8s.io/v1", "leases", lease),
        ("discovery.k8s.io/v1", "endpointslices", slice),
        ("events.k8s.io/v1", "events", event),
    ] {
        let all = format!("/apis/{group_version}/namespaces/default/{resource}");
        let one = format!("{all}/a");
        admin.post(&all, &object).await.expect(201);
        let delete = async |path: &str, body: Bytes| send(&admin, Method::DELETE, path, PROTOBUF, body).await.code;
        for version in [group_version, "meta.k8s.io/v1", "v1"] {
            let wrong = options(version, json!({"preconditions": {"uid": "other"}}));
            assert_eq!(delete(&one, wrong).await, 409, "{version} {one}");
            for path in [&one, &all] {
                let dry = options(version, json!({"dryRun": ["All"]}));
                assert_eq!(delete(path, dry).await, 200, "{version} {path}");
                admin.get(&one).await.expect(200);
            }
        }
        let unknown = protobuf::envelope(group_version, "Options", b"").into();
        assert_eq!(delete(&one, unknown).await, 400, "{one}");
        admin.get(&one).await.expect(200);
    }
}

/// Conformance: 3.G02, 3.G05
#[tokio::test]
async fn watches_in_protobuf_are_frames_of_envelopes() {
    let server = Server::standalone().await;
    let admin = server.admin();
    admin.post(MAPS, &config_map("a", "1")).await.expect(201);
    let watch = |query: &str| {
        let (admin, path) = (server.admin(), format!("{MAPS}?watch=1&timeoutSeconds=1&{query}"));
        async move { admin.get_with(&path, &[("accept", TYPED)]).await }
    };
    let answer = watch("allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan").await;
    assert_eq!(
        answer.header("content-type"),
        Some("application/vnd.kubernetes.protobuf;stream=watch")
    );
    let told: Vec<(String, String)> = events(&answer.bytes)
        .into_iter()
        .map(|(event, kind, _)| (event, kind))
        .collect();
    let pair = |event: &str| (event.to_owned(), "ConfigMap".to_owned());
    assert_eq!(told, [pair("ADDED"), pair("BOOKMARK")]);
    let answer = watch("resourceVersion=4611686018427387905").await;
    let (event, kind, object) = events(&answer.bytes).remove(0);
    assert_eq!(
        (event.as_str(), kind.as_str(), &object["code"]),
        ("ERROR", "Status", &json!(410))
    );
}

/// Type, kind and object of each event.
fn events(mut stream: &[u8]) -> Vec<(String, String, Value)> {
    let mut events = Vec::new();
    while let Some((length, rest)) = stream.split_at_checked(4) {
        let length = u32::from_be_bytes(length.try_into().unwrap()) as usize;
        let (frame, rest) = rest.split_at(length);
        let word = String::from_utf8(frame[2..2 + usize::from(frame[1])].to_vec()).unwrap();
        let at = frame.windows(4).position(|four| four == protobuf::PREFIX).unwrap();
        let (kind, object) = decoded(&frame[at..]);
        events.push((word, kind, object));
        stream = rest;
    }
    assert!(stream.is_empty());
    events
}

/// Conformance: 2.59, 4.02
#[tokio::test]
async fn failures_come_in_the_format_asked_for() {
    let server = Server::standalone().await;
    let (admin, nobody) = (server.admin(), server.user("nobody", &[]));
    let headers = [("accept", PROTOBUF), ("authorization", "Bearer x")];
    let stranger = server.anonymous().get_with(MAPS, &headers).await;
    assert_eq!(
        (stranger.code, &decoded(&stranger.bytes).1["reason"]),
        (401, &json!("Unauthorized"))
    );
    for (client, path, code) in [
        (&admin, format!("{MAPS}/none"), 404),
        (&admin, "/api/v1/foos".to_owned(), 404),
        (&nobody, MAPS.to_owned(), 403),
    ] {
        let answer = client.get_with(&path, &[("accept", PROTOBUF)]).await;
        assert_eq!(
            (answer.code, answer.header("content-type")),
            (code, Some(PROTOBUF)),
            "{path}"
        );
        let (kind, status) = decoded(&answer.bytes);
        assert_eq!((kind.as_str(), &status["code"]), ("Status", &json!(code)));
        let answer = client.get_with(&path, &[("accept", "application/yaml")]).await;
        assert_eq!(yaml::parse(&answer.bytes).unwrap()["code"], json!(code));
        // An unavailable format falls back to JSON.
        let answer = client.get_with(&path, &[("accept", "image/png")]).await;
        assert_eq!(answer.header("content-type"), Some("application/json"), "{path}");
    }
}

/// Conformance: 2.54, 2.55
#[tokio::test]
async fn custom_resources_have_no_protobuf_but_their_metadata_has() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let pools = "/apis/apps.openyurt.io/v1beta2/nodepools";
    let pool = json!({"metadata": {"name": "p"}, "spec": {"type": "Edge"}});
    admin.post(pools, &pool).await.expect(201);
    let path = format!("{pools}/p");
    let answer = admin.get_with(&path, &[("accept", TYPED)]).await;
    assert_eq!(
        (answer.code, answer.header("content-type")),
        (200, Some("application/json"))
    );
    assert_eq!(admin.get_with(&path, &[("accept", PROTOBUF)]).await.code, 406);
    let refused = send(&admin, Method::POST, pools, PROTOBUF, Bytes::from_static(b"k8s\0")).await;
    assert_ne!(refused.code, 201);
    let metadata = format!("{PROTOBUF};as=PartialObjectMetadata;g=meta.k8s.io;v=v1");
    let answer = admin.get_with(&path, &[("accept", &metadata)]).await;
    let envelope = Envelope::parse(&answer.bytes).unwrap();
    assert_eq!(
        (envelope.api_version, envelope.kind),
        ("meta.k8s.io/v1", "PartialObjectMetadata")
    );
    let message = schema::find("meta.k8s.io", "v1", "PartialObjectMetadata").unwrap();
    let object: Value = serde_json::from_slice(&protobuf::decode(message, envelope.raw).unwrap()).unwrap();
    assert_eq!(object["metadata"]["name"], "p");
}

/// Conformance: 2.52, 2.60
#[tokio::test]
async fn yaml_goes_both_ways() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let text = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: from-yaml\ndata:\n  key: |\n    one\n    two\n";
    let created = send(&admin, Method::POST, MAPS, "application/yaml", Bytes::from(text)).await;
    assert_eq!(
        (created.code, created.header("content-type")),
        (201, Some("application/yaml"))
    );
    assert_eq!(yaml::parse(&created.bytes).unwrap()["data"]["key"], "one\ntwo\n");
    let list = admin.get_with(MAPS, &[("accept", "application/yaml")]).await;
    let json = admin.get(MAPS).await.expect(200);
    assert_eq!(yaml::parse(&list.bytes).unwrap(), json);
    let broken = send(
        &admin,
        Method::POST,
        MAPS,
        "application/yaml",
        Bytes::from_static(b"a: ["),
    )
    .await;
    assert_eq!(broken.code, 400);
    let headers = [("content-type", "application/cbor")];
    let cbor = Bytes::from_static(b"\xd9\xd9\xf7");
    let unknown = admin.send_bytes(Method::POST, MAPS, cbor, &headers).await;
    assert_eq!(unknown.code, 415);
}

/// Conformance: 1.10
#[tokio::test]
async fn discovery_and_reviews_speak_protobuf() {
    let server = Server::standalone().await;
    let admin = server.admin();
    for (path, kind) in [
        ("/api", "APIVersions"),
        ("/apis", "APIGroupList"),
        ("/api/v1", "APIResourceList"),
    ] {
        let answer = admin.get_with(path, &[("accept", PROTOBUF)]).await;
        let envelope = Envelope::parse(&answer.bytes).unwrap();
        assert_eq!((answer.code, envelope.kind), (200, kind));
        assert!(!envelope.raw.is_empty());
    }
    let review = encoded("authentication.k8s.io/v1", "SelfSubjectReview", &json!({}));
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let answer = send(&admin, Method::POST, path, PROTOBUF, review).await;
    assert_eq!(answer.code, 201);
    assert!(decoded(&answer.bytes).1["status"]["userInfo"]["username"].is_string());
}

/// Conformance: 1.31, 2.56
#[tokio::test]
async fn tables_are_lists_objects_and_events() {
    let server = Server::standalone().await;
    let admin = server.admin();
    admin.post(MAPS, &config_map("a", "1")).await.expect(201);
    let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
    let accept = [("accept", kubectl)];
    let list = admin.get_with(&format!("{MAPS}?limit=500"), &accept).await;
    assert_eq!(list.header("content-type"), Some("application/json"));
    let list = list.expect(200);
    let names: Vec<&Value> = list["columnDefinitions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|column| &column["name"])
        .collect();
    assert_eq!(
        (&list["kind"], names),
        (&json!("Table"), vec![&json!("Name"), &json!("Data"), &json!("Age")])
    );
    assert!(list["metadata"]["resourceVersion"].is_string());
    let row = &list["rows"][0];
    assert_eq!((&row["cells"][0], &row["cells"][1]), (&json!("a"), &json!(1)));
    assert_eq!(row["object"]["kind"], "PartialObjectMetadata");
    let one = admin
        .get_with(&format!("{MAPS}/a?includeObject=None"), &accept)
        .await
        .expect(200);
    assert_eq!(one["rows"][0]["object"], json!(null));
    let wrong = admin.get_with(&format!("{MAPS}?includeObject=All"), &accept).await;
    assert_eq!(wrong.code, 400);
    let mut watch = admin.watch_with(MAPS, &accept).await;
    let first = watch.next().await.unwrap();
    assert_eq!((first.kind.as_str(), &first.object["kind"]), ("ADDED", &json!("Table")));
    assert!(first.object["columnDefinitions"].is_array());
    admin.post(MAPS, &config_map("b", "1")).await.expect(201);
    let second = watch.next().await.unwrap();
    assert_eq!(second.object["columnDefinitions"], json!(null));
    assert_eq!(second.object["rows"][0]["cells"][0], "b");
    // A failure is a Status in every requested form.
    assert_eq!(
        admin.get_with(&format!("{MAPS}/none"), &accept).await.expect(404)["kind"],
        "Status"
    );
}

/// kube-scheduler binds in protobuf, kubectl drain of any version evicts in its own.
#[tokio::test]
async fn bindings_and_evictions_come_in_every_format() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let pods = "/api/v1/namespaces/default/pods";
    let post = async |path: String, format: &str, body: Bytes| {
        let answer = send(&admin, Method::POST, &path, format, body).await;
        assert_eq!(
            (answer.code, answer.header("content-type")),
            (201, Some(format)),
            "{path}"
        );
        answer.bytes
    };
    for (name, format) in [("a", PROTOBUF), ("b", "application/yaml"), ("c", "application/json")] {
        let pod = json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        admin.post(pods, &pod).await.expect(201);
        let form = |api_version: &str, kind: &str, mut object: Value| {
            if format == PROTOBUF {
                return encoded(api_version, kind, &object);
            }
            object["apiVersion"] = json!(api_version);
            object["kind"] = json!(kind);
            object.to_string().into()
        };
        let binding = json!({"metadata": {"name": name}, "target": {"kind": "Node", "name": "n"}});
        let told = post(format!("{pods}/{name}/binding"), format, form("v1", "Binding", binding)).await;
        if format == PROTOBUF {
            assert_eq!(decoded(&told).1["status"], "Success");
        }
        let path = format!("{pods}/{name}");
        assert_eq!(admin.get(&path).await.expect(200)["spec"]["nodeName"], "n");
        for (version, seconds) in [("policy/v1beta1", 9), ("policy/v1", 7)] {
            let eviction = json!({"metadata": {"name": name}, "deleteOptions": {"gracePeriodSeconds": seconds}});
            post(format!("{path}/eviction"), format, form(version, "Eviction", eviction)).await;
            let marked = admin.get(&path).await.expect(200);
            assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], seconds);
        }
    }
}

#[tokio::test]
async fn what_is_posted_to_be_answered_is_read_as_closely_as_objects() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    admin
        .post(accounts, &json!({"metadata": {"name": "a"}}))
        .await
        .expect(201);
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    admin.post(pods, &pod).await.expect(201);
    for (path, kind, mut body) in [
        (
            "/apis/authentication.k8s.io/v1/selfsubjectreviews".to_owned(),
            "SelfSubjectReview",
            json!({}),
        ),
        (
            format!("{pods}/a/eviction"),
            "Eviction",
            json!({"metadata": {"name": "a"}, "deleteOptions": {"dryRun": ["All"]}}),
        ),
    ] {
        body["odd"] = json!(1);
        let told = admin.post(&path, &body).await;
        assert_eq!(
            told.header("warning"),
            Some("299 - \"unknown field \\\"odd\\\"\""),
            "{path}"
        );
        assert_eq!(told.expect(201)["odd"], json!(null));
        let strict = admin.post(&format!("{path}?fieldValidation=Strict"), &body).await;
        let want = format!(
            "{kind} in version \"v1\" cannot be handled as a {kind}: strict decoding error: unknown field \"odd\""
        );
        assert_eq!(strict.expect(400)["message"], want);
        let other = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
        let refused = admin.post(&path, &other).await.expect(400);
        let words = refused["message"].as_str().unwrap();
        assert!(
            words.starts_with("ConfigMap in version \"v1\" cannot be handled as a "),
            "{words}"
        );
        admin.post(&format!("{path}?dryRun=Some"), &body).await.expect(422);
        let empty = send(&admin, Method::POST, &path, PROTOBUF, Bytes::new()).await;
        let (_, status) = decoded(&empty.bytes);
        let want = format!("the object provided is unrecognized (must be of type {kind}): empty data (<empty>)");
        assert_eq!((&status["code"], &status["message"]), (&json!(400), &json!(want)));
    }
}
