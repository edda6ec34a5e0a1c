//! Restores the cloud from a backup, once, after everything else of a run, when all clients hold its state.
//!
//! Alone at the end, so that the rules of everything else stay strict: from here on, and only here, a client may go
//! back, once, into another history (`validate/`, `rollback`). Resources that are not shared are left out: their
//! clients read the cloud itself.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use yurt_chaos_validate::history::{Truth, Verdict};
use yurt_chaos_validate::rollback::{self, Rollback};
use yurt_runtime::Clock;
use yurt_testbed::hub::COLLECTIONS;
use yurt_testbed::link::Mode;
use yurt_testbed::ready;
use yurt_testbed::stage::Stage;

use super::clients::{self, Recorded};
use super::faults::{Act, Target};
use super::field::{self, Field};
use super::run::{self, Traffic};

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
pub(super) async fn back_up(stage: &mut Stage) -> Result<()> {
    let (data, copy) = places(stage)?;
    stage.cloud.seat.stop(field::STOP_LIMIT).await?;
    copy_folder(&data, &copy)?;
    start(stage).await
}

/// Restores the cloud, changes it, and waits until every client has all of it. Returns the violations in the clients'
/// histories.
///
/// # Errors
/// A cloud that does not start, a pool that does not come to rest.
pub(super) async fn play(
    field: &mut Field,
    seed: u64,
    witnesses: &[Recorded],
    clients: &[Recorded],
    leader: Option<usize>,
) -> Result<Verdict> {
    let meanwhile = match (seed % 3, leader) {
        (0, _) => Meanwhile::Nothing,
        (1, Some(_)) => Meanwhile::LeaderKilled,
        _ => Meanwhile::Offline,
    };
    println!("the cloud is restored from a backup; pool: {meanwhile:?}");
    let lengths: Vec<usize> = clients.iter().map(|client| client.seen().len()).collect();
    let before: Vec<(&str, Truth)> = witnesses
        .iter()
        .map(|one| (one.collection, Truth::of(&one.seen())))
        .collect();
    let (begin, end) = match meanwhile {
        Meanwhile::Nothing => (Act::Good, Act::Good),
        Meanwhile::LeaderKilled => (Act::Kill, Act::Start),
        Meanwhile::Offline => (Act::Link(Mode::Cut), Act::Link(Mode::Pass)),
    };
    let targets: Vec<Target> = match (meanwhile, leader) {
        (Meanwhile::LeaderKilled, Some(leader)) => vec![Target::Hub(leader)],
        _ => (0..field.stage.hubs.len()).map(Target::CloudLink).collect(),
    };
    for target in &targets {
        field.perform(*target, begin).await?;
    }
    let head = field.stage.cloud.api.list(COLLECTIONS[0]).await?.resource_version;
    restore(&mut field.stage).await?;
    // Numbers of a demo cloud are times, but ahead of them after it was killed.
    let now = Clock::system().unix();
    let now = u64::try_from(now.secs).unwrap_or(0) * MICROS_PER_SECOND;
    let ended = now.max(head + MORE);
    start(&mut field.stage).await?;
    let again = clients::witnesses(field, "cloud that came back", &COLLECTIONS).await?;
    Traffic::start(field, (seed, FIRST_MARK), &COLLECTIONS)
        .end_after(CHANGES)
        .await?;
    for target in &targets {
        field.perform(*target, end).await?;
    }
    run::at_rest(field, clients, &COLLECTIONS).await?;
    // The others have listed again, or wait up to a minute for their list.
    let resuming = clients
        .iter()
        .filter(|one| one.resumes && COLLECTIONS.contains(&one.collection));
    clients::last_bookmarks(resuming).await?;
    let mut verdict = Verdict::default();
    for witness in &again {
        witness.save(&field.stage.setup.dir)?;
        let before = before.iter().find(|(collection, _)| *collection == witness.collection);
        let (_, before) = before.context("no history of the cloud before its restore")?;
        let after = before.restored(&witness.seen()).map_err(|why| anyhow!(why))?;
        let rollback = Rollback {
            before,
            after: &after,
            ended,
            lists_max: 1,
        };
        let told = clients
            .iter()
            .zip(&lengths)
            .filter(|(client, _)| client.collection == witness.collection);
        for (client, length) in told {
            verdict.add(client.named(rollback::check(&client.seen(), *length, &rollback)));
        }
    }
    Ok(verdict)
}

async fn restore(stage: &mut Stage) -> Result<()> {
    let (data, copy) = places(stage)?;
    stage.cloud.seat.kill().await?;
    field::empty(&data)?;
    copy_folder(&copy, &data)
}

async fn start(stage: &mut Stage) -> Result<()> {
    let cloud = &mut stage.cloud;
    ready(cloud.seat.start()?, &cloud.api, "the cloud").await.map(drop)
}

/// Folders of the cloud's data, and of their copy.
fn places(stage: &Stage) -> Result<(PathBuf, PathBuf)> {
    let data = stage.cloud.data.clone().context("this cloud cannot be copied")?;
    Ok((data, stage.setup.dir.join("cloud.backup")))
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
