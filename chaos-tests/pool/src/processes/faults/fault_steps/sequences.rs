//! Sequences of steps of which faults are made: once, repeated, in turn, with a loss in between.

use std::time::Duration;

use yurt_testbed::identities::Issue;
use yurt_testbed::link::Mode;

use super::{Act, CUT, DEAD, FaultTarget, RELOADED, Step};

/// Interval at which a flapping link changes.
const FLAP: Duration = Duration::from_millis(700);

pub(super) fn step(after: Duration, target: FaultTarget, act: Act) -> Step {
    Step { after, target, act }
}

pub(super) fn during(target: FaultTarget, [begin, end]: [Act; 2], lasts: Duration) -> Vec<Step> {
    vec![step(Duration::ZERO, target, begin), step(lasts, target, end)]
}

pub(super) fn later(by: Duration, steps: Vec<Step>) -> impl Iterator<Item = Step> {
    steps.into_iter().map(move |step| Step {
        after: step.after + by,
        ..step
    })
}

/// Applies `acts` to one target after the other, each for `lasts`.
pub(super) fn in_turn(
    targets: impl Iterator<Item = FaultTarget>,
    acts: [Act; 2],
    first: Duration,
    lasts: Duration,
) -> Vec<Step> {
    let turns = targets.zip(0..).flat_map(|(target, turn)| {
        let begins = first + (lasts + FLAP) * turn;
        later(begins, during(target, acts, lasts))
    });
    turns.collect()
}

/// `hub` has no link to the cloud while `acts` happen to `target` of each other hub, in turn.
pub(super) fn relays(hubs: usize, hub: usize, target: &dyn Fn(usize) -> FaultTarget, acts: [Act; 2]) -> Vec<Step> {
    /// Time after which the hub has detected it and sends its beats through another one.
    const NOTICED: Duration = Duration::from_secs(5);
    const EACH: Duration = Duration::from_secs(3);
    let others = (0..hubs).filter(|other| *other != hub).map(target);
    let mut steps = in_turn(others, acts, NOTICED, EACH);
    let ends = steps.last().map_or(NOTICED, |step| step.after) + FLAP;
    steps.extend(during(FaultTarget::CloudLink(hub), CUT, ends));
    steps
}

pub(super) fn issued(target: FaultTarget, issue: Issue) -> Step {
    step(Duration::ZERO, target, Act::Issue(issue))
}

pub(super) fn expired(target: FaultTarget, lasts: Duration) -> Vec<Step> {
    during(
        target,
        [Act::Issue(Issue::Expired), Act::Issue(Issue::Usual)],
        RELOADED + lasts,
    )
}

/// There and back: all programs trust both CAs before the first certificate is replaced, and until the last one is.
pub(super) fn authority_rotated(hubs: usize) -> Vec<Step> {
    let all = (0..hubs)
        .map(FaultTarget::HubCertificate)
        .chain([FaultTarget::CoordinatorCertificate]);
    let acts = [Act::Issue(Issue::Next), Act::Issue(Issue::Usual)];
    let certificates = all.flat_map(|target| later(RELOADED, during(target, acts, RELOADED)));
    let trust = during(FaultTarget::Authorities, [Act::Bad, Act::Good], RELOADED * 3);
    certificates.chain(trust).collect()
}

/// Kills the program, and applies `loss` to its disk.
pub(super) fn without_disk(target: FaultTarget, loss: Act, lasts: Duration) -> Vec<Step> {
    let mut steps = during(target, DEAD, lasts);
    steps.insert(1, step(Duration::ZERO, target, loss));
    steps
}

/// Stops the program, runs it in another pool, and moves it back.
pub(super) fn moved(target: FaultTarget, lasts: Duration) -> Vec<Step> {
    let at = |after, is_away| [Act::Stop, Act::Move(is_away), Act::Start].map(|act| step(after, target, act));
    [at(Duration::ZERO, true), at(lasts, false)].concat()
}

/// Restarts with another time since boot, later or earlier.
pub(super) fn rebooted(target: FaultTarget, days: u32, lasts: Duration) -> Vec<Step> {
    let mut steps = during(target, DEAD, lasts);
    steps.insert(1, step(Duration::ZERO, target, Act::Reboot(days)));
    steps
}

pub(super) fn repeated(target: FaultTarget, acts: [Act; 2], lasts: Duration) -> Vec<Step> {
    const TIMES: u32 = 4;
    let part = lasts / (2 * TIMES);
    let acts = (0..2 * TIMES).map(|time| step(part * time, target, acts[time as usize % 2]));
    acts.collect()
}

pub(super) fn flapping(target: FaultTarget, lasts: Duration) -> Vec<Step> {
    let times = u32::try_from(lasts.as_millis() / FLAP.as_millis())
        .unwrap_or(u32::MAX)
        .clamp(2, 40)
        / 2
        * 2;
    let modes = [Mode::Cut, Mode::Pass];
    let steps = (0..times).map(|time| step(FLAP * time, target, Act::Link(modes[time as usize % 2])));
    steps.collect()
}
