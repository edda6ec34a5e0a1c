//! kube-apiserver on etcd as the pool's server, as upstream has it, with a copier of ours in place of upstream's
//! leader.
//!
//! The copier does one thing: it writes each change of a slice in the cloud to the pool's server, which gives it a new
//! resourceVersion. It is in this process, so its own cost is in no row. It has no election and no filters, and deletes
//! nothing.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use yurt_runtime::TaskGroup;
use yurt_testbed::api::Api;
use yurt_testbed::client::{Client, Received, WATCH_SECONDS};

use super::data::{self, Clients, EVENT, EVENTS};
use super::fixture::{self, SLICES};
use crate::memory::mib;
use crate::samples;
use crate::system_under_test::{Environment, Side, SystemUnderTest};
use crate::table::{Notes, Unit};

/// Changes on their way; the load has one at a time.
const COPIES_MAX: usize = 64;
/// Writes that only the cloud has: a pool's server is younger than its cloud.
const AHEAD: usize = 1000;

/// Memory, events, and what a client needs when its source changes.
pub(super) async fn measure(environment: &Environment, notes: &mut Notes<'_>) -> Result<()> {
    let cloud = SystemUnderTest::start(environment, Side::Baseline).await?;
    let pool = SystemUnderTest::start(environment, Side::Baseline).await?;
    fixture::load(&cloud.api, SLICES).await?;
    fixture::load(&pool.api, SLICES).await?;
    let usage = pool.usage()?;
    notes.add("17", "RSS with 1,009 slices: pool's server", Unit::Mib, mib(usage.rss));
    notes.add("17", "PSS with 1,009 slices: pool's server", Unit::Mib, mib(usage.pss));
    notes.add(
        "17",
        "RSS with 1,009 slices: etcd beside it",
        Unit::Mib,
        mib(usage.store_rss),
    );
    let tasks = cloud.setup.tasks.child();
    copy(&tasks, cloud.api.clone(), pool.api.clone()).await?;
    events(&cloud, &pool, &tasks, notes).await?;
    for turn in 0..AHEAD {
        let patch = json!({"metadata": {"annotations": {"bench/ahead": turn.to_string()}}});
        cloud.api.merge("/api/v1/namespaces/default", &patch).await?;
    }
    let lists = fixture::lists_to_go_on(&cloud.api, &pool.api, EVENTS).await?;
    notes.add("15", fixture::GO_ON, Unit::Count, lists);
    let _ = tasks.shutdown(Duration::from_secs(2)).await;
    Ok(())
}

/// Starts to copy changes; what is there already is the same on both sides.
async fn copy(tasks: &TaskGroup, cloud: Api, pool: Api) -> Result<()> {
    let (send, mut changed) = mpsc::channel::<Value>(COPIES_MAX);
    let record = move |told: Received<'_>| {
        if let Received::Event(event) = told
            && matches!(event["type"].as_str(), Some("ADDED" | "MODIFIED"))
        {
            // A change that finds no room is missing in the figures, which then fail.
            let _ = send.try_send(event["object"].clone());
        }
    };
    let source = Client::recording(tasks, cloud, samples::ALL_SLICES, WATCH_SECONDS, record);
    source.sees(|view| view.watching).await?;
    let token = tasks.token();
    let copying = async move {
        while let Some(mut object) = changed.recv().await {
            if let Some(metadata) = object["metadata"].as_object_mut() {
                metadata
                    .retain(|fixture, _| matches!(fixture.as_str(), "name" | "namespace" | "labels" | "annotations"));
            }
            let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            let _ = pool.replace(&format!("{}/{name}", samples::SLICES), &object).await;
        }
        drop(source);
    };
    tasks.spawn("copier", async move {
        token.run_until_cancelled(copying).await;
    });
    Ok(())
}

async fn events(
    cloud: &SystemUnderTest,
    pool: &SystemUnderTest,
    tasks: &TaskGroup,
    notes: &mut Notes<'_>,
) -> Result<()> {
    let clients = Clients::watch(tasks, &cloud.api, &pool.api).await?;
    let before = pool.usage()?.cpu;
    let added = clients.delays(&cloud.api).await?;
    let cpu = pool.usage()?.cpu.saturating_sub(before);
    data::tell(&added, EVENT, notes);
    let each = cpu.as_secs_f64() * 1e6 / EVENTS as f64;
    notes.add("18", "CPU per event: pool's server", Unit::Micros, each);
    Ok(())
}
