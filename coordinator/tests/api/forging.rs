//! Leaders that feed forged data: who convicts them, what becomes of the data, and who may lead afterwards.

use serde_json::{Value, json};

use crate::feeding::{Leader, event, service};
use crate::harness::{Answer, Server};

const SERVICES: &str = "/api/v1/services";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
const ELECTION: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/yurthub";
const REPORTS: &str = "/yurt/v1/reports";
const BARS: &str = "/yurt/v1/bars";

/// A pool of `members`, whose leader n1 has fed the Service `web`.
async fn pool(members: &str) -> (Server, Leader) {
    let server = Server::start(&["--nodepool", "hangzhou", "--initial-members", members]).await;
    let leader = Leader::elect(&server, "n1").await;
    feed(&server, &leader).await;
    (server, leader)
}

/// Feeds the Service `web` from nothing.
async fn feed(server: &Server, leader: &Leader) {
    let services = collection(server).await;
    let generation = match services["generation"].as_u64().unwrap() {
        0 => 0,
        void => (void / 1_000_000 + 1) * 1_000_000,
    };
    leader
        .snapshot("services", generation, 100, &[service("web", 50)])
        .await
        .expect(200);
    assert_eq!(services_seen(server).await, 200);
}

async fn state(server: &Server) -> Value {
    server.admin().get("/yurt/v1/feed").await.expect(200)
}

async fn collection(server: &Server) -> Value {
    state(server).await["collections"]["services"].clone()
}

/// Code of the answer to a list of the Services.
async fn services_seen(server: &Server) -> u16 {
    server.node("n3").get(SERVICES).await.code
}

fn report(generation: &Value, verdict: &str, accuser: &str) -> Value {
    json!({
        "collection": "services", "generation": generation, "key": "x/web", "resourceVersion": "50",
        "reason": "the cloud does not have it", "verdict": verdict, "accuser": accuser,
    })
}

/// The vote of `node` about the Service `web`.
async fn vote(server: &Server, node: &str, verdict: &str, accuser: &str) -> Answer {
    let generation = collection(server).await["generation"].clone();
    let body = report(&generation, verdict, accuser);
    server.node(node).post(REPORTS, &body).await
}

/// Decision after the report of `node`.
async fn accuse(server: &Server, node: &str) -> Value {
    vote(server, node, "forged", "").await.expect(200)["decision"].clone()
}

async fn metric(server: &Server, line: &str) -> bool {
    let text = server.admin().get("/metrics").await.expect(200);
    text.as_str().unwrap().lines().any(|one| one == line)
}

#[tokio::test]
async fn leader_that_forges_again_after_a_void_loses_the_lease_and_is_barred() {
    let (server, forger) = pool("n1,n2,n3").await;
    assert_eq!(accuse(&server, "n2").await, "open");
    assert_eq!(accuse(&server, "n2").await, "open", "one member counts once");
    let told = state(&server).await;
    assert_eq!(
        (
            &told["reports"][0]["accuser"],
            &told["reports"][0]["key"],
            &told["reports"][0]["resourceVersion"]
        ),
        (&json!("n2"), &json!("x/web"), &json!("50"))
    );
    let seen_by_leader = server.node("n1").get("/yurt/v1/feed").await.expect(200);
    assert_eq!(seen_by_leader["reports"], json!([]), "it could take its forgery back");
    assert_eq!(services_seen(&server).await, 200, "one member voids nothing");
    assert_eq!(accuse(&server, "n3").await, "confirmed");
    assert_eq!(services_seen(&server).await, 429, "what was fed is void");
    let told = state(&server).await;
    assert_eq!((&told["reports"], &told["barred"]), (&json!([]), &json!([])));
    assert!(
        told["holder"].as_str().unwrap().starts_with("n1_"),
        "it may be of an earlier leader"
    );
    let log = server.log();
    assert!(
        log.contains("Pool data is forged") && log.contains("x/web") && log.contains("n1"),
        "{log}"
    );

    feed(&server, &forger).await;
    assert_eq!(accuse(&server, "n3").await, "open");
    assert_eq!(accuse(&server, "n2").await, "confirmed");
    let told = state(&server).await;
    assert_eq!(
        (&told["holder"], &told["barred"][0]["node"]),
        (&json!(""), &json!("n1"))
    );
    assert_eq!(told["barred"][0]["count"], 1);
    assert_eq!(server.node("n2").get(BARS).await.expect(200)["barred"], told["barred"]);
    assert!(metric(&server, r#"yurt_coordinator_barred{node="n1"} 1"#).await);
    assert!(
        metric(
            &server,
            r#"yurt_coordinator_forgeries_confirmed_total{collection="services"} 2"#
        )
        .await
    );

    let late = forger
        .events(100, json!([event("MODIFIED", service("web", 110))]), 110)
        .await;
    assert_eq!(late.expect(409)["reason"], "fenced");
    let mut lease = server.admin().get(ELECTION).await.expect(200);
    lease["spec"]["holderIdentity"] = json!("n1_1");
    let refused = server.node("n1").put(ELECTION, &lease).await.expect(403);
    let message = refused["message"].as_str().unwrap();
    assert!(
        message.contains("forged") && message.contains("DELETE /yurt/v1/bars/n1"),
        "{message}"
    );

    // Another leader need not wait for anything.
    let honest = Leader::elect(&server, "n2").await;
    feed(&server, &honest).await;
    honest.release().await;

    server.node("n2").delete(&format!("{BARS}/n1")).await.expect(403);
    server.admin().delete(&format!("{BARS}/n2")).await.expect(404);
    let lifted = server.admin().delete(&format!("{BARS}/n1")).await.expect(200);
    assert_eq!(lifted["barred"], json!([]));
    let mut lease = server.admin().get(ELECTION).await.expect(200);
    lease["spec"]["holderIdentity"] = json!("n1_1");
    // It held the lease less than a retry period ago.
    let allowed = server.node("n1").put(ELECTION, &lease).await.code;
    assert!(matches!(allowed, 200 | 429), "{allowed}");
}

#[tokio::test]
async fn leader_whose_data_may_be_of_another_is_not_barred() {
    let (server, first) = pool("n1,n2,n3").await;
    server.admin().delete("/yurt/v1/feed/services").await.expect(200);
    feed(&server, &first).await;
    first.release().await;
    let second = Leader::elect(&server, "n2").await;
    let body = json!({"after": "100", "events": [], "upTo": "101", "fresh": true});
    let mut body = body;
    body["generation"] = collection(&server).await["generation"].clone();
    second.call("services/events", body).await.expect(200);
    assert_eq!(accuse(&server, "n1").await, "open");
    assert_eq!(accuse(&server, "n3").await, "confirmed");
    let told = state(&server).await;
    assert_eq!((&told["holder"], &told["barred"]), (&json!("n2_1"), &json!([])));
    assert_eq!(services_seen(&server).await, 429, "it is void all the same");
}

#[tokio::test]
async fn forger_that_gave_the_lease_back_is_barred_as_well() {
    let (server, forger) = pool("n1,n2,n3").await;
    server.admin().delete("/yurt/v1/feed/services").await.expect(200);
    feed(&server, &forger).await;
    forger.release().await;
    assert_eq!(accuse(&server, "n2").await, "open");
    assert_eq!(accuse(&server, "n3").await, "confirmed");
    assert_eq!(state(&server).await["barred"][0]["node"], "n1");
    let lease =
        json!({"metadata": {"name": "yurthub"}, "spec": {"holderIdentity": "n1_2", "leaseDurationSeconds": 15}});
    server.admin().delete(ELECTION).await.expect(200);
    server.node("n1").post(LEASES, &lease).await.expect(403);
}

#[tokio::test]
async fn stolen_keys_depose_nobody_and_a_liar_is_ignored() {
    let (server, leader) = pool("n1,n2,n3,n4,n5").await;
    for liar in ["n2", "n3", "n2", "n3"] {
        assert_eq!(accuse(&server, liar).await, "open");
    }
    for (honest, decision) in [("n4", "open"), ("n5", "open"), ("n3", "denied")] {
        let decided = vote(&server, honest, "honest", "n2").await.expect(200);
        assert_eq!(decided["decision"], decision, "{honest}");
    }
    let ignored = vote(&server, "n2", "forged", "").await;
    let wait: u64 = ignored.header("retry-after").unwrap().parse().unwrap();
    assert!(ignored.code == 429 && (500..=601).contains(&wait), "{:?}", ignored.body);
    assert_eq!(services_seen(&server).await, 200);
    let told = state(&server).await;
    assert_eq!((&told["holder"], &told["barred"]), (&json!("n1_1"), &json!([])));
    leader
        .events(100, json!([event("MODIFIED", service("web", 110))]), 110)
        .await
        .expect(200);
}

#[tokio::test]
async fn reports_are_taken_from_voters_about_present_data_only() {
    let (server, _leader) = pool("n1,n2,n3").await;
    let good = report(&json!(0), "forged", "");
    let with = |field: &str, value: Value| {
        let mut body = good.clone();
        body[field] = value;
        body
    };
    for (who, code) in [
        (server.node("n1"), 403),
        (server.node("n9"), 403),
        (server.anonymous(), 403),
        (server.admin(), 400),
    ] {
        assert_eq!(who.post(REPORTS, &good).await.code, code);
    }
    for (body, code) in [
        (json!({}), 400),
        (with("key", json!("x\n2026 forged log line")), 400),
        (with("key", json!("x".repeat(508))), 400),
        (with("verdict", json!("maybe")), 400),
        (with("reason", json!("x".repeat(5000))), 413),
        (with("collection", json!("nothing")), 404),
        (with("collection", json!("members")), 404),
        (report(&json!(0), "honest", "n3"), 404),
    ] {
        let answer = server.node("n2").post(REPORTS, &body).await;
        assert_eq!(answer.code, code, "{body}: {:?}", answer.body);
    }
    server.node("n2").get(REPORTS).await.expect(403);
    server.admin().delete("/yurt/v1/feed/services").await.expect(200);
    let refused = server.node("n2").post(REPORTS, &good).await.expect(409);
    assert!(
        refused["message"].as_str().unwrap().contains("void already"),
        "{refused}"
    );
    assert_eq!(state(&server).await["reports"], json!([]));
}
