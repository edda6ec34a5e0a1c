//! Bytes that the cloud sends to a pool, by its size (row 20).

use std::time::Duration;

use anyhow::{Context, Result};
use yurt_testbed::cloud::Choice;
use yurt_testbed::hub::Election;
use yurt_testbed::pool::TestPool;

use super::fixture::{self, PATIENCE};
use crate::system_under_test::Environment;
use crate::table::{Notes, Unit};

/// Pools that are started.
const POOLS: [usize; 3] = [3, 10, 30];
/// Pools that are computed from those.
const COMPUTED: [usize; 2] = [100, 1000];
/// Slices of the pools that are started; the rest is computed from their bytes.
const SLICES: usize = 200;
/// Services and slices of the large cloud.
const LARGE: f64 = 10_000.0;
/// Changes of a slice after the first sync.
const CHANGES: usize = 100;
/// Time for the bytes that follow the data of a start: TLS tickets and probes.
const SETTLE: Duration = Duration::from_secs(3);
/// Bytes of a pool from the cloud.
struct Sent {
    hubs: f64,
    /// Until every hub had all data.
    start: f64,
    /// For [`CHANGES`] changes after that.
    changes: f64,
}

pub(super) async fn measure(environment: &Environment, notes: &mut Notes<'_>) -> Result<()> {
    let mut all = Vec::new();
    for hubs in POOLS {
        let sent = pool(environment, hubs)
            .await
            .with_context(|| format!("a pool of {hubs}"))?;
        let what = format!("cloud to a pool of {hubs}, 200 slices");
        notes.add("20", &format!("{what}: first sync"), Unit::Mib, mib(sent.start));
        notes.add(
            "20",
            &format!("{what}: {CHANGES} changes of 25 KB"),
            Unit::Kib,
            sent.changes / 1024.0,
        );
        all.push(sent);
    }
    let (small, large) = (&all[0], &all[all.len() - 1]);
    let per_hub = (large.start - small.start) / (large.hubs - small.hubs);
    let once = small.start - per_hub * small.hubs;
    notes.add(
        "20",
        "one more hub, from the smallest to the largest pool",
        Unit::Kib,
        per_hub / 1024.0,
    );
    // As it goes over the link, compressed. A hub alone reads what the leader reads. A Service is small beside its
    // slice; it is left out on both sides.
    let data = once * LARGE / SLICES as f64;
    for hubs in COMPUTED {
        let hubs = hubs as f64;
        let pool = data + per_hub.max(0.0) * hubs;
        let share = 100.0 * (1.0 - pool / (data * hubs));
        let what = format!("computed: {hubs:.0} hubs, 10,000 slices");
        notes.add("20", &format!("{what}: to the pool"), Unit::Mib, mib(pool));
        notes.add(
            "20",
            &format!("{what}: less than each hub by itself"),
            Unit::Percent,
            share,
        );
    }
    Ok(())
}

fn mib(bytes: f64) -> f64 {
    bytes / (1024.0 * 1024.0)
}

async fn pool(environment: &Environment, hubs: usize) -> Result<Sent> {
    let mut pool = fixture::prepare(environment, &Choice::Demo, hubs, Election::SHORT, SLICES).await?;
    fixture::start(&mut pool).await?;
    tokio::time::sleep(SETTLE).await;
    let start = from_cloud(&pool);
    for turn in 0..CHANGES {
        fixture::touch(&pool.cloud.api, turn).await?;
    }
    let coordinator = pool.coordinator.api.clone();
    pool.catches_up(PATIENCE, "the coordinator", &coordinator).await?;
    let changes = from_cloud(&pool) - start;
    fixture::end(pool).await?;
    Ok(Sent {
        hubs: hubs as f64,
        start,
        changes,
    })
}

fn from_cloud(pool: &TestPool) -> f64 {
    let bytes = pool.hubs.iter().map(|hub| hub.link.traffic().bytes_from_cloud);
    bytes.sum::<u64>() as f64
}
