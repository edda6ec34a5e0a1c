//! Check that the cloud of the simulated reads still has a hub's history, before the hub applies anything from it. The
//! requests are those of the hub's `replicas/history_check.rs`, and the hub's own code judges the answers.

use std::collections::{BTreeMap, BTreeSet};

use yurt_apimachinery::ResourceVersion;
use yurt_collection::Collection;
use yurt_pool_protocol::history::{Answers, HeldVersion, HistoryVerdict, KnownHistory, NEWEST, ObjectRef};

use super::Mutation;
use super::cloud::Cloud;
use super::hub::{Frame, Hub, World};

/// The only collection.
const NAME: &str = "services";

// === impl Hub ===

impl Hub {
    /// True if the cloud has the history of the held copy; checks it unless that was done for this very copy since the
    /// last break.
    pub(super) fn has_cloud_history(&mut self, world: &World<'_>) -> bool {
        let generation = self.held.generation();
        let is_proven = match self.mutation {
            Some(Mutation::ProofOfAnyCopy) => self.proven.is_some(),
            _ => self.proven == Some(generation),
        };
        if !is_proven && self.gone != Some(generation) && self.mutation != Some(Mutation::NoProof) {
            let known = self.known(world);
            if let HistoryVerdict::NewTimeline(_) = known.judge(&answers(world.cloud, &known), false) {
                self.gone = Some(generation);
            }
        }
        self.proven = Some(generation);
        self.gone != Some(generation)
    }

    /// True if the leader may feed its copy as the present cloud's.
    pub(super) fn holds(&self) -> bool {
        let generation = self.held.generation();
        self.proven == Some(generation) && self.gone != Some(generation)
    }

    /// True if the cloud sent a frame that cannot follow from the held copy. Then its history is another one.
    pub(super) fn contradicts(&mut self, frame: &Frame) -> bool {
        let Frame::Event(event, object) = frame else {
            return false;
        };
        let follows = self.held.check_follows(*event, object);
        if follows.is_err() && self.mutation != Some(Mutation::NoProof) {
            self.gone = Some(self.held.generation());
            return true;
        }
        false
    }

    fn known(&self, world: &World<'_>) -> KnownHistory {
        let mut known = KnownHistory::default();
        let held = &self.held;
        if let Some(pool) = world.coordinator {
            let there = |there: &Collection| {
                let is_same = there.is_complete() && there.generation() == held.generation();
                is_same.then(|| there.position())
            };
            known.position = pool.objects().read(there).unwrap_or_default();
        }
        if !held.is_complete() {
            return known;
        }
        let at = held.position();
        known.position = known.position.max(at);
        let place = |key: &yurt_apimachinery::ObjectKey| (NAME.to_owned(), key.clone());
        let newest = held.newest(NEWEST);
        known.newest = newest
            .map(|(key, version)| (place(key), HeldVersion { version, at }))
            .collect();
        let deleted = held.deletions().take(NEWEST);
        known.deleted = deleted
            .map(|object| (place(object.key()), object.uid().to_owned()))
            .collect();
        known
    }
}

/// Answers of the cloud to reads without resourceVersion, and of the past.
fn answers(cloud: &Cloud, known: &KnownHistory) -> Answers {
    let version = |(_, key): &ObjectRef| cloud.now(key).map(|(version, _)| ResourceVersion(version));
    let newest: BTreeMap<_, _> = known
        .newest
        .keys()
        .filter_map(|place| Some((place.clone(), version(place)?)))
        .collect();
    let mut answers = Answers {
        head: ResourceVersion(cloud.head()),
        newest,
        ..Answers::default()
    };
    for (place, held) in &known.newest {
        if !answers.settles(place, *held)
            && let Some(then) = cloud.then(&place.1, held.at.0)
        {
            answers.then.insert(place.clone(), then.map(ResourceVersion));
        }
    }
    let is_back =
        |(place, uid): &(&ObjectRef, &String)| cloud.now(&place.1).is_some_and(|(_, now)| now == uid.as_str());
    let back: BTreeSet<ObjectRef> = known
        .deleted
        .iter()
        .filter(is_back)
        .map(|(place, _)| place.clone())
        .collect();
    answers.back = back;
    answers
}
