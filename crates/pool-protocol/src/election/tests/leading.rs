//! Renewing, stopping and releasing.

use yurt_apimachinery::ResourceVersion;

use super::bench::{Bench, free, held_by, ms};
use crate::election::*;

fn stop(reason: StopReason) -> [Action; 1] {
    [Action::StopLeading(reason)]
}

/// Removes the polls of a candidate, which are irrelevant here.
fn no_polls(mut actions: Vec<Action>) -> Vec<Action> {
    actions.retain(|action| !matches!(action, Action::ReadLease(_)));
    actions
}

#[test]
fn leader_renews_every_retry_period_with_the_last_version() {
    let mut hub = Bench::leader();
    assert_eq!(
        hub.wake_ms(),
        Some(3_000),
        "counted from the sending, not from the answer"
    );
    let actions = hub.at(3_000, Input::Tick);
    let [Action::Renew(write)] = &actions[..] else {
        panic!("{actions:?}")
    };
    assert_eq!(write.resource_version, Some(ResourceVersion(10)));
    assert_eq!(
        (
            write.lease_duration_seconds,
            write.lease_transitions,
            write.changes_holder
        ),
        (15, 0, false)
    );
    assert_eq!(hub.stored(3_100, held_by("me", 11).fenced(7)), []);
    let actions = hub.at(5_000, Input::Tick);
    assert!(matches!(&actions[..], [Action::Renew(write)] if write.resource_version == Some(ResourceVersion(11))));
}

#[test]
fn validity_is_measured_from_the_sending_of_the_last_successful_write() {
    let hub = Bench::leader();
    assert!(hub.machine.may_act(ms(10_999)));
    assert!(
        !hub.machine.may_act(ms(11_000)),
        "sent at 1,000, answered at 1,400, deadline 10 s"
    );
}

#[test]
fn hung_renewals_end_leadership_at_the_deadline() {
    let mut hub = Bench::leader();
    let mut at = 1_400;
    let mut renewals = 0;
    while hub.state() == HubState::LeaderHub {
        at = u64::try_from(hub.wake_ms().unwrap()).unwrap();
        let actions = hub.at(at, Input::Tick);
        renewals += actions
            .iter()
            .filter(|action| matches!(action, Action::Renew(_)))
            .count();
    }
    assert_eq!((at, renewals), (11_000, 4));
    assert!(!hub.machine.may_act(ms(11_000)));
    assert_eq!(hub.state(), HubState::FollowerHub);
}

#[test]
fn paused_leader_stops_on_waking_up() {
    let mut hub = Bench::leader();
    assert!(!hub.machine.may_act(ms(60_000)), "also before its first step");
    assert_eq!(hub.at(60_000, Input::Tick), stop(StopReason::RenewDeadline));
}

#[test]
fn leadership_lost_to_the_deadline_is_taken_up_again_with_a_new_write() {
    let mut hub = Bench::leader();
    hub.at(11_000, Input::Tick);
    assert!(matches!(hub.at(11_010, Input::Drained)[..], [Action::Release(_)]));
    hub.write(11_020, WriteOutcome::Refused);
    hub.write(11_030, WriteOutcome::Refused);
    assert_eq!(
        no_polls(hub.write(11_040, WriteOutcome::Refused)),
        [],
        "then it is left to expire"
    );
    let wake = u64::try_from(hub.wake_ms().unwrap()).unwrap();
    assert!(!hub.machine.may_act(ms(wake)));
    let actions: Vec<_> = (wake..wake + 2_500)
        .step_by(100)
        .flat_map(|at| hub.at(at, Input::Tick))
        .collect();
    let acquired = actions.iter().find_map(|action| match action {
        Action::Acquire(write) => Some(write.clone()),
        _ => None,
    });
    assert_eq!(
        acquired.map(|write| (write.lease_transitions, write.changes_holder)),
        Some((0, false))
    );
}

#[test]
fn conflict_on_renewal_reads_and_stops_at_once_if_somebody_else_holds() {
    let mut hub = Bench::leader();
    hub.at(3_000, Input::Tick);
    assert!(matches!(
        hub.write(3_050, WriteOutcome::Conflict)[..],
        [Action::ReadLease(_)]
    ));
    assert_eq!(hub.state(), HubState::LeaderHub);
    assert_eq!(
        hub.read(3_060, ReadOutcome::Found(held_by("other", 12))),
        stop(StopReason::LeaseTaken)
    );
    assert_eq!(
        no_polls(hub.at(3_070, Input::Drained)),
        [],
        "there is nothing to release"
    );
}

#[test]
fn conflict_with_our_own_lost_renewal_renews_at_once() {
    let mut hub = Bench::leader();
    hub.at(3_000, Input::Tick);
    assert!(
        matches!(hub.at(5_000, Input::Tick)[..], [Action::Renew(_)]),
        "the first one timed out"
    );
    assert!(matches!(
        hub.write(5_010, WriteOutcome::Conflict)[..],
        [Action::ReadLease(_)]
    ));
    let actions = hub.read(5_020, ReadOutcome::Found(held_by("me", 11).fenced(7)));
    assert!(matches!(&actions[..], [Action::Renew(write)] if write.resource_version == Some(ResourceVersion(11))));
    assert!(!hub.machine.may_act(ms(11_000)), "what we read extends nothing");
    hub.stored(5_030, held_by("me", 12).fenced(7));
    assert!(hub.machine.may_act(ms(15_019)));
}

#[test]
fn conflict_without_a_cause_is_not_repeated_in_a_loop() {
    let mut hub = Bench::leader();
    hub.at(3_000, Input::Tick);
    hub.write(3_010, WriteOutcome::Conflict);
    assert_eq!(hub.read(3_020, ReadOutcome::Found(held_by("me", 10).fenced(7))), []);
    assert_eq!(hub.wake_ms(), Some(5_020));
}

#[test]
fn loss_of_the_cloud_needs_two_probes_and_releases_after_the_work_has_ended() {
    let mut hub = Bench::leader();
    assert_eq!(hub.at(1_500, Input::Cloud { failed_probes: 1 }), []);
    assert_eq!(hub.state(), HubState::LeaderHub);
    assert_eq!(
        hub.at(1_600, Input::Cloud { failed_probes: 2 }),
        stop(StopReason::CloudLost)
    );
    assert_eq!(hub.state(), HubState::FollowerHub);
    assert!(!hub.machine.may_act(ms(1_600)));
    assert_eq!(hub.at(1_650, Input::WorkStopped), []);
    let actions = hub.at(1_700, Input::Drained);
    let [Action::Release(write)] = &actions[..] else {
        panic!("{actions:?}")
    };
    assert_eq!((write.holder_identity.as_str(), write.lease_duration_seconds), ("", 1));
    assert_eq!(
        (write.resource_version, write.lease_transitions),
        (Some(ResourceVersion(10)), 0)
    );
    assert_eq!(hub.stored(1_750, free(11)), []);
    assert_eq!(hub.wake_ms(), None);
}

#[test]
fn drain_is_bounded_but_the_end_of_work_is_not_assumed() {
    let mut hub = Bench::leader();
    hub.at(2_000, Input::Cloud { failed_probes: 2 });
    hub.at(2_100, Input::WorkStopped);
    assert_eq!(hub.wake_ms(), Some(3_000));
    assert!(matches!(hub.at(3_000, Input::Tick)[..], [Action::Release(_)]));
    let mut hub = Bench::leader();
    hub.at(2_000, Input::Cloud { failed_probes: 2 });
    assert_eq!(
        hub.at(60_000, Input::Tick),
        [],
        "a leader that cannot stop must not release the lease"
    );
    assert!(matches!(hub.at(60_100, Input::WorkStopped)[..], [Action::Release(_)]));
}

#[test]
fn renewal_on_the_wire_is_awaited_before_the_release() {
    let mut hub = Bench::leader();
    assert!(matches!(hub.at(3_000, Input::Tick)[..], [Action::Renew(_)]));
    hub.at(3_010, Input::Cloud { failed_probes: 2 });
    assert_eq!(hub.at(3_020, Input::Drained), []);
    let actions = hub.stored(3_100, held_by("me", 11).fenced(7));
    assert!(matches!(&actions[..], [Action::Release(write)] if write.resource_version == Some(ResourceVersion(11))));
    assert!(!hub.machine.may_act(ms(3_100)));
}

#[test]
fn renewal_answered_after_the_stop_gives_no_new_leadership() {
    let mut hub = Bench::leader();
    assert!(matches!(hub.at(3_000, Input::Tick)[..], [Action::Renew(_)]));
    hub.at(3_010, Input::Cloud { failed_probes: 2 });
    hub.at(3_020, Input::Drained);
    assert!(matches!(
        hub.stored(3_100, held_by("me", 11).fenced(7))[..],
        [Action::Release(_)]
    ));
    hub.write(3_110, WriteOutcome::Unknown);
    hub.write(3_120, WriteOutcome::Unknown);
    hub.write(3_130, WriteOutcome::Unknown);
    // A release may have been stored without an answer, so only a write shows whether the lease is still ours.
    let actions = hub.at(6_000, Input::Cloud { failed_probes: 0 });
    assert!(
        !actions.iter().any(|action| matches!(action, Action::StartLeading(_))),
        "{actions:?}"
    );
    assert!(!hub.machine.may_act(ms(6_000)));
}

#[test]
fn epoch_of_an_earlier_hold_is_not_used_again() {
    let mut hub = Bench::leader();
    hub.at(11_000, Input::Tick);
    hub.at(11_010, Input::Drained);
    hub.stored(11_020, free(11));
    hub.at(11_100, Input::Watched(held_by("other", 12)));
    assert!(matches!(
        hub.at(11_200, Input::Watched(free(13)))[..],
        [Action::Acquire(_)]
    ));
    assert_eq!(
        no_polls(hub.stored(11_220, held_by("me", 14))),
        [],
        "the answer names no epoch"
    );
    assert_eq!(hub.state(), HubState::FollowerHub);
}

#[test]
fn conflict_on_release_reads_and_releases_again_only_what_is_ours() {
    for (found, releases) in [(held_by("me", 12), true), (held_by("other", 12), false)] {
        let mut hub = Bench::leader();
        hub.at(2_000, Input::Shutdown);
        hub.at(2_010, Input::Drained);
        assert!(matches!(
            hub.write(2_020, WriteOutcome::Conflict)[..],
            [Action::ReadLease(_)]
        ));
        let actions = hub.read(2_030, ReadOutcome::Found(found));
        assert_eq!(matches!(actions[..], [Action::Release(_)]), releases);
        assert_eq!(hub.machine.is_finished(), !releases);
    }
}

#[test]
fn shutdown_stops_then_releases_then_is_finished() {
    let mut hub = Bench::leader();
    assert_eq!(hub.at(2_000, Input::Shutdown), stop(StopReason::Shutdown));
    assert!(!hub.machine.is_finished());
    assert!(matches!(hub.at(2_100, Input::Drained)[..], [Action::Release(_)]));
    assert_eq!(hub.stored(2_120, free(11)), []);
    assert!(hub.machine.is_finished());
    assert_eq!(
        hub.at(30_000, Input::Tick),
        [],
        "a process that ends never comes back as a candidate"
    );
}

#[test]
fn shutdown_of_a_follower_is_finished_at_once() {
    let mut hub = Bench::candidate();
    hub.read(100, ReadOutcome::Found(held_by("other", 5)));
    hub.at(200, Input::Shutdown);
    assert!(hub.machine.is_finished());
}

#[test]
fn deleted_lease_ends_leadership_at_once_and_is_created_anew() {
    let mut hub = Bench::leader();
    hub.at(3_000, Input::Tick);
    assert_eq!(hub.write(3_010, WriteOutcome::Absent), stop(StopReason::LeaseGone));
    let actions = no_polls(hub.at(3_020, Input::Drained));
    assert!(matches!(&actions[..], [Action::Acquire(write)] if write.resource_version.is_none()));
    let mut hub = Bench::leader();
    assert_eq!(
        hub.at(2_000, Input::WatchedDeletion(ResourceVersion(11))),
        stop(StopReason::LeaseGone)
    );
}

#[test]
fn another_store_or_epoch_ends_leadership_at_once() {
    let mut hub = Bench::leader();
    assert_eq!(hub.at(2_000, Input::Store("s2".into())), stop(StopReason::FenceChanged));
    assert!(
        matches!(hub.at(2_010, Input::Drained)[..], [Action::ReadLease(_)]),
        "the old version means nothing"
    );
    let mut hub = Bench::leader();
    assert_eq!(hub.at(2_000, Input::Store("s1".into())), []);
    hub.at(3_000, Input::Tick);
    assert_eq!(
        hub.stored(3_010, held_by("me", 11).fenced(8)),
        stop(StopReason::FenceChanged)
    );
}

#[test]
fn leader_without_the_coordinator_goes_on_until_its_deadline() {
    let mut hub = Bench::leader();
    assert_eq!(hub.at(2_000, Input::Coordinator { reachable: false }), []);
    assert_eq!(hub.state(), HubState::LeaderHub);
    assert_eq!(hub.at(11_000, Input::Tick), stop(StopReason::RenewDeadline));
    assert_eq!(hub.state(), HubState::PendingHub);
    assert!(matches!(hub.at(11_010, Input::Drained)[..], [Action::Release(_)]));
    assert_eq!(
        hub.write(11_020, WriteOutcome::Refused),
        [],
        "one try is enough while the coordinator is unreachable"
    );
    assert_eq!(hub.wake_ms(), None);
}

#[test]
fn travelled_event_does_not_depose_a_leader() {
    let mut hub = Bench::leader();
    assert_eq!(hub.at(1_500, Input::Watched(free(9))), []);
    assert_eq!(hub.at(1_600, Input::Watched(held_by("me", 10))), []);
    assert_eq!(hub.state(), HubState::LeaderHub);
    assert_eq!(
        hub.at(1_700, Input::Watched(held_by("other", 11))),
        stop(StopReason::LeaseTaken)
    );
}

#[test]
fn leader_that_released_lets_the_others_go_first() {
    let mut hub = Bench::leader();
    hub.at(11_000, Input::Tick);
    hub.at(11_010, Input::Drained);
    hub.stored(11_020, free(11));
    for at in [11_021, 12_000, 13_000] {
        assert!(
            hub.at(at, Input::Tick)
                .iter()
                .all(|action| !matches!(action, Action::Acquire(_)))
        );
    }
    assert!(
        hub.at(13_020, Input::Tick)
            .iter()
            .any(|action| matches!(action, Action::Acquire(_)))
    );
}

#[test]
fn failpoint_leads_past_the_deadline_until_another_holder_is_seen() {
    let config = Config {
        ignore_own_clock: true,
        ..Config::new("me")
    };
    let mut hub = Bench::with(config).linked().leading();
    hub.at(60_000, Input::Tick);
    assert!(hub.machine.may_act(ms(60_000)));
    assert_eq!(
        hub.at(60_100, Input::Watched(held_by("other", 12))),
        stop(StopReason::LeaseTaken)
    );
    assert!(!hub.machine.may_act(ms(60_100)));
}

#[test]
fn hub_that_is_no_member_gives_the_lease_back_and_lets_others_lead() {
    let mut hub = Bench::leader();
    assert_eq!(hub.at(2_000, Input::NotMember), stop(StopReason::NotMember));
    assert!(!hub.machine.may_act(ms(2_000)));
    let actions = no_polls(hub.at(2_010, Input::Drained));
    assert!(
        matches!(&actions[..], [Action::Release(write)] if write.holder_identity.is_empty()),
        "{actions:?}"
    );
    assert_eq!(hub.stored(2_020, free(11)), [], "a free lease is not for this hub");
    assert_eq!(
        hub.wake_ms(),
        Some(62_000),
        "it tries again after a while: the labels may be right then"
    );
    assert_eq!(hub.at(61_999, Input::Tick), []);
    let actions = hub.at(62_000, Input::Tick);
    let tries = |action: &Action| matches!(action, Action::Acquire(_) | Action::ReadLease(_));
    assert!(actions.iter().any(tries), "{actions:?}");
}

#[test]
fn hub_whose_node_is_of_another_pool_does_not_lead_until_it_is_of_this_one() {
    let mut hub = Bench::leader();
    assert_eq!(hub.at(2_000, Input::OtherPool(true)), stop(StopReason::NotMember));
    let actions = no_polls(hub.at(2_010, Input::Drained));
    assert!(matches!(&actions[..], [Action::Release(_)]), "{actions:?}");
    assert_eq!(hub.stored(2_020, free(11)), [], "a free lease is not for this hub");
    assert_eq!(hub.wake_ms(), None);
    assert_eq!(no_polls(hub.at(100_000, Input::Tick)), []);
    let actions = hub.at(101_000, Input::OtherPool(false));
    let tries = |action: &Action| matches!(action, Action::Acquire(_) | Action::ReadLease(_));
    assert!(actions.iter().any(tries), "{actions:?}");
}
