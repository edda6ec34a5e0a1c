//! Documents about the API: discovery, OpenAPI, version, health.

use serde_json::{Value, json};

use super::harness::{Client, Server};

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

fn named<'a>(list: &'a Value, name: &str) -> &'a Value {
    let found = list.as_array().unwrap().iter().find(|one| one["name"] == name);
    found.unwrap_or_else(|| panic!("{name} is not in {list}"))
}

/// Conformance: 1.01, 1.02, 1.03, 1.04, 1.05, 1.06, 1.07
#[tokio::test]
async fn legacy_discovery_has_the_shape_clients_parse() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let versions = admin.get("/api").await.expect(200);
    assert_eq!(
        (&versions["kind"], &versions["versions"]),
        (&json!("APIVersions"), &json!(["v1"]))
    );
    assert_eq!(versions["serverAddressByClientCIDRs"][0]["clientCIDR"], "0.0.0.0/0");
    let groups = admin.get("/apis").await.expect(200);
    let coordination = named(&groups["groups"], "coordination.k8s.io");
    let version = json!({ "groupVersion": "coordination.k8s.io/v1", "version": "v1" });
    assert_eq!(coordination["versions"], json!([version]));
    assert_eq!(coordination["preferredVersion"], version);
    assert!(
        groups["groups"]
            .as_array()
            .unwrap()
            .iter()
            .all(|group| group["name"] != "")
    );
    let group = admin.get("/apis/coordination.k8s.io").await.expect(200);
    assert_eq!(
        (&group["kind"], &group["apiVersion"]),
        (&json!("APIGroup"), &json!("v1"))
    );
    admin.get("/apis/nowhere.example").await.expect(404);

    let core = admin.get("/api/v1").await.expect(200);
    assert_eq!((core.get("apiVersion"), &core["groupVersion"]), (None, &json!("v1")));
    let pods = named(&core["resources"], "pods");
    assert_eq!(
        (&pods["singularName"], &pods["namespaced"], &pods["kind"]),
        (&json!("pod"), &json!(true), &json!("Pod"))
    );
    assert_eq!(
        (&pods["shortNames"], &pods["categories"]),
        (&json!(["po"]), &json!(["all"]))
    );
    assert!(pods["storageVersionHash"].is_string());
    let all = [
        "create",
        "delete",
        "deletecollection",
        "get",
        "list",
        "patch",
        "update",
        "watch",
    ];
    assert_eq!(pods["verbs"], json!(all));
    let status = named(&core["resources"], "pods/status");
    assert_eq!(
        (&status["kind"], &status["verbs"]),
        (&json!("Pod"), &json!(["get", "patch", "update"]))
    );
    let eviction = named(&core["resources"], "pods/eviction");
    assert_eq!(
        (&eviction["group"], &eviction["version"], &eviction["kind"]),
        (&json!("policy"), &json!("v1"), &json!("Eviction")),
        "a kind of another group"
    );
    let reviews = admin.get("/apis/authorization.k8s.io/v1").await.expect(200);
    assert_eq!(reviews["apiVersion"], "v1");
    for review in reviews["resources"].as_array().unwrap() {
        assert_eq!(review["verbs"], json!(["create"]), "{review}");
    }
}

/// Conformance: 1.06
#[tokio::test]
async fn pool_data_is_listed_as_read_only() {
    let server = Server::pool().await;
    let admin = server.admin();
    let core = admin.get("/api/v1").await.expect(200);
    assert_eq!(
        named(&core["resources"], "services")["verbs"],
        json!(["get", "list", "watch"])
    );
    let names: Vec<&Value> = core["resources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["name"])
        .collect();
    assert!(
        !names.contains(&&json!("services/status")) && !names.contains(&&json!("pods")),
        "{names:?}"
    );
    let groups = admin.get("/apis").await.expect(200);
    named(&groups["groups"], "yurt.openyurt.io");
}

/// Conformance: 1.20, 1.21, 1.22, 1.23, 1.24, 1.25, 1.26, 1.28
#[tokio::test]
async fn aggregated_discovery_comes_for_both_roots_or_neither() {
    let server = Server::standalone().await;
    let admin = server.admin();
    for (path, group) in [("/api", None), ("/apis", Some("coordination.k8s.io"))] {
        let answer = admin
            .get_with(path, &[("accept", &format!("application/json,{AGGREGATED}"))])
            .await;
        assert_eq!(
            answer.header("content-type"),
            Some(AGGREGATED),
            "an aggregated clause wins in any position"
        );
        assert_eq!(
            (answer.header("vary"), answer.header("cache-control")),
            (Some("Accept"), Some("public"))
        );
        let etag = answer.header("etag").unwrap().to_owned();
        let again = admin
            .get_with(path, &[("accept", AGGREGATED), ("if-none-match", &etag)])
            .await;
        assert_eq!((again.code, again.body), (304, json!("")));
        let document = answer.expect(200);
        assert_eq!(document["apiVersion"], "apidiscovery.k8s.io/v2");
        let items = document["items"].as_array().unwrap();
        let item = items
            .iter()
            .find(|item| item["metadata"].get("name").and_then(Value::as_str) == group);
        let version = &item.unwrap()["versions"][0];
        assert_eq!(
            (&version["version"], &version["freshness"]),
            (&json!("v1"), &json!("Current"))
        );
        for resource in version["resources"].as_array().unwrap() {
            let kinds = std::iter::once(resource).chain(resource["subresources"].as_array().into_iter().flatten());
            kinds.for_each(|one| {
                assert!(
                    one["responseKind"]["kind"]
                        .as_str()
                        .is_some_and(|kind| !kind.is_empty()),
                    "{one}"
                )
            });
        }
    }
    let groups = admin.get_with("/apis", &[("accept", AGGREGATED)]).await.expect(200);
    let groups = groups["items"].as_array().unwrap();
    let coordination = groups
        .iter()
        .find(|group| group["metadata"]["name"] == "coordination.k8s.io");
    let leases = json!({
        "resource": "leases", "responseKind": {"group": "", "version": "", "kind": "Lease"}, "scope": "Namespaced",
        "singularResource": "lease",
        "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
    });
    assert_eq!(coordination.unwrap()["versions"][0]["resources"], json!([leases]));
    let old = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
    for (path, kind) in [("/api", "APIVersions"), ("/apis", "APIGroupList")] {
        let plain = admin
            .get_with(path, &[("accept", &format!("{old},application/json"))])
            .await;
        assert_eq!(plain.expect(200)["kind"], kind);
        admin.get_with(path, &[("accept", old)]).await.expect(406);
    }
}

async fn openapi_of(admin: &Client, group_version: &str) -> Value {
    let index = admin.get("/openapi/v3").await.expect(200);
    let index: Value = match index {
        // The index is served as text.
        Value::String(text) => serde_json::from_str(&text).unwrap(),
        other => other,
    };
    let url = index["paths"][group_version]["serverRelativeURL"]
        .as_str()
        .unwrap()
        .to_owned();
    let answer = admin.get(&url).await;
    assert_eq!(answer.header("cache-control"), Some("public, immutable"));
    assert!(answer.header("expires").is_some());
    answer.expect(200)
}

/// Conformance: 1.34, 1.40, 1.41
#[tokio::test]
async fn openapi_v3_names_operations_and_types_of_every_kind() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let core = openapi_of(&admin, "api/v1").await;
    let patch = &core["paths"]["/api/v1/namespaces/{namespace}/pods/{name}"]["patch"];
    assert_eq!(
        patch["x-kubernetes-group-version-kind"],
        json!({ "group": "", "version": "v1", "kind": "Pod" })
    );
    assert!(
        patch["parameters"]
            .as_array()
            .unwrap()
            .iter()
            .any(|one| one["name"] == "fieldValidation")
    );
    let schemas = &core["components"]["schemas"];
    let pod = &schemas["io.k8s.api.core.v1.Pod"];
    assert_eq!(pod["x-kubernetes-group-version-kind"][0]["kind"], "Pod");
    let spec = &schemas["io.k8s.api.core.v1.PodSpec"]["properties"];
    assert_eq!(spec["containers"]["x-kubernetes-patch-merge-key"], "name");
    assert_eq!(spec["containers"]["x-kubernetes-list-map-keys"], json!(["name"]));
    // Every reference has a target.
    let text = core.to_string();
    for reference in text.split("\"#/components/schemas/").skip(1) {
        let name = reference.split('"').next().unwrap();
        assert!(schemas[name].is_object(), "{name}");
    }
    let pools = openapi_of(&admin, "apis/apps.openyurt.io/v1beta2").await;
    assert!(
        pools["components"]["schemas"]
            .to_string()
            .contains("x-kubernetes-preserve-unknown-fields")
    );

    let plain = admin.get("/openapi/v3/api/v1").await;
    let etag = plain.header("etag").unwrap().to_owned();
    assert_eq!(plain.header("cache-control"), Some("no-cache, private"));
    let known = admin.get_with("/openapi/v3/api/v1", &[("if-none-match", &etag)]).await;
    assert_eq!(known.code, 304);
    let moved = admin.get("/openapi/v3/api/v1?hash=OLD").await;
    assert_eq!(moved.code, 301);
    assert!(moved.header("location").unwrap().contains(etag.trim_matches('"')));
    admin
        .get_with("/openapi/v3/api/v1", &[("accept", "application/xml")])
        .await
        .expect(406);
    admin.get("/openapi/v3/apis/nowhere/v1").await.expect(404);
}

/// Conformance: 1.35, 1.43
#[tokio::test]
async fn openapi_v2_is_a_valid_document_in_both_forms() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let answer = admin.get("/openapi/v2").await;
    let etag = answer.header("etag").unwrap().to_owned();
    assert_eq!(answer.expect(200)["swagger"], "2.0");
    assert_eq!(
        admin.get_with("/openapi/v2", &[("if-none-match", &etag)]).await.code,
        304
    );
    let protobuf = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
    let answer = admin.get_with("/openapi/v2", &[("accept", protobuf)]).await;
    let content_type = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
    assert_eq!((answer.code, answer.header("content-type")), (200, Some(content_type)));
    // Field 1 of gnostic's Document is the version of Swagger, field 2 its info with the title.
    assert!(answer.bytes.starts_with(b"\x0a\x032.0\x12"), "{:?}", &answer.bytes[..8]);
    admin
        .get_with("/openapi/v2", &[("accept", "text/html")])
        .await
        .expect(406);
}

/// Conformance: 1.50, 1.51
#[tokio::test]
async fn version_is_semantic_and_names_the_minor_emulated() {
    let server = Server::standalone().await;
    let version = server.admin().get("/version").await;
    assert!(version.bytes.starts_with(b"{\n  \""), "indented by two spaces");
    let version = version.expect(200);
    let git_version = version["gitVersion"].as_str().unwrap();
    let minor = version["minor"].as_str().unwrap();
    assert_eq!(minor, "36", "the minor that is emulated");
    assert!(git_version.starts_with(&format!("v1.{minor}.")), "{git_version}");
    let patch = git_version.split('.').nth(2).unwrap().split(['+', '-']).next().unwrap();
    assert!(patch.parse::<u32>().is_ok(), "{git_version}");
    for field in [
        "major",
        "gitCommit",
        "gitTreeState",
        "buildDate",
        "goVersion",
        "compiler",
        "platform",
    ] {
        assert!(version[field].is_string(), "{field}");
    }
}

/// Conformance: 1.60, 1.61, 1.63, 1.64, 1.65, 1.81
#[tokio::test]
async fn health_answers_everybody_in_kube_apiservers_words() {
    let server = Server::standalone().await;
    let anonymous = server.anonymous();
    for what in ["healthz", "livez", "readyz"] {
        let answer = anonymous.get(&format!("/{what}")).await;
        assert_eq!(answer.header("content-type"), Some("text/plain; charset=utf-8"));
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.expect(200), "ok");
        let verbose = anonymous.get(&format!("/{what}?verbose")).await.expect(200);
        let text = verbose.as_str().unwrap();
        assert!(
            text.starts_with("[+]ping ok\n") && text.ends_with(&format!("{what} check passed\n")),
            "{text}"
        );
    }
    let excluded = anonymous
        .get("/readyz?verbose&exclude=storage&exclude=nothing")
        .await
        .expect(200);
    let text = excluded.as_str().unwrap();
    assert!(text.contains("[+]storage excluded: ok\n"));
    assert!(text.contains("warn: some health checks cannot be excluded: no matches for \"nothing\"\n"));
    anonymous.get("/readyz/ping").await.expect(403);
    let admin = server.admin();
    assert_eq!(admin.get("/readyz/ping").await.expect(200), "ok");
    admin.get("/readyz/nothing").await.expect(404);
    let bearer = [("authorization", "Bearer junk")];
    anonymous.get_with("/readyz", &bearer).await.expect(401);
    let nowhere = admin.get("/nowhere").await;
    assert_eq!(nowhere.header("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(nowhere.expect(404), "404 page not found\n");
    let unknown = admin.get("/apis/coordination.k8s.io/v9").await.expect(404);
    assert_eq!(unknown["message"], "the server could not find the requested resource");
}
