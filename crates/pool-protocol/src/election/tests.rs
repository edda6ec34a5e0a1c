//! Scenarios that walk every transition of the election machine.

mod bench;
mod flapping;
mod leading;

use std::time::Duration;

use yurt_apimachinery::ResourceVersion;

use super::*;
use bench::{Bench, free, held_by, ms};

#[test]
fn follower_depends_on_the_coordinator_only() {
    let mut hub = Bench::new();
    assert_eq!(hub.state(), HubState::PendingHub);
    assert_eq!(hub.at(0, Input::Coordinator { reachable: true }), []);
    assert_eq!(
        hub.state(),
        HubState::FollowerHub,
        "a hub that starts offline can use the coordinator"
    );
    assert_eq!(hub.at(100, Input::Cloud { failed_probes: 3 }), []);
    assert_eq!(hub.state(), HubState::FollowerHub);
    assert_eq!(hub.at(200, Input::Coordinator { reachable: false }), []);
    assert_eq!(hub.state(), HubState::PendingHub);
    assert_eq!(hub.wake_ms(), None, "without a candidacy there is nothing to wait for");
}

#[test]
fn candidacy_needs_a_cloud_without_failed_probes() {
    let mut hub = Bench::new();
    hub.at(0, Input::Coordinator { reachable: true });
    assert_eq!(hub.at(10, Input::Cloud { failed_probes: 1 }), []);
    assert!(matches!(
        hub.at(20, Input::Cloud { failed_probes: 0 })[..],
        [Action::ReadLease(_)]
    ));
}

#[test]
fn absent_lease_is_created_at_once() {
    let mut hub = Bench::candidate();
    let actions = hub.read(100, ReadOutcome::Absent);
    let [Action::Acquire(write)] = &actions[..] else {
        panic!("{actions:?}")
    };
    assert_eq!(write.resource_version, None);
    assert_eq!(
        (write.holder_identity.as_str(), write.lease_duration_seconds),
        ("me", 15)
    );
    assert_eq!((write.lease_transitions, write.changes_holder), (0, true));
    let actions = hub.stored(130, held_by("me", 1).fenced(7));
    assert_eq!(
        actions,
        [Action::StartLeading(Fence {
            epoch: 7,
            store: "s1".into()
        })]
    );
    assert_eq!(hub.state(), HubState::LeaderHub);
}

#[test]
fn empty_holder_is_acquirable_at_once_with_its_version() {
    let mut hub = Bench::candidate();
    let actions = hub.read(
        100,
        ReadOutcome::Found(Lease {
            lease_transitions: 4,
            ..free(9)
        }),
    );
    let [Action::Acquire(write)] = &actions[..] else {
        panic!("{actions:?}")
    };
    assert_eq!(
        (write.resource_version, write.lease_transitions),
        (Some(ResourceVersion(9)), 5)
    );
}

#[test]
fn count_of_transitions_starts_over_after_the_greatest_that_the_api_holds() {
    let mut hub = Bench::candidate();
    let actions = hub.read(
        100,
        ReadOutcome::Found(Lease {
            lease_transitions: i64::from(i32::MAX),
            ..free(9)
        }),
    );
    let [Action::Acquire(write)] = &actions[..] else {
        panic!("{actions:?}")
    };
    assert_eq!(write.lease_transitions, 0);
}

#[test]
fn lease_without_any_field_is_acquirable() {
    let mut hub = Bench::candidate();
    let bare = Lease {
        resource_version: ResourceVersion(3),
        ..Lease::default()
    };
    assert!(matches!(
        hub.read(100, ReadOutcome::Found(bare))[..],
        [Action::Acquire(_)]
    ));
}

#[test]
fn expiry_counts_from_our_first_sight_of_the_record() {
    let mut hub = Bench::candidate_of_rank(5);
    // A renewTime far in the past changes nothing; neither does one in the future.
    let lease = Lease {
        renew_time: "1970-01-01T00:00:00.000000Z".into(),
        ..held_by("other", 5)
    };
    assert_eq!(hub.read(1_000, ReadOutcome::Found(lease.clone())), []);
    assert_eq!(
        hub.at(9_000, Input::Watched(lease)),
        [],
        "seeing the same record again proves nothing"
    );
    assert_eq!(
        hub.wake_ms(),
        Some(16_100),
        "15 s after the first sight, and rank 5 waits 100 ms"
    );
    assert_eq!(hub.at(16_099, Input::Tick), []);
    assert!(matches!(hub.at(16_100, Input::Tick)[..], [Action::Acquire(_)]));
}

#[test]
fn renewal_of_the_holder_restarts_the_wait_and_its_own_duration_counts() {
    let mut hub = Bench::candidate_of_rank(3);
    hub.read(1_000, ReadOutcome::Found(held_by("other", 5)));
    hub.at(
        10_000,
        Input::Watched(Lease {
            lease_duration_seconds: 30,
            ..held_by("other", 6)
        }),
    );
    assert_eq!(hub.wake_ms(), Some(40_060));
    assert_eq!(hub.at(39_000, Input::Tick), []);
}

#[test]
fn no_record_makes_candidates_wait_for_longer_than_a_minute() {
    let mut hub = Bench::candidate_of_rank(3);
    let poisoned = Lease {
        lease_duration_seconds: 2_147_483_647,
        ..held_by("other", 5)
    };
    hub.read(1_000, ReadOutcome::Found(poisoned));
    assert_eq!(hub.wake_ms(), Some(61_060));
    assert!(matches!(hub.at(61_060, Input::Tick)[..], [Action::Acquire(_)]));
}

#[test]
fn release_seen_by_the_watch_is_used_after_the_rank_delay() {
    let mut hub = Bench::candidate_of_rank(200);
    hub.read(1_000, ReadOutcome::Found(held_by("other", 5)));
    hub.at(2_000, Input::Watched(free(6)));
    assert_eq!(hub.wake_ms(), Some(3_000), "no rank waits for more than a second");
    assert!(matches!(hub.at(3_000, Input::Tick)[..], [Action::Acquire(_)]));
}

#[test]
fn first_three_candidates_poll_and_the_others_rely_on_the_watch() {
    let mut polling = Bench::candidate();
    polling.read(1_000, ReadOutcome::Found(held_by("other", 5)));
    assert_eq!(polling.wake_ms(), Some(2_000));
    assert!(matches!(polling.at(2_000, Input::Tick)[..], [Action::ReadLease(_)]));
    let mut watching = Bench::candidate_of_rank(3);
    watching.read(1_000, ReadOutcome::Found(held_by("other", 5)));
    assert_eq!(watching.at(6_000, Input::Tick), []);
}

#[test]
fn rank_may_change_at_any_time() {
    let mut hub = Bench::candidate_of_rank(9);
    hub.read(0, ReadOutcome::Found(held_by("other", 5)));
    hub.at(1_000, Input::Rank(4));
    assert_eq!(hub.wake_ms(), Some(15_080));
}

#[test]
fn lost_race_reads_again_and_waits_for_the_new_holder() {
    let mut hub = Bench::candidate_of_rank(3);
    hub.read(0, ReadOutcome::Found(free(5)));
    hub.at(60, Input::Tick);
    assert!(matches!(
        hub.write(100, WriteOutcome::Conflict)[..],
        [Action::ReadLease(_)]
    ));
    assert_eq!(hub.read(120, ReadOutcome::Found(held_by("other", 6))), []);
    assert_eq!(hub.wake_ms(), Some(15_180));
}

#[test]
fn refused_acquisition_is_retried_with_jitter() {
    let mut hub = Bench::candidate_of_rank(3);
    hub.jitter = 0.5;
    hub.read(0, ReadOutcome::Found(free(5)));
    hub.at(60, Input::Tick);
    assert!(matches!(
        hub.write(100, WriteOutcome::Conflict)[..],
        [Action::ReadLease(_)]
    ));
    // The coordinator protects a holder that it has not heard yet: the lease itself has not changed.
    assert_eq!(hub.read(120, ReadOutcome::Found(free(5))), []);
    assert_eq!(hub.wake_ms(), Some(100 + 3_200), "2 s * (1 + 1.2 * 0.5)");
    assert!(matches!(hub.at(3_300, Input::Tick)[..], [Action::Acquire(_)]));
    assert_eq!(hub.write(3_310, WriteOutcome::Refused), []);
    assert_eq!(hub.wake_ms(), Some(3_310 + 3_200));
}

#[test]
fn unanswered_acquisition_is_cleared_up_by_a_read() {
    let mut hub = Bench::candidate_of_rank(3);
    hub.read(0, ReadOutcome::Found(free(5)));
    assert!(matches!(hub.at(60, Input::Tick)[..], [Action::Acquire(_)]));
    assert_eq!(
        hub.at(2_060, Input::Tick),
        [],
        "the request counts as lost after its timeout"
    );
    assert!(matches!(hub.at(4_060, Input::Tick)[..], [Action::ReadLease(_)]));
    let actions = hub.read(4_100, ReadOutcome::Found(held_by("me", 6)));
    let [Action::Acquire(write)] = &actions[..] else {
        panic!("{actions:?}")
    };
    assert_eq!(
        (write.resource_version, write.lease_transitions),
        (Some(ResourceVersion(6)), 0)
    );
    assert!(!write.changes_holder, "the record is ours already");
}

#[test]
fn acquisition_answered_too_late_gives_no_leadership_from_its_sending() {
    let mut hub = Bench::candidate_of_rank(3);
    hub.read(0, ReadOutcome::Found(free(5)));
    hub.at(60, Input::Tick);
    let late = hub.last_write();
    hub.at(2_060, Input::Tick);
    hub.at(
        3_000,
        Input::WriteDone(late, WriteOutcome::Stored(held_by("me", 6).fenced(7))),
    );
    assert_eq!(hub.state(), HubState::FollowerHub);
    assert!(!hub.machine.may_act(ms(3_000)));
}

#[test]
fn acquisition_that_is_not_wanted_any_more_is_given_back_without_leading() {
    for input in [Input::Shutdown, Input::Cloud { failed_probes: 1 }] {
        let mut hub = Bench::candidate();
        assert!(matches!(hub.read(100, ReadOutcome::Absent)[..], [Action::Acquire(_)]));
        assert_eq!(hub.at(110, input), []);
        assert!(matches!(
            hub.stored(130, held_by("me", 1).fenced(7))[..],
            [Action::Release(_)]
        ));
    }
}

#[test]
fn doubtful_acquisition_is_looked_up_before_the_process_ends() {
    let mut hub = Bench::candidate();
    hub.read(100, ReadOutcome::Absent);
    hub.at(110, Input::Shutdown);
    assert!(!hub.machine.is_finished());
    assert!(matches!(
        hub.write(200, WriteOutcome::Unknown)[..],
        [Action::ReadLease(_)]
    ));
    assert!(matches!(
        hub.read(220, ReadOutcome::Found(held_by("me", 1)))[..],
        [Action::Release(_)]
    ));
    assert_eq!(hub.stored(240, free(2)), []);
    assert!(hub.machine.is_finished());
}

#[test]
fn holder_without_a_fence_does_not_lead() {
    let mut hub = Bench::candidate_of_rank(3);
    hub.read(0, ReadOutcome::Found(free(5)));
    hub.at(60, Input::Tick);
    assert_eq!(hub.stored(80, held_by("me", 6)), []);
    assert_eq!(hub.state(), HubState::FollowerHub);
    assert!(
        matches!(hub.at(2_080, Input::Tick)[..], [Action::Acquire(_)]),
        "the next answer may contain it"
    );
    assert!(matches!(
        hub.stored(2_100, held_by("me", 7).fenced(3))[..],
        [Action::StartLeading(_)]
    ));
}

#[test]
fn travelled_watch_event_does_not_replace_newer_knowledge() {
    let mut hub = Bench::candidate_of_rank(3);
    hub.read(1_000, ReadOutcome::Found(held_by("other", 8)));
    hub.at(1_010, Input::Watched(free(7)));
    hub.at(1_020, Input::WatchedDeletion(ResourceVersion(6)));
    assert_eq!(hub.machine.lease(), Some(&held_by("other", 8)));
    hub.at(1_030, Input::WatchedDeletion(ResourceVersion(9)));
    assert_eq!(hub.machine.lease(), None);
}

#[test]
fn read_that_crossed_an_event_is_repeated() {
    let mut hub = Bench::candidate_of_rank(3);
    hub.at(50, Input::Watched(held_by("other", 8)));
    let actions = hub.read(60, ReadOutcome::Found(held_by("other", 7)));
    assert!(
        matches!(actions[..], [Action::ReadLease(_)]),
        "sent before the event: it may be older"
    );
    hub.read(70, ReadOutcome::Found(held_by("other", 7)));
    assert_eq!(
        hub.machine.lease(),
        Some(&held_by("other", 7)),
        "sent after it: the store was restored"
    );
}

#[test]
fn unsafe_configurations_are_refused() {
    let good = Config::new("me");
    assert_eq!(good.validate(), Ok(()));
    let refused = [
        (
            Config {
                identity: String::new(),
                ..good.clone()
            },
            ConfigError::Identity,
        ),
        (
            Config {
                lease_duration: Duration::from_millis(15_500),
                ..good.clone()
            },
            ConfigError::LeaseDuration,
        ),
        (
            Config {
                lease_duration: Duration::from_secs(61),
                ..good.clone()
            },
            ConfigError::LeaseDuration,
        ),
        (
            Config {
                renew_deadline: Duration::from_secs(15),
                ..good.clone()
            },
            ConfigError::RenewDeadline,
        ),
        (
            Config {
                retry_period: Duration::from_secs(9),
                ..good
            },
            ConfigError::RetryPeriod,
        ),
    ];
    for (config, error) in refused {
        assert_eq!(config.validate(), Err(error));
    }
}
