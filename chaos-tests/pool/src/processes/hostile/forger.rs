//! A member that acquires the lease by the rules and feeds forged Services: once, alone, after everything else of a
//! run.
//!
//! The hubs are killed, and the forger acquires the lease once it is silent. Hubs that start again replicate the
//! forgery, find it in their samples, and the members void it. The forger feeds it once more, and must lose the lease
//! and be barred. Clients receive forged data until then, so this is no part of the histories that are checked.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use yurt_testbed::api::Api;
use yurt_testbed::hub::{COLLECTIONS, Election};
use yurt_testbed::pool::{ELECTION, TestPool};
use yurt_testbed::wait_for::wait_for;

use super::member::NODE;
use crate::processes::environment::Environment;

/// The forger's name as an elector.
const IDENTITY: &str = "shore-hostile_forger";
const FEED: &str = "/yurt/v1/feed";
/// Address that the forger gives to every Service.
const FORGED_IP: &str = "10.96.66.66";
/// Hubs take samples this often, so that the run is short.
const OFTEN: &str = "2s";
/// Pause between two rounds of the forger; it renews more often than its lease ends.
const PACE: Duration = Duration::from_millis(300);
/// Time until the members have found the forgery twice.
const PATIENCE: Duration = Duration::from_secs(120);
/// Time for the requests that show a leader, on a busy machine.
const ASKING: Duration = Duration::from_secs(5);

/// The forger.
struct Forger {
    api: Api,
    /// Forged Services, and the position of their list.
    services: Vec<Value>,
    at: String,
    /// Generation that the forger fed last.
    fed: Option<u64>,
}

/// Lets the forger lead, and waits until it is barred and another hub leads.
///
/// # Errors
/// A forger that keeps the lease, a pool without a leader afterwards.
pub(in super::super) async fn play(environment: &mut Environment) -> Result<()> {
    println!("a member leads by the rules and forges");
    let pool = &mut environment.pool;
    for hub in &mut pool.hubs {
        hub.process.set_flag("pool-data-verify-period", OFTEN);
        hub.process.kill().await?;
    }
    let mut forger = Forger::new(pool).await?;
    wait_for(PATIENCE, "the forger leads", async || forger.acquire().await).await?;
    forger.round().await?;
    for hub in &mut pool.hubs {
        hub.start()?;
    }
    let coordinator = pool.coordinator.api.clone();
    let is_barred = async || {
        let state = coordinator.get(FEED).await?;
        ensure!(state["barred"][0]["node"] == NODE, "barred: {}", state["barred"]);
        Ok(())
    };
    let forging = async {
        loop {
            // Its calls fail once it does not lead.
            let _ = forger.round().await;
            tokio::time::sleep(PACE).await;
        }
    };
    let (_, took) = tokio::select! {
        found = wait_for(PATIENCE, "the forger is barred", is_barred) => found?,
        never = forging => never,
    };
    println!("the forger is barred after {:.1} s", took.as_secs_f64());
    wait_for(
        Election::SHORT.lease + ASKING,
        "one hub leads after the forger",
        async || pool.leader().await,
    )
    .await?;
    let refused = forger.acquire().await.err().context("the forger leads again")?;
    ensure!(format!("{refused:#}").contains("forged pool data"), "{refused:#}");
    Ok(())
}

// === impl Forger ===

impl Forger {
    async fn new(pool: &TestPool) -> Result<Self> {
        let identities = &pool.setup.identities;
        let pair = identities.client_pair(&format!("system:node:{NODE}"), &["system:nodes"])?;
        let mut list = pool.cloud.api.get(COLLECTIONS[0]).await?;
        let mut services: Vec<Value> = serde_json::from_value(list["items"].take())?;
        for service in &mut services {
            service["apiVersion"] = "v1".into();
            service["kind"] = "Service".into();
            service["spec"]["clusterIP"] = FORGED_IP.into();
        }
        Ok(Self {
            api: Api::https(pool.coordinator.port, identities.ca_pem(), &pair)?,
            services,
            at: list["metadata"]["resourceVersion"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            fed: None,
        })
    }

    /// Acquires the lease.
    async fn acquire(&self) -> Result<()> {
        let mut lease = self.api.get(ELECTION).await?;
        lease["spec"]["holderIdentity"] = IDENTITY.into();
        self.api.replace(ELECTION, &lease).await.map(drop)
    }

    /// Renews, and feeds the forged Services where the coordinator does not have them.
    async fn round(&mut self) -> Result<()> {
        let state = self.api.get(FEED).await?;
        ensure!(state["holder"] == IDENTITY, "{} leads", state["holder"]);
        // Any change is a renewal.
        let mut lease = self.api.get(ELECTION).await?;
        lease["metadata"]["annotations"]["forger"] = lease["metadata"]["resourceVersion"].clone();
        self.api.replace(ELECTION, &lease).await?;
        let generation = state["collections"]["services"]["generation"]
            .as_u64()
            .unwrap_or_default();
        if self.fed == Some(generation) {
            return Ok(());
        }
        let next = (generation / 1_000_000 + 1) * 1_000_000;
        let claim = |more: Value| {
            let mut body = json!({"store": state["store"], "epoch": state["epoch"], "generation": next, "at": self.at, "fresh": true});
            if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
                body.extend(more);
            }
            body
        };
        let index: Vec<Value> = self.services.iter().map(entry).collect();
        let path = format!("{FEED}/services/snapshot?version=1");
        self.api.create(&path, &claim(json!({"index": index}))).await?;
        let path = format!("{FEED}/services/snapshot/bodies?version=1");
        self.api
            .create(&path, &claim(json!({"objects": self.services})))
            .await?;
        self.fed = Some(next);
        Ok(())
    }
}

/// Key and resourceVersion of an object in the index of a snapshot.
fn entry(object: &Value) -> Value {
    let metadata = &object["metadata"];
    let text = |environment: &str| metadata[environment].as_str().unwrap_or_default();
    json!([
        format!("{}/{}", text("namespace"), text("name")),
        metadata["resourceVersion"]
    ])
}
