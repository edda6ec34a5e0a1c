//! Start and memory: empty, with 500 nodes and 1,000 pods of 7 KB, after 20,000 patches of them (rows 1, 2, 3, 12).

use std::time::Duration;

use anyhow::Result;
use http::Method;
use serde_json::{Value, json};

use super::load::{Ask, JSON, Job, MERGE, series};
use super::options::Scale;
use super::samples::{ACCOUNTS, NODES, PODS, node, pod};
use super::system_under_test::SystemUnderTest;
use super::table::{Notes, Unit};

const NODE_COUNT: usize = 500;
const POD_COUNT: usize = 1000;
const OBJECT_BYTES: usize = 7000;
const PATCHES: usize = 20_000;
/// Idle time before memory is read. The coordinator unmaps pages that it does not use once a minute; a program in Go
/// returns memory within minutes.
const SETTLE: Duration = Duration::from_secs(75);

pub(super) async fn measure(mut system: SystemUnderTest, scale: Scale, notes: &mut Notes<'_>) -> Result<()> {
    notes.add("12", "exec to /readyz, empty", Unit::Millis, millis(system.ready_after));
    read(&system, notes, "1", "idle").await?;
    let (nodes, pods) = (scale.of(NODE_COUNT), scale.of(POD_COUNT));
    let sessions = [system.session()?, system.session()?];
    let create = |path: &str, object: Value| Job {
        method: Method::POST,
        path: path.to_owned(),
        content_type: JSON,
        body: object.to_string().into(),
    };
    // kube-apiserver admits no pod without the account its controllers would make.
    let account = json!({ "metadata": { "name": "default" } }).to_string();
    sessions[0].send(Ask::new(Method::POST, ACCOUNTS, account)).await?;
    series(&sessions, 4, nodes, |at| {
        create(NODES, node(&format!("node-{at:04}"), OBJECT_BYTES))
    })
    .await?;
    series(&sessions, 4, pods, |at| {
        create(PODS, pod(&format!("pod-{at:04}"), OBJECT_BYTES))
    })
    .await?;
    read(&system, notes, "2", "500 nodes and 1,000 pods of 7 KB").await?;
    let before = system.usage()?.cpu;
    let patches = scale.of(PATCHES);
    series(&sessions, 2, patches, |at| Job {
        method: Method::PATCH,
        path: format!("{PODS}/pod-{:04}", at % pods),
        content_type: MERGE,
        body: json!({ "metadata": { "annotations": { "bench/turn": at.to_string() } } })
            .to_string()
            .into(),
    })
    .await?;
    let cpu = (system.usage()?.cpu - before).as_secs_f64() * 1e6 / patches as f64;
    notes.add("9", "merge patch of a 7 KB pod, CPU", Unit::Micros, cpu);
    read(&system, notes, "3", "the same after 20,000 merge patches").await?;
    drop(sessions);
    system.restart().await?;
    notes.add(
        "12",
        "exec to /readyz, 1,500 objects",
        Unit::Millis,
        millis(system.ready_after),
    );
    Ok(())
}

async fn read(system: &SystemUnderTest, notes: &mut Notes<'_>, row: &'static str, what: &str) -> Result<()> {
    tokio::time::sleep(SETTLE).await;
    let usage = system.usage()?;
    notes.add(row, &format!("RSS, {what}"), Unit::Mib, mib(usage.rss));
    notes.add(row, &format!("PSS, {what}"), Unit::Mib, mib(usage.pss));
    if usage.store_rss > 0 {
        notes.add(
            row,
            &format!("RSS of etcd beside it, {what}"),
            Unit::Mib,
            mib(usage.store_rss),
        );
    }
    Ok(())
}

pub(super) fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
