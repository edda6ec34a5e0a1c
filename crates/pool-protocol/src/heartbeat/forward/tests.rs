//! One test per rule of forwarding.

use super::*;

fn secs(value: u64) -> Duration {
    Duration::from_secs(value)
}

fn lease(renew_time: i64, is_delegated: bool) -> PoolLease {
    PoolLease {
        renew_time: Some(UnixMicros(renew_time)),
        lease_duration: secs(40),
        is_delegated,
        relayed: None,
    }
}

/// A leader that has seen node "n" cut off, with renewTime 100 as its baseline.
fn with_baseline() -> Forwarder {
    let mut plan = Forwarder::new();
    plan.handle_lease(secs(0), "n", lease(100, true));
    plan
}

fn polled(plan: &mut Forwarder, at: u64) -> Vec<String> {
    std::iter::from_fn(|| plan.poll(secs(at))).collect()
}

#[test]
fn first_state_is_a_baseline_and_not_a_beat() {
    let mut plan = with_baseline();
    assert_eq!(plan.poll(secs(0)), None);
    plan.handle_lease(secs(5), "n", lease(100, true));
    assert_eq!(
        plan.poll(secs(5)),
        None,
        "an event without a new renewTime is no beat either"
    );
    plan.handle_lease(secs(10), "n", lease(200, true));
    assert_eq!(plan.poll(secs(10)).as_deref(), Some("n"));
    assert_eq!(plan.poll(secs(10)), None, "one beat is carried once");
}

#[test]
fn restart_of_the_coordinator_makes_new_baselines() {
    let mut plan = with_baseline();
    plan.handle_lease(secs(10), "n", lease(200, true));
    plan.handle_restart();
    assert_eq!(plan.poll(secs(10)), None);
    plan.handle_lease(secs(11), "n", lease(150, true));
    assert_eq!(plan.poll(secs(11)), None);
    plan.handle_lease(secs(20), "n", lease(300, true));
    assert_eq!(plan.poll(secs(20)).as_deref(), Some("n"));
}

#[test]
fn restart_while_a_worker_is_on_its_way_makes_a_baseline_too() {
    let mut plan = with_baseline();
    plan.handle_lease(secs(10), "n", lease(200, true));
    assert!(plan.poll(secs(10)).is_some());
    plan.handle_restart();
    plan.handle_lease(secs(11), "n", lease(250, true));
    plan.handle_done("n");
    assert_eq!(plan.poll(secs(11)), None);
    plan.handle_lease(secs(20), "n", lease(300, true));
    assert!(plan.poll(secs(20)).is_some());
}

#[test]
fn node_that_reaches_the_cloud_speaks_for_itself() {
    let mut plan = Forwarder::new();
    plan.handle_lease(secs(0), "n", lease(100, false));
    plan.handle_lease(secs(10), "n", lease(200, false));
    assert_eq!(plan.poll(secs(10)), None);
}

#[test]
fn beat_that_is_annotated_afterwards_is_carried() {
    let mut plan = Forwarder::new();
    plan.handle_lease(secs(0), "n", lease(100, false));
    plan.handle_lease(secs(10), "n", lease(200, false));
    plan.handle_lease(secs(13), "n", lease(200, true));
    assert!(
        plan.poll(secs(13)).is_some(),
        "the cloud renewal of this beat failed after the pool one was written"
    );
}

#[test]
fn annotation_added_to_a_baseline_is_not_a_beat() {
    let mut plan = Forwarder::new();
    plan.handle_lease(secs(0), "n", lease(100, false));
    plan.handle_lease(secs(1), "n", lease(100, true));
    assert_eq!(plan.poll(secs(1)), None);
}

#[test]
fn annotation_that_is_gone_before_the_worker_starts_stops_it() {
    let mut plan = with_baseline();
    plan.handle_lease(secs(10), "n", lease(200, true));
    plan.handle_lease(secs(10), "n", lease(200, false));
    assert_eq!(plan.poll(secs(10)), None);
}

#[test]
fn renew_time_that_goes_back_is_a_baseline() {
    let mut plan = with_baseline();
    plan.handle_lease(secs(10), "n", lease(50, true));
    assert_eq!(plan.poll(secs(10)), None);
    plan.handle_lease(secs(20), "n", lease(60, true));
    assert!(plan.poll(secs(20)).is_some(), "a stepped clock costs one beat, not all");
    let none = PoolLease {
        renew_time: None,
        ..lease(0, true)
    };
    plan.handle_lease(secs(21), "n", none);
    plan.handle_done("n");
    assert_eq!(plan.poll(secs(21)), None);
}

#[test]
fn busy_worker_takes_the_newest_beat_when_it_is_done() {
    let mut plan = with_baseline();
    plan.handle_lease(secs(10), "n", lease(200, true));
    assert!(plan.poll(secs(10)).is_some());
    plan.handle_lease(secs(20), "n", lease(300, true));
    plan.handle_lease(secs(30), "n", lease(400, true));
    assert_eq!(plan.poll(secs(30)), None, "one worker per node");
    plan.handle_done("n");
    assert!(plan.poll(secs(30)).is_some());
    plan.handle_done("n");
    assert_eq!(plan.poll(secs(30)), None, "two beats were one write");
}

#[test]
fn conflict_drops_the_beat() {
    let mut plan = with_baseline();
    plan.handle_lease(secs(10), "n", lease(200, true));
    assert!(plan.poll(secs(10)).is_some());
    plan.handle_done("n");
    plan.handle_lease(secs(11), "n", lease(200, true));
    assert_eq!(plan.poll(secs(11)), None);
}

#[test]
fn beat_older_than_the_lease_duration_is_not_carried() {
    let mut plan = with_baseline();
    plan.handle_lease(secs(10), "n", lease(200, true));
    assert_eq!(plan.poll(secs(50)), None);
}

#[test]
fn concurrency_is_bounded_and_the_oldest_go_first() {
    let mut plan = Forwarder::new();
    let names: Vec<_> = (0..FORWARDS_MAX + 2)
        .map(|index| format!("n{index:02}"))
        .rev()
        .collect();
    for (time, renew_time) in [(0, 100), (10, 200)] {
        names
            .iter()
            .for_each(|name| plan.handle_lease(secs(time), name, lease(renew_time, true)));
    }
    assert_eq!(polled(&mut plan, 10), names[..FORWARDS_MAX]);
    plan.handle_done(&names[3]);
    plan.handle_done(&names[3]);
    assert_eq!(
        polled(&mut plan, 11),
        names[FORWARDS_MAX..=FORWARDS_MAX],
        "a repeated report frees one place only"
    );
}

/// Checks the plan alone: each beat takes two round trips of 300 ms.
#[test]
fn thousand_nodes_that_are_cut_off_are_carried_before_their_next_beats() {
    let mut plan = Forwarder::new();
    let millis = Duration::from_millis;
    for (time, renew_time) in [(0, 100), (10, 200)] {
        (0..1_000).for_each(|node| plan.handle_lease(secs(time), &format!("n{node}"), lease(renew_time, true)));
    }
    let (mut now, mut carried) = (secs(10), 0);
    loop {
        let names: Vec<_> = std::iter::from_fn(|| plan.poll(now)).collect();
        if names.is_empty() {
            break;
        }
        now += millis(2 * 300);
        carried += names.len();
        names.iter().for_each(|name| plan.handle_done(name));
    }
    assert_eq!(carried, 1_000, "none was too old before its turn came");
    assert!(now - secs(10) <= secs(10), "{:?}", now - secs(10));
}

/// A node may write its pool lease as often as it likes, or delete and create it; each forwarded beat costs two
/// requests of the leader's link.
#[test]
fn node_that_beats_without_end_is_forwarded_at_a_bounded_rate() {
    let mut plan = with_baseline();
    let at = |tenths: u64| Duration::from_millis(100 * tenths);
    let mut forwarded = 0;
    for tenths in 1..=1_000_u32 {
        let now = at(u64::from(tenths));
        if tenths % 50 == 0 {
            plan.handle_deleted("n");
        }
        plan.handle_lease(now, "n", lease(i64::from(tenths) + 100, true));
        while plan.poll(now).is_some() {
            forwarded += 1;
            plan.handle_done("n");
        }
    }
    assert!((20..=23).contains(&forwarded), "{forwarded} in 100 s");
    let mut kubelet = Forwarder::new();
    for beat in 0..100 {
        kubelet.handle_lease(secs(10 * beat), "n", lease(i64::try_from(beat).unwrap(), true));
        assert_eq!(kubelet.poll(secs(10 * beat)).is_some(), beat > 0, "beat {beat}");
        kubelet.handle_done("n");
    }
}

#[test]
fn deleted_lease_is_forgotten() {
    let mut plan = with_baseline();
    plan.handle_lease(secs(10), "n", lease(200, true));
    plan.handle_deleted("n");
    assert_eq!(plan.poll(secs(10)), None);
    plan.handle_lease(secs(20), "n", lease(300, true));
    assert_eq!(plan.poll(secs(20)), None, "it comes back as a baseline");
}

/// The cloud ignores a renewal that is not later than the last one. The node renews by its own clock as soon as it can.
#[test]
fn renewal_is_ahead_of_neither_clock() {
    let leader = UnixMicros(1_700_000_000_000_000);
    let off = |seconds: i64| UnixMicros(leader.0 + seconds * 1_000_000);
    for (last, beat, written) in [
        (off(-3_610), off(-3_600), off(-3_600)),
        (off(-10), off(0), off(0)),
        (off(-10), off(3_600), leader),
    ] {
        let mut plan = Forwarder::new();
        plan.handle_lease(secs(0), "n", lease(last.0, true));
        plan.handle_lease(secs(10), "n", lease(beat.0, true));
        let at = plan.beat("n", leader).unwrap();
        assert_eq!(renewal(at, Some(last)), written);
        assert!(renewal(at, Some(written)) > written, "every beat counts");
    }
}

#[test]
fn renewal_never_goes_back() {
    assert_eq!(renewal(UnixMicros(500), None), UnixMicros(500));
    assert_eq!(renewal(UnixMicros(500), Some(UnixMicros(400))), UnixMicros(500));
    assert_eq!(renewal(UnixMicros(500), Some(UnixMicros(500))), UnixMicros(501));
    assert_eq!(
        renewal(UnixMicros(500), Some(UnixMicros(i64::MAX))),
        UnixMicros(i64::MAX)
    );
}

/// A cut-off node's lease with a beat and the last relayed one, both in seconds of its clock.
fn relayed(renew_time: i64, relayed: i64) -> PoolLease {
    PoolLease {
        relayed: Some(UnixMicros(relayed * 1_000_000)),
        ..lease(renew_time * 1_000_000, true)
    }
}

#[test]
fn beat_that_a_relay_carries_is_not_forwarded() {
    let mut plan = Forwarder::new();
    plan.handle_lease(secs(0), "n", relayed(100, 100));
    plan.handle_lease(secs(10), "n", relayed(110, 100));
    assert_eq!(plan.poll(secs(10)), None, "the relay has this beat in hand");
    plan.handle_lease(secs(11), "n", relayed(110, 110));
    assert_eq!(plan.poll(secs(11)), None);
}

#[test]
fn beat_that_the_relay_lost_is_forwarded_at_once() {
    let mut plan = Forwarder::new();
    plan.handle_lease(secs(0), "n", relayed(100, 100));
    plan.handle_lease(secs(10), "n", relayed(110, 100));
    assert_eq!(plan.poll(secs(10)), None);
    plan.handle_lease(secs(14), "n", lease(110_000_000, true));
    assert_eq!(
        plan.poll(secs(14)).as_deref(),
        Some("n"),
        "the mark is gone: the same beat"
    );
}

#[test]
fn old_mark_or_one_of_the_future_holds_nothing_up() {
    for mark in [90, 111] {
        let mut plan = Forwarder::new();
        plan.handle_lease(secs(0), "n", relayed(100, mark));
        plan.handle_lease(secs(10), "n", relayed(110, mark));
        assert!(plan.poll(secs(10)).is_some(), "marked {mark}");
    }
    let mut plan = Forwarder::new();
    let extreme = PoolLease {
        relayed: Some(UnixMicros(i64::MIN)),
        ..lease(i64::MAX, true)
    };
    plan.handle_lease(secs(0), "n", lease(0, true));
    plan.handle_lease(secs(1), "n", extreme);
    assert!(plan.poll(secs(1)).is_some());
}
