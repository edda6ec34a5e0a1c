//! The faults of a run with real processes: what each does to the pool, and how it ends.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use tokio::process::Command;

use crate::lab::link::Mode;
use crate::lab::program;
use crate::lab::stage::Stage;

/// How long a program may take to end after SIGTERM.
const STOP_LIMIT: Duration = Duration::from_secs(10);
/// 50 kbit/s.
const SLOW: Mode = Mode::Slow(6_250);
const LATE: Mode = Mode::Late(Duration::from_millis(150));
/// A flapping link changes this often.
const FLAP: Duration = Duration::from_millis(700);
/// Files a process may open while it has few: less than it has open.
const FEW_FILES: &str = "12";
const MANY_FILES: &str = "1024";

/// One kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Fault {
    /// SIGKILL to the leading hub
    LeaderKilled,
    /// SIGKILL to a hub that follows
    FollowerKilled,
    /// SIGTERM to the leading hub
    LeaderStopped,
    /// SIGTERM to a hub that follows
    FollowerStopped,
    /// SIGSTOP to the leading hub, for longer than its lease at times
    LeaderPaused,
    /// SIGSTOP to a hub that follows
    FollowerPaused,
    /// SIGKILL to every hub at once
    AllHubsKilled,
    /// SIGKILL to a hub, and to what it had on its disk
    HubDiskLost,
    /// A hub cannot open another file or socket
    HubWithoutFiles,
    /// SIGKILL to the coordinator
    CoordinatorKilled,
    /// SIGTERM to the coordinator
    CoordinatorStopped,
    /// SIGSTOP to the coordinator
    CoordinatorPaused,
    /// SIGKILL to the coordinator, again as soon as it is back
    CoordinatorCrashLoop,
    /// The coordinator cannot open another file or socket
    CoordinatorWithoutFiles,
    /// SIGKILL to the coordinator, and to what it had on its disk
    CoordinatorDiskLost,
    /// SIGKILL to coordinator and hubs: the power is gone
    PoolKilled,
    /// SIGTERM to the cloud's server
    CloudStopped,
    /// SIGSTOP to the cloud's server
    CloudPaused,
    /// A hub's link to the cloud refuses
    CloudLinkCut,
    /// A hub's link to the cloud is silent
    CloudLinkSilent,
    /// What a hub asks the cloud does not arrive
    CloudRequestsVanish,
    /// What the cloud answers a hub does not arrive
    CloudAnswersVanish,
    /// A hub's link to the cloud carries 50 kbit/s
    CloudLinkSlow,
    /// A hub's link to the cloud takes 150 ms
    CloudLinkLate,
    /// A hub's link to the cloud comes and goes
    CloudLinkFlaps,
    /// Bytes from the cloud are damaged on their way to a hub
    CloudLinkDamaged,
    /// All links to the cloud refuse
    AllCloudLinksCut,
    /// All links to the cloud are silent
    AllCloudLinksSilent,
    /// A hub's link to the coordinator refuses
    PoolLinkCut,
    /// A hub's link to the coordinator is silent
    PoolLinkSilent,
    /// What a hub asks the coordinator does not arrive
    PoolRequestsVanish,
    /// What the coordinator answers a hub does not arrive
    PoolAnswersVanish,
    /// A hub's link to the coordinator carries 50 kbit/s
    PoolLinkSlow,
    /// A hub's link to the coordinator takes 150 ms
    PoolLinkLate,
    /// A hub's link to the coordinator comes and goes
    PoolLinkFlaps,
    /// Bytes from the coordinator are damaged on their way to a hub
    PoolLinkDamaged,
    /// All links to the coordinator are silent
    AllPoolLinksSilent,
    /// A hub reaches nobody
    HubIsolated,
    /// The leading hub keeps its cloud and loses the coordinator
    LeaderLosesCoordinator,
    /// The leading hub keeps the coordinator and loses its cloud
    LeaderLosesCloud,
}

/// A program or a link that a fault is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Hub(usize),
    Coordinator,
    Cloud,
    /// Of this hub to the cloud.
    CloudLink(usize),
    /// Of this hub to the coordinator.
    PoolLink(usize),
}

/// What happens to a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Kill,
    Stop,
    Start,
    /// Also what is on the disk; only while it does not run.
    LoseDisk,
    Pause,
    Continue,
    FewFiles,
    ManyFiles,
    Link(Mode),
}

/// An act, and how long after the fault struck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) after: Duration,
    pub(super) target: Target,
    pub(super) act: Act,
}

/// Who a fault may choose from.
pub(super) struct Cast {
    pub(super) hubs: usize,
    /// The hub that leads, if one says so.
    pub(super) leader: Option<usize>,
    /// A random number.
    pub(super) pick: usize,
}

// === impl Fault ===

impl Fault {
    /// Everything the fault does, until it is over after `lasts`; `None` when there is nobody it could strike.
    pub(super) fn steps(self, cast: &Cast, lasts: Duration) -> Option<Vec<Step>> {
        let any = cast.pick % cast.hubs;
        let follower = cast
            .leader
            .and_then(|leader| (0..cast.hubs).filter(|hub| *hub != leader).nth(any % (cast.hubs - 1)));
        let all = || 0..cast.hubs;
        let each = |acts: [Act; 2], targets: &mut dyn Iterator<Item = Target>| -> Vec<Step> {
            targets.flat_map(|target| during(target, acts, lasts)).collect()
        };
        let one = |target, acts| during(target, acts, lasts);
        let link = |target, mode| during(target, [Act::Link(mode), Act::Link(Mode::Pass)], lasts);
        let links =
            |mode, targets: &mut dyn Iterator<Item = Target>| each([Act::Link(mode), Act::Link(Mode::Pass)], targets);
        const DEAD: [Act; 2] = [Act::Kill, Act::Start];
        const GONE: [Act; 2] = [Act::Stop, Act::Start];
        const STILL: [Act; 2] = [Act::Pause, Act::Continue];
        const POOR: [Act; 2] = [Act::FewFiles, Act::ManyFiles];
        let leader = cast.leader;
        Some(match self {
            Self::LeaderKilled => one(Target::Hub(leader?), DEAD),
            Self::FollowerKilled => one(Target::Hub(follower?), DEAD),
            Self::LeaderStopped => one(Target::Hub(leader?), GONE),
            Self::FollowerStopped => one(Target::Hub(follower?), GONE),
            Self::LeaderPaused => one(Target::Hub(leader?), STILL),
            Self::FollowerPaused => one(Target::Hub(follower?), STILL),
            Self::AllHubsKilled => each(DEAD, &mut all().map(Target::Hub)),
            Self::HubDiskLost => without_disk(Target::Hub(any), lasts),
            Self::HubWithoutFiles => one(Target::Hub(any), POOR),
            Self::CoordinatorKilled => one(Target::Coordinator, DEAD),
            Self::CoordinatorStopped => one(Target::Coordinator, GONE),
            Self::CoordinatorPaused => one(Target::Coordinator, STILL),
            Self::CoordinatorCrashLoop => repeated(Target::Coordinator, DEAD, lasts),
            Self::CoordinatorWithoutFiles => one(Target::Coordinator, POOR),
            Self::CoordinatorDiskLost => without_disk(Target::Coordinator, lasts),
            Self::PoolKilled => each(DEAD, &mut all().map(Target::Hub).chain([Target::Coordinator])),
            Self::CloudStopped => one(Target::Cloud, GONE),
            Self::CloudPaused => one(Target::Cloud, STILL),
            Self::CloudLinkCut => link(Target::CloudLink(any), Mode::Cut),
            Self::CloudLinkSilent => link(Target::CloudLink(any), Mode::Blackhole),
            Self::CloudRequestsVanish => link(Target::CloudLink(any), Mode::RequestsVanish),
            Self::CloudAnswersVanish => link(Target::CloudLink(any), Mode::AnswersVanish),
            Self::CloudLinkSlow => link(Target::CloudLink(any), SLOW),
            Self::CloudLinkLate => link(Target::CloudLink(any), LATE),
            Self::CloudLinkFlaps => flapping(Target::CloudLink(any), lasts),
            Self::CloudLinkDamaged => link(Target::CloudLink(any), Mode::Damaged),
            Self::AllCloudLinksCut => links(Mode::Cut, &mut all().map(Target::CloudLink)),
            Self::AllCloudLinksSilent => links(Mode::Blackhole, &mut all().map(Target::CloudLink)),
            Self::PoolLinkCut => link(Target::PoolLink(any), Mode::Cut),
            Self::PoolLinkSilent => link(Target::PoolLink(any), Mode::Blackhole),
            Self::PoolRequestsVanish => link(Target::PoolLink(any), Mode::RequestsVanish),
            Self::PoolAnswersVanish => link(Target::PoolLink(any), Mode::AnswersVanish),
            Self::PoolLinkSlow => link(Target::PoolLink(any), SLOW),
            Self::PoolLinkLate => link(Target::PoolLink(any), LATE),
            Self::PoolLinkFlaps => flapping(Target::PoolLink(any), lasts),
            Self::PoolLinkDamaged => link(Target::PoolLink(any), Mode::Damaged),
            Self::AllPoolLinksSilent => links(Mode::Blackhole, &mut all().map(Target::PoolLink)),
            Self::HubIsolated => links(
                Mode::Blackhole,
                &mut [Target::CloudLink(any), Target::PoolLink(any)].into_iter(),
            ),
            Self::LeaderLosesCoordinator => link(Target::PoolLink(leader?), Mode::Blackhole),
            Self::LeaderLosesCloud => link(Target::CloudLink(leader?), Mode::Cut),
        })
    }

    /// A hub may have to let its clients list again after this: what it needs to resume them is gone.
    pub(super) fn may_relist(self) -> bool {
        self == Self::HubDiskLost
    }
}

fn step(after: Duration, target: Target, act: Act) -> Step {
    Step { after, target, act }
}

fn during(target: Target, [begin, end]: [Act; 2], lasts: Duration) -> Vec<Step> {
    vec![step(Duration::ZERO, target, begin), step(lasts, target, end)]
}

fn without_disk(target: Target, lasts: Duration) -> Vec<Step> {
    let mut steps = during(target, [Act::Kill, Act::Start], lasts);
    steps.insert(1, step(Duration::ZERO, target, Act::LoseDisk));
    steps
}

fn repeated(target: Target, acts: [Act; 2], lasts: Duration) -> Vec<Step> {
    const TIMES: u32 = 4;
    let part = lasts / (2 * TIMES);
    let acts = (0..2 * TIMES).map(|time| step(part * time, target, acts[time as usize % 2]));
    acts.collect()
}

fn flapping(target: Target, lasts: Duration) -> Vec<Step> {
    let times = u32::try_from(lasts.as_millis() / FLAP.as_millis())
        .unwrap_or(u32::MAX)
        .clamp(2, 40)
        / 2
        * 2;
    let modes = [Mode::Cut, Mode::Pass];
    let steps = (0..times).map(|time| step(FLAP * time, target, Act::Link(modes[time as usize % 2])));
    steps.collect()
}

/// Does it.
///
/// # Errors
/// What the machine refused; never what a program of the pool did.
pub(super) async fn perform(stage: &mut Stage, target: Target, act: Act) -> Result<()> {
    let (seat, disk) = match target {
        Target::Hub(hub) => {
            let hub = &mut stage.hubs[hub];
            (&mut hub.seat, Some(&hub.cache))
        }
        Target::Coordinator => (&mut stage.coordinator.seat, Some(&stage.coordinator.data)),
        Target::Cloud => (&mut stage.cloud.seat, None),
        Target::CloudLink(_) | Target::PoolLink(_) => return on_link(stage, target, act),
    };
    match act {
        Act::Kill if seat.runs() => seat.kill().await,
        Act::Stop => seat.stop(STOP_LIMIT).await,
        Act::Start if !seat.runs() => seat.start().map(drop),
        Act::LoseDisk => {
            let folder = disk.context("this one has no disk to lose")?;
            match std::fs::remove_dir_all(folder) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
                _ => Ok(()),
            }
        }
        Act::Pause => seat.program()?.signal("STOP").await,
        // It may have been killed meanwhile.
        Act::Continue if seat.runs() => seat.program()?.signal("CONT").await,
        Act::FewFiles if seat.runs() => limit_files(seat, FEW_FILES).await,
        Act::ManyFiles if seat.runs() => limit_files(seat, MANY_FILES).await,
        Act::Kill | Act::Start | Act::Continue | Act::FewFiles | Act::ManyFiles | Act::Link(_) => Ok(()),
    }
}

fn on_link(stage: &Stage, target: Target, act: Act) -> Result<()> {
    let link = match target {
        Target::CloudLink(hub) => &stage.hubs[hub].link,
        Target::PoolLink(hub) => &stage.hubs[hub].pool_link,
        Target::Hub(_) | Target::Coordinator | Target::Cloud => return Ok(()),
    };
    if let Act::Link(mode) = act {
        link.set(mode);
    }
    Ok(())
}

async fn limit_files(seat: &mut program::Seat, count: &str) -> Result<()> {
    let id = seat.program()?.id().context("the program has ended")?;
    let arguments = [format!("--pid={id}"), format!("--nofile={count}:")];
    let status = Command::new("prlimit").args(arguments).status().await;
    ensure!(status.context("cannot run prlimit")?.success(), "prlimit failed");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever a fault does, it undoes.
    #[test]
    fn every_fault_ends_with_everything_running_and_passing() {
        let cast = Cast {
            hubs: 3,
            leader: Some(1),
            pick: 4,
        };
        for fault in Fault::value_variants() {
            let steps = fault.steps(&cast, Duration::from_secs(5)).expect("there is a leader");
            for Step { target, .. } in &steps {
                let last = steps.iter().rfind(|step| step.target == *target).map(|step| step.act);
                let good = [Act::Start, Act::Continue, Act::ManyFiles, Act::Link(Mode::Pass)];
                assert!(
                    good.map(Some).contains(&last),
                    "{fault:?} leaves {target:?} with {last:?}"
                );
            }
        }
    }

    #[test]
    fn faults_of_a_leader_need_one() {
        let cast = Cast {
            hubs: 3,
            leader: None,
            pick: 0,
        };
        assert_eq!(Fault::LeaderKilled.steps(&cast, Duration::from_secs(1)), None);
        assert!(Fault::CloudLinkCut.steps(&cast, Duration::from_secs(1)).is_some());
    }
}
