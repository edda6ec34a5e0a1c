//! Watchers: what one more costs, fan-out CPU, time to the last of them (rows 4, 5, 6, 13), first with a connection
//! each, as hubs and informers have them, then with as many on a connection as the baseline allows.

use std::fmt;
use std::time::Duration;

use anyhow::{Result, ensure};
use http::Method;
use serde_json::json;
use yurt_workspace::Stopwatch;

use super::load::{Ask, JSON, MERGE, PROTOBUF, Session, Watchers, quantile};
use super::memory::mib;
use super::options::Scale;
use super::samples::{CONFIG_MAPS, SLICES, config_map, slice};
use super::system_under_test::SystemUnderTest;
use super::table::{Notes, Unit};

/// Watches on one connection: kube-apiserver allows a hundred streams.
const PER_CONNECTION: usize = 90;
const CONNECTIONS: usize = 3000;
const STREAMS: usize = 2000;
const MANY: usize = 5000;
const FANOUT: usize = 1000;
/// Enough for a p99 that is not the slowest.
const EVENTS: usize = 200;
/// A slice of this many endpoints is 20.5 KB of protobuf.
const LARGE: usize = 180;
const SETTLE: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(120);

/// Measures one shape: each on a server of its own, as memory that the other one needed would be used again.
pub(super) async fn measure(system: SystemUnderTest, shape: Shape, scale: Scale, notes: &mut Notes<'_>) -> Result<()> {
    let admin = system.session()?;
    admin
        .send(Ask::new(
            Method::POST,
            CONFIG_MAPS,
            config_map("small", 400).to_string(),
        ))
        .await?;
    admin
        .send(Ask::new(Method::POST, SLICES, slice("large", LARGE).to_string()))
        .await?;
    one_more(&system, shape, scale, notes).await?;
    for load in [Load::small(), Load::large()] {
        fan_out(&system, &admin, (load, shape), scale, notes).await?;
    }
    many(&system, &admin, shape, scale, notes).await
}

/// Connections of the watchers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// One TLS connection for each.
    Own,
    /// One for [`PER_CONNECTION`] of them.
    Shared,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => f.write_str("a connection each"),
            Self::Shared => write!(f, "{PER_CONNECTION} on a connection"),
        }
    }
}

// === impl Shape ===

impl Shape {
    /// Connections for so many watchers.
    fn connections(self, watchers: usize) -> usize {
        match self {
            Self::Own => watchers,
            Self::Shared => watchers.div_ceil(PER_CONNECTION),
        }
    }
}

/// Objects that the watchers of a measurement watch, and their changes.
#[derive(Clone, Copy)]
struct Load {
    what: &'static str,
    collection: &'static str,
    object: &'static str,
    accept: &'static str,
}

impl Load {
    fn small() -> Self {
        Self {
            what: "0.8 KB JSON",
            collection: CONFIG_MAPS,
            object: "small",
            accept: JSON,
        }
    }

    fn large() -> Self {
        Self {
            what: "20.5 KB protobuf",
            collection: SLICES,
            object: "large",
            accept: PROTOBUF,
        }
    }

    fn watch(&self) -> String {
        format!(
            "{}?watch=1&resourceVersion=0&sendInitialEvents=false&resourceVersionMatch=NotOlderThan&timeoutSeconds=3600",
            self.collection
        )
    }

    async fn change(&self, admin: &Session, turn: usize) -> Result<()> {
        let patch = json!({ "metadata": { "annotations": { "bench/turn": format!("{turn:06}") } } });
        let path = format!("{}/{}", self.collection, self.object);
        let ask = Ask {
            content_type: MERGE,
            ..Ask::new(Method::PATCH, &path, patch.to_string())
        };
        admin.send(ask).await.map(drop)
    }
}

/// Memory of one more watch.
async fn one_more(system: &SystemUnderTest, shape: Shape, scale: Scale, notes: &mut Notes<'_>) -> Result<()> {
    let (connections, streams) = match shape {
        Shape::Own => (scale.of(CONNECTIONS), 1),
        Shape::Shared => (shape.connections(scale.of(STREAMS)), PER_CONNECTION),
    };
    let tasks = system.setup.tasks.child();
    let watchers = Watchers::default();
    let sessions: Vec<Session> = (0..connections).map(|_| system.session()).collect::<Result<_>>()?;
    let path = Load::small().watch();
    if shape == Shape::Shared {
        // The connections are paid for before the extra streams are counted.
        for session in &sessions {
            watchers.open(&tasks, session, &path, JSON).await?;
        }
    }
    tokio::time::sleep(SETTLE).await;
    let before = system.usage()?.own;
    for session in &sessions {
        for _ in 0..streams {
            watchers.open(&tasks, session, &path, JSON).await?;
        }
    }
    tokio::time::sleep(SETTLE).await;
    let grown = system.usage()?.own.saturating_sub(before) as f64;
    notes.add(
        "4",
        &format!("one more watch, {shape}: memory"),
        Unit::Kib,
        grown / 1024.0 / (connections * streams) as f64,
    );
    let _ = tasks.shutdown(SETTLE).await;
    Ok(())
}

async fn fan_out(
    system: &SystemUnderTest,
    admin: &Session,
    (load, shape): (Load, Shape),
    scale: Scale,
    notes: &mut Notes<'_>,
) -> Result<()> {
    let tasks = system.setup.tasks.child();
    let count = scale.of(FANOUT);
    let (watchers, _sessions) = open(system, &tasks, (load, shape), count).await?;
    let start = watchers.events();
    let before = system.usage()?.cpu;
    let mut took = Vec::new();
    for turn in 0..EVENTS {
        let watch = Stopwatch::start();
        load.change(admin, turn).await?;
        watchers.received(start + (count * (turn + 1)) as u64, PATIENCE).await?;
        took.push(watch.elapsed());
    }
    let cpu = (system.usage()?.cpu - before).as_secs_f64() * 1e6 / (count * EVENTS) as f64;
    took.sort_unstable();
    ensure!(watchers.ended() == 0, "{} watches ended", watchers.ended());
    let what = load.what;
    notes.add(
        "6",
        &format!("fan-out to 1,000 watchers, {shape}, {what}: CPU per delivery"),
        Unit::Micros,
        cpu,
    );
    notes.add(
        "13",
        &format!("patch sent to last of 1,000 watchers, {shape}, {what}, p50"),
        Unit::Millis,
        quantile(&took, 0.5),
    );
    notes.add(
        "13",
        &format!("patch sent to last of 1,000 watchers, {shape}, {what}, p99"),
        Unit::Millis,
        quantile(&took, 0.99),
    );
    let _ = tasks.shutdown(SETTLE).await;
    Ok(())
}

/// Memory with 5,000 watchers after 20 events of 20 KB.
async fn many(
    system: &SystemUnderTest,
    admin: &Session,
    shape: Shape,
    scale: Scale,
    notes: &mut Notes<'_>,
) -> Result<()> {
    let tasks = system.setup.tasks.child();
    let (load, count) = (Load::large(), scale.of(MANY));
    let (watchers, _sessions) = open(system, &tasks, (load, shape), count).await?;
    let start = watchers.events();
    for turn in 0..20 {
        load.change(admin, 1000 + turn).await?;
    }
    watchers.received(start + (count * 20) as u64, PATIENCE).await?;
    notes.add(
        "5",
        &format!("RSS with 5,000 watchers, {shape}, after 20 events of 20 KB"),
        Unit::Mib,
        mib(system.usage()?.rss),
    );
    let _ = tasks.shutdown(SETTLE).await;
    Ok(())
}

/// Opens `count` watches.
async fn open(
    system: &SystemUnderTest,
    tasks: &yurt_runtime::TaskGroup,
    (load, shape): (Load, Shape),
    count: usize,
) -> Result<(Watchers, Vec<Session>)> {
    let watchers = Watchers::default();
    let sessions: Vec<Session> = (0..shape.connections(count))
        .map(|_| system.session())
        .collect::<Result<_>>()?;
    let path = load.watch();
    for at in 0..count {
        let session = &sessions[at % sessions.len()];
        let content_type = watchers.open(tasks, session, &path, load.accept).await?;
        ensure!(
            content_type.starts_with(load.accept),
            "asked for {}, got {content_type}",
            load.accept
        );
    }
    tokio::time::sleep(SETTLE).await;
    Ok((watchers, sessions))
}
