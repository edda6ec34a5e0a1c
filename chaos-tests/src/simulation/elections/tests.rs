//! Short runs of the simulated elections; long ones are `yurt-chaos --only elections`.

use super::*;

fn first_violation(setting: Setting, mutation: Option<Mutation>, seeds: u64) -> Option<String> {
    (0..seeds).find_map(|seed| simulate(setting, mutation, seed).violation)
}

#[test]
fn at_most_one_machine_may_act_and_somebody_leads_in_the_end() {
    for (name, setting) in SETTINGS {
        assert_eq!(first_violation(setting, None, 6), None, "{name}");
    }
}

/// The property is not vacuous: elections happen, leaders feed, and some feed calls come too late.
#[test]
fn chaos_of_the_simulation_moves_the_leader() {
    let (mut elections, mut checked) = (0, 0);
    let stale = Struck::default();
    for seed in 0..4 {
        let ran = simulate(SETTINGS[0].1, None, seed);
        elections += ran.operations;
        checked += ran.checked;
        stale.add(&ran.struck);
    }
    assert!(
        elections > 40 && checked > 400,
        "{elections} elections, {checked} calls"
    );
    assert!(stale.of(Fault::StaleFeed) > 0);
}

#[test]
fn seed_decides_what_happens_in_an_election() {
    let told = |seed| {
        let ran = simulate(SETTINGS[1].1, None, seed);
        (ran.operations, ran.checked, format!("{:?}", ran.struck))
    };
    assert_eq!(told(7), told(7));
    assert_ne!(told(7), told(8));
}

/// The property can fail: the same check catches a leader that ignores its own clock.
#[test]
fn simulation_notices_a_leader_that_ignores_its_clock() {
    assert!(first_violation(SETTINGS[0].1, Some(Mutation::IgnoreOwnClock), 20).is_some());
}

/// It also catches a drift beyond the bound.
#[test]
fn simulation_notices_a_drift_beyond_the_bound() {
    let beyond = Setting {
        exclusive: true,
        ..SETTINGS[2].1
    };
    assert!(first_violation(beyond, None, 60).is_some());
}
