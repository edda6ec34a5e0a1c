//! Decides how the leader's feed of a collection continues from the coordinator's state.
//!
//! Pure. Equal generations mean that one copy came from the other, or both from a third. Only then can positions be
//! compared. Two hubs that saw different rollbacks never choose the same number ([`generation::next`]). The leader
//! never adopts the coordinator's number for data of another origin.
//!
//! Assumption: a new leader already holds everything the coordinator held, and a rollback lost more than the data that
//! only the coordinator had. A rollback to a point between the two shows in neither of them. A hub follows the
//! coordinator until it leads, and a coordinator that is ahead is part of the proof.

use yurt_apimachinery::ResourceVersion;
use yurt_collection::generation;

/// State of a collection, at the coordinator or at this hub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyState {
    /// Position `C`: everything up to this RV is applied.
    pub position: ResourceVersion,
    /// Generation of the collection's history.
    pub generation: u64,
    /// True if everything up to `C` is there.
    pub complete: bool,
}

/// Next action of the feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumePlan {
    /// Send nothing before a proof that the replica has the present cloud's history.
    AwaitProof,
    /// Send the replica under this number as a snapshot: the coordinator has another history.
    Begin(u64),
    /// Send a snapshot: the coordinator is incomplete, or has an earlier generation.
    Snapshot,
    /// Send nothing: this hub's source lags behind the coordinator.
    Wait,
    /// Send nothing before the collection is relisted in the cloud, because the fed data is void. The list begins a
    /// generation above the coordinator's.
    List,
    /// Send nothing: the coordinator's generation has no successor.
    Exhausted,
    /// Send the events after the coordinator's position.
    Events,
}

// === impl CopyState ===

impl CopyState {
    /// True if an administrator has voided the fed data: nothing is held, and an earlier generation is rejected.
    #[must_use]
    pub fn is_void(self) -> bool {
        !self.complete && self.position.is_zero() && self.generation > 0
    }
}

// === impl ResumePlan ===

impl ResumePlan {
    /// Decides the next action. `proven` is true if the replica is proved to have the cloud's history. `random` makes
    /// the number of a new generation unique.
    #[must_use]
    pub fn of(there: CopyState, here: CopyState, proven: bool, random: u64) -> Self {
        let next = || generation::next(there.generation, random);
        if there.is_void() && !proven {
            return Self::AwaitProof;
        }
        if there.is_void() && there.generation > here.generation {
            return next().map_or(Self::Exhausted, |_| Self::List);
        }
        // The coordinator saw a restore of the cloud from a backup that this hub did not see, or a different one. The
        // numbers do not show which history is older. The coordinator also rejects a generation too far above its own.
        let is_other = there.generation > here.generation;
        if is_other || !generation::may_follow(there.generation, here.generation) {
            return match proven {
                true => next().map_or(Self::Exhausted, Self::Begin),
                false => Self::AwaitProof,
            };
        }
        if !there.complete || there.generation < here.generation {
            return Self::Snapshot;
        }
        match there.position > here.position {
            true => Self::Wait,
            false => Self::Events,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Copy of a collection: its generation and the writes it has seen. Two writes are the same only if their numbers
    /// are.
    #[derive(Clone, Debug, Default)]
    struct Copy {
        generation: u64,
        seen: Vec<u64>,
    }

    #[derive(Clone, Copy, Debug)]
    enum Do {
        Write,
        /// The cloud is restored from a backup without its last writes; the value is their number.
        Restore(usize),
        /// A hub follows the coordinator.
        Follow(usize),
        /// A hub leads for a moment.
        Feed(usize),
    }

    struct World {
        cloud: Vec<u64>,
        hubs: Vec<Copy>,
        coordinator: Copy,
        serial: u64,
    }

    fn steps() -> impl Strategy<Value = Vec<Do>> {
        let one = prop_oneof![
            3 => Just(Do::Write),
            1 => (1..4_usize).prop_map(Do::Restore),
            2 => (0..3_usize).prop_map(Do::Follow),
            3 => (0..3_usize).prop_map(Do::Feed),
        ];
        prop::collection::vec(one, 0..60)
    }

    impl Copy {
        fn place(&self) -> CopyState {
            CopyState {
                position: ResourceVersion(self.seen.len() as u64),
                generation: self.generation,
                complete: true,
            }
        }

        fn is_of(&self, history: &[u64]) -> bool {
            history.starts_with(&self.seen)
        }
    }

    impl World {
        fn new() -> Self {
            let shared = Copy::default();
            Self {
                cloud: Vec::new(),
                hubs: vec![shared.clone(); 3],
                coordinator: shared,
                serial: 0,
            }
        }

        fn random(&mut self) -> u64 {
            self.serial += 1;
            self.serial
        }

        /// Reads the cloud as a new leader does, after a perfect proof. The hub has what the coordinator had.
        fn read(&mut self, hub: usize) {
            if self.hubs[hub].generation == self.coordinator.generation {
                self.follow(hub);
            }
            let random = self.random();
            let (hub, cloud) = (&mut self.hubs[hub], &self.cloud);
            if !hub.is_of(cloud) {
                hub.generation = generation::next(hub.generation, random).unwrap();
            }
            hub.seen.clone_from(cloud);
        }

        /// Resumes by number if the generation is the same; returns whether that was right.
        fn follow(&mut self, hub: usize) -> bool {
            let (hub, source) = (&mut self.hubs[hub], &self.coordinator);
            let same = hub.generation == source.generation;
            let right = !same || hub.is_of(&source.seen) || source.is_of(&hub.seen);
            if !same || source.seen.len() > hub.seen.len() {
                hub.clone_from(source);
            }
            right
        }

        fn feed(&mut self, hub: usize) -> bool {
            self.read(hub);
            let random = self.random();
            let (hub, there) = (&mut self.hubs[hub], &mut self.coordinator);
            let way = ResumePlan::of(there.place(), hub.place(), true, random);
            if let ResumePlan::Begin(generation) = way {
                hub.generation = generation;
            }
            let right = match way {
                ResumePlan::Events | ResumePlan::Wait => there.is_of(&hub.seen),
                _ => hub.generation > there.generation,
            };
            there.clone_from(hub);
            right
        }
    }

    proptest! {
        /// For any number of restores of the cloud, seen by any hub: no copy resumes by number in a foreign history,
        /// and after a feed the coordinator has the cloud's history.
        #[test]
        fn equal_numbers_mean_one_history(steps in steps()) {
            let mut world = World::new();
            for step in steps {
                match step {
                    Do::Write => {
                        let write = world.random();
                        world.cloud.push(write);
                    }
                    Do::Restore(less) => world.cloud.truncate(world.cloud.len().saturating_sub(less)),
                    Do::Follow(hub) => prop_assert!(world.follow(hub), "a hub mixes two histories"),
                    Do::Feed(hub) => {
                        prop_assert!(world.feed(hub), "the coordinator mixes two histories");
                        prop_assert_eq!(&world.coordinator.seen, &world.cloud);
                    }
                }
            }
        }
    }

    #[test]
    fn nothing_is_fed_under_a_new_number_before_the_proof() {
        let (there, here) = (
            CopyState {
                position: ResourceVersion(9),
                generation: 7,
                complete: true,
            },
            CopyState::default(),
        );
        assert_eq!(ResumePlan::of(there, here, false, 1), ResumePlan::AwaitProof);
        assert_eq!(ResumePlan::of(there, here, true, 1), ResumePlan::Begin(1_000_001));
    }

    fn of_generation(generation: u64) -> CopyState {
        CopyState {
            position: ResourceVersion(9),
            generation,
            complete: true,
        }
    }

    /// Another member may have numbered this hub's replica, or the coordinator may have lost its disk since.
    #[test]
    fn number_that_the_coordinator_would_not_take_is_left_for_its_next_one() {
        for far in [1_500_000_000, generation::GENERATION_END, u64::MAX] {
            let way = |proven| ResumePlan::of(of_generation(3_000_000), of_generation(far), proven, 7);
            assert_eq!(way(true), ResumePlan::Begin(4_000_007), "from {far}");
            assert_eq!(way(false), ResumePlan::AwaitProof);
        }
        let near = of_generation(900_000_000);
        assert_eq!(
            ResumePlan::of(CopyState::default(), near, true, 7),
            ResumePlan::Snapshot
        );
    }

    /// The replica may come from the void data and pass for the cloud's: a proof compares only few objects.
    #[test]
    fn what_is_void_is_listed_again_before_it_is_fed() {
        let there = CopyState {
            generation: 8_000_001,
            ..CopyState::default()
        };
        let way = |generation, proven| ResumePlan::of(there, of_generation(generation), proven, 5);
        assert_eq!(way(7_000_003, true), ResumePlan::List);
        assert_eq!(way(7_000_003, false), ResumePlan::AwaitProof, "it is being listed");
        assert_eq!(way(9_000_005, true), ResumePlan::Snapshot, "the list has finished");
        let lost_its_disk = CopyState::default();
        assert_eq!(
            ResumePlan::of(lost_its_disk, of_generation(7_000_003), false, 5),
            ResumePlan::Snapshot
        );
    }

    #[test]
    fn nothing_comes_after_the_last_number() {
        let here = of_generation(3_000_000);
        for last in [generation::GENERATION_END - 1, u64::MAX] {
            assert_eq!(
                ResumePlan::of(of_generation(last), here, true, 7),
                ResumePlan::Exhausted
            );
        }
        let ours = of_generation(u64::MAX);
        assert_eq!(
            ResumePlan::of(ours, ours, true, 7),
            ResumePlan::Exhausted,
            "it takes no snapshot under it"
        );
    }
}
