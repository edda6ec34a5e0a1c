//! Restores the cloud from a backup, once, after everything else of a run, when all clients hold its state.
//!
//! Alone at the end, so that the rules of everything else stay strict: from here on, and only here, a client may go
//! back, once, into another history (`validate/`, `rollback`). Resources that are not shared are left out: their
//! clients read the cloud itself.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use yurt_chaos_validate::history::{CheckResult, Truth};
use yurt_chaos_validate::rollback::{self, Rollback};
use yurt_runtime::Clock;
use yurt_testbed::hub::COLLECTIONS;
use yurt_testbed::link::Mode;
use yurt_testbed::pool::TestPool;
use yurt_testbed::ready;

use super::clients::{self, Recorded};
use super::environment::{self, Environment};
use super::faults::{Act, FaultTarget};
use super::run;
use super::traffic::Traffic;

/// Changes in the restored cloud.
const CHANGES: u64 = 100;
/// Marks of these changes begin here: no earlier change has such a mark.
const FIRST_MARK: u64 = 1_000_000;
const MICROS_PER_SECOND: u64 = 1_000_000;
/// More numbers than the cloud issues until its last one is read.
const MORE: u64 = 1_000;

/// State of the pool during the restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meanwhile {
    Nothing,
    LeaderKilled,
    /// No hub reaches the cloud until it has changed.
    Offline,
}

/// Copies the data on the cloud's disk. The cloud is stopped in order: that stores the renewals of leases.
///
/// # Errors
/// A cloud that does not start again, or cannot be copied.
pub(super) async fn back_up(pool: &mut TestPool) -> Result<()> {
    let (data, copy) = places(pool)?;
    pool.cloud.process.stop(environment::STOP_LIMIT).await?;
    copy_folder(&data, &copy)?;
    start(pool).await
}

/// Restores the cloud, changes it, and waits until every client has all of it. Returns the violations in the clients'
/// histories.
///
/// # Errors
/// A cloud that does not start, a pool that does not come to rest.
pub(super) async fn play(
    environment: &mut Environment,
    seed: u64,
    reference_clients: &[Recorded],
    clients: &[Recorded],
    leader: Option<usize>,
) -> Result<CheckResult> {
    let meanwhile = match (seed % 3, leader) {
        (0, _) => Meanwhile::Nothing,
        (1, Some(_)) => Meanwhile::LeaderKilled,
        _ => Meanwhile::Offline,
    };
    println!("the cloud is restored from a backup; pool: {meanwhile:?}");
    let lengths: Vec<usize> = clients.iter().map(|client| client.seen().len()).collect();
    let before: Vec<(&str, Truth)> = reference_clients
        .iter()
        .map(|one| (one.collection, Truth::of(&one.seen())))
        .collect();
    let (begin, end) = match meanwhile {
        Meanwhile::Nothing => (Act::Good, Act::Good),
        Meanwhile::LeaderKilled => (Act::Kill, Act::Start),
        Meanwhile::Offline => (Act::Link(Mode::Cut), Act::Link(Mode::Pass)),
    };
    let targets: Vec<FaultTarget> = match (meanwhile, leader) {
        (Meanwhile::LeaderKilled, Some(leader)) => vec![FaultTarget::Hub(leader)],
        _ => (0..environment.pool.hubs.len()).map(FaultTarget::CloudLink).collect(),
    };
    for target in &targets {
        environment.perform(*target, begin).await?;
    }
    let head = environment.pool.cloud.api.list(COLLECTIONS[0]).await?.resource_version;
    restore(&mut environment.pool).await?;
    // Numbers of a demo cloud are times, but ahead of them after it was killed.
    let now = Clock::system().unix();
    let now = u64::try_from(now.secs).unwrap_or(0) * MICROS_PER_SECOND;
    let ended = now.max(head + MORE);
    start(&mut environment.pool).await?;
    let again = clients::reference_clients(environment, "cloud that came back", &COLLECTIONS).await?;
    Traffic::start(environment, (seed, FIRST_MARK), &COLLECTIONS)
        .end_after(CHANGES)
        .await?;
    for target in &targets {
        environment.perform(*target, end).await?;
    }
    run::at_rest(environment, clients, &COLLECTIONS).await?;
    // The others have listed again, or wait up to a minute for their list.
    let resuming = clients
        .iter()
        .filter(|one| one.resumes && !one.is_filtered() && COLLECTIONS.contains(&one.collection));
    clients::last_bookmarks(resuming).await?;
    let mut verdict = CheckResult::default();
    for reference_client in &again {
        reference_client.save(&environment.pool.setup.dir)?;
        let before = before
            .iter()
            .find(|(collection, _)| *collection == reference_client.collection);
        let (_, before) = before.context("no history of the cloud before its restore")?;
        let after = before.restored(&reference_client.seen()).map_err(|why| anyhow!(why))?;
        let rollback = Rollback {
            before,
            after: &after,
            ended,
            lists_max: 1,
        };
        let told = clients
            .iter()
            .zip(&lengths)
            .filter(|(client, _)| client.collection == reference_client.collection && !client.is_filtered());
        for (client, length) in told {
            verdict.add(client.named(rollback::check(&client.seen(), *length, &rollback)));
        }
    }
    Ok(verdict)
}

async fn restore(pool: &mut TestPool) -> Result<()> {
    let (data, copy) = places(pool)?;
    pool.cloud.process.kill().await?;
    environment::empty(&data)?;
    copy_folder(&copy, &data)
}

async fn start(pool: &mut TestPool) -> Result<()> {
    let cloud = &mut pool.cloud;
    ready(cloud.process.start()?, &cloud.api, "the cloud").await.map(drop)
}

/// Folders of the cloud's data, and of their copy.
fn places(pool: &TestPool) -> Result<(PathBuf, PathBuf)> {
    let data = pool.cloud.data.clone().context("this cloud cannot be copied")?;
    Ok((data, pool.setup.dir.join("cloud.backup")))
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy_folder(&from, &to)?;
        } else {
            std::fs::copy(&from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
        }
    }
    Ok(())
}
