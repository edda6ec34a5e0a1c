//! Decides whether the cloud still has the history that our replicas come from.
//!
//! Pure. A cloud that was restored from a backup gives resourceVersions out again that stood for something else. It shows
//! in reads without resourceVersion, which a server answers with all that was ever acknowledged: something of ours is ahead
//! of them, or an object is older than it was.

use std::collections::BTreeMap;

use yurt_apimachinery::{ObjectKey, ResourceVersion};

/// Generations are numbered in steps of this; what is below counts nothing and only tells them apart.
const GENERATION_STEP: u64 = 1_000_000;

/// Number of a generation after `last`. Who notices another rollback than others do chooses another number, but for one
/// chance in a million: equal numbers stand for one history.
#[must_use]
pub fn next_generation(last: u64, random: u64) -> u64 {
    let count = last / GENERATION_STEP + 1;
    count
        .saturating_mul(GENERATION_STEP)
        .saturating_add(random % GENERATION_STEP)
}

/// Objects that are looked at again: those with the highest RVs.
pub const NEWEST: usize = 3;

/// A lease as its RV and renewTime (Unix microseconds), or what is known of both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseState {
    /// Its RV.
    pub version: ResourceVersion,
    /// Its renewTime; the least number when there is none.
    pub renewed: i64,
}

/// One of our objects: collection and key.
pub type Place = (String, ObjectKey);

/// What we hold of the history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// The highest `C` of all replicas; zero when nothing is held.
    pub position: ResourceVersion,
    /// This node's lease as the cloud acknowledged it last.
    pub lease: Option<LeaseState>,
    /// The newest objects held.
    pub newest: BTreeMap<Place, ResourceVersion>,
}

/// What one server says. What it was not asked, or does not have, is no evidence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// RV of a list of one Service.
    pub head: ResourceVersion,
    /// This node's lease.
    pub lease: Option<LeaseState>,
    /// The objects of [`Known::newest`] that are there.
    pub newest: BTreeMap<Place, ResourceVersion>,
}

/// What follows from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing speaks against the history we know.
    Same,
    /// The server is behind; one that is not may have the history we know.
    Lagging,
    /// Our history is gone; the text says what went back.
    NewTimeline(String),
}

// === impl Known ===

impl Known {
    /// Whether there is anything a cloud could contradict.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.position.is_zero()
    }

    /// Judges what a server says. With `others` there are servers that were not asked yet.
    ///
    /// A server below our `C` may only lag, as long as another one may be ahead of it. One that has passed our `C` and has
    /// an older state of something has another history, whatever others say.
    #[must_use]
    pub fn judge(&self, answers: &Answers, others: bool) -> Verdict {
        if self.is_nothing() {
            return Verdict::Same;
        }
        if answers.head < self.position {
            let (head, position) = (answers.head, self.position);
            return match others {
                true => Verdict::Lagging,
                false => Verdict::NewTimeline(format!("the cloud is at {head}, we have seen {position}")),
            };
        }
        if let (Some(known), Some(now)) = (self.lease, answers.lease)
            && (now.version < known.version || now.renewed < known.renewed)
        {
            return Verdict::NewTimeline(format!("the node lease went back from {known:?} to {now:?}"));
        }
        let older = self.newest.iter().find_map(|(place, held)| {
            let now = answers.newest.get(place)?;
            (now < held).then(|| format!("{} {} went back from {held} to {now}", place.0, place.1))
        });
        older.map_or(Verdict::Same, Verdict::NewTimeline)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rv(value: u64) -> ResourceVersion {
        ResourceVersion(value)
    }

    /// A cloud: RV by key, the lease, and how many writes there were.
    #[derive(Clone, Debug, Default)]
    struct Cloud {
        head: u64,
        objects: BTreeMap<u8, u64>,
        lease: Option<LeaseState>,
    }

    #[derive(Clone, Copy, Debug)]
    enum Write {
        Put(u8),
        Delete(u8),
        Renew,
        Other,
    }

    fn writes(most: usize) -> impl Strategy<Value = Vec<Write>> {
        let one = prop_oneof![
            (0..6_u8).prop_map(Write::Put),
            (0..6_u8).prop_map(Write::Delete),
            Just(Write::Renew),
            Just(Write::Other),
        ];
        prop::collection::vec(one, 0..most)
    }

    fn place(key: u8) -> Place {
        ("services".to_owned(), ObjectKey::parse(&format!("x/{key}")))
    }

    impl Cloud {
        fn write(&mut self, writes: &[Write], clock: &mut i64) {
            for write in writes {
                self.head += 1;
                *clock += 10;
                match *write {
                    Write::Put(key) => drop(self.objects.insert(key, self.head)),
                    Write::Delete(key) => drop(self.objects.remove(&key)),
                    Write::Renew => {
                        self.lease = Some(LeaseState {
                            version: rv(self.head),
                            renewed: *clock,
                        });
                    }
                    Write::Other => {}
                }
            }
        }

        fn newest(&self) -> BTreeMap<Place, ResourceVersion> {
            let mut newest: Vec<_> = self.objects.iter().collect();
            newest.sort_by_key(|(_, version)| std::cmp::Reverse(**version));
            let newest = newest.into_iter().take(NEWEST);
            newest.map(|(key, version)| (place(*key), rv(*version))).collect()
        }

        fn known(&self) -> Known {
            Known {
                position: rv(self.head),
                lease: self.lease,
                newest: self.newest(),
            }
        }

        fn answers(&self, known: &Known) -> Answers {
            let found = |place: &Place| {
                let key = place.1.as_str().strip_prefix("x/")?.parse().ok()?;
                Some((place.clone(), rv(*self.objects.get(&key)?)))
            };
            Answers {
                head: rv(self.head),
                lease: self.lease,
                newest: known.newest.keys().filter_map(found).collect(),
            }
        }
    }

    proptest! {
        /// Whatever happened meanwhile, a history that goes on is never taken for another one.
        #[test]
        fn history_that_goes_on_is_the_same(before in writes(30), after in writes(30), others: bool) {
            let (mut cloud, mut clock) = (Cloud::default(), 0);
            cloud.write(&before, &mut clock);
            let known = cloud.known();
            cloud.write(&after, &mut clock);
            prop_assert_eq!(known.judge(&cloud.answers(&known), others), Verdict::Same);
        }

        /// A cloud that came back from a backup is noticed while it is behind what was seen, or has any state of what we
        /// look at that is older than ours.
        #[test]
        fn restored_cloud_is_noticed(kept in writes(20), lost in writes(20), after in writes(60)) {
            let (mut cloud, mut clock) = (Cloud::default(), 0);
            cloud.write(&kept, &mut clock);
            let mut restored = cloud.clone();
            cloud.write(&lost, &mut clock);
            let known = cloud.known();
            // Its node renewed nothing, its objects were not written again.
            let after: Vec<Write> = after.iter().map(|_| Write::Other).collect();
            restored.write(&after, &mut clock);
            let is_older = restored.lease.is_some() && restored.lease != known.lease
                || restored.objects.iter().any(|(key, now)| known.newest.get(&place(*key)).is_some_and(|held| rv(*now) < *held))
                || restored.head < cloud.head;
            let verdict = known.judge(&restored.answers(&known), false);
            prop_assert_eq!(matches!(verdict, Verdict::NewTimeline(_)), is_older, "{:?}", verdict);
        }
    }

    fn known() -> Known {
        let place = |name: &str| ("services".to_owned(), ObjectKey::parse(name));
        Known {
            position: rv(100),
            lease: Some(LeaseState {
                version: rv(90),
                renewed: 5_000,
            }),
            newest: [(place("x/a"), rv(95)), (place("x/b"), rv(80))].into(),
        }
    }

    fn answers() -> Answers {
        let known = known();
        Answers {
            head: rv(100),
            lease: known.lease,
            newest: known.newest,
        }
    }

    #[test]
    fn server_behind_is_no_proof_while_another_one_may_be_ahead() {
        let behind = Answers {
            head: rv(99),
            ..answers()
        };
        assert_eq!(known().judge(&behind, true), Verdict::Lagging);
        assert!(matches!(known().judge(&behind, false), Verdict::NewTimeline(_)));
        assert_eq!(known().judge(&answers(), false), Verdict::Same);
    }

    /// The restored cloud has passed what we saw: only what it tells of our objects shows it.
    #[test]
    fn one_older_state_is_a_proof_wherever_the_head_is() {
        let ahead = Answers {
            head: rv(10_000),
            ..answers()
        };
        assert_eq!(known().judge(&ahead, true), Verdict::Same);
        let mut lease = ahead.clone();
        lease.lease = Some(LeaseState {
            version: rv(5_000),
            renewed: 4_999,
        });
        let mut object = ahead.clone();
        object.newest.values_mut().for_each(|version| version.0 -= 1);
        for went_back in [lease, object] {
            let verdict = known().judge(&went_back, true);
            assert!(matches!(verdict, Verdict::NewTimeline(_)), "{verdict:?}");
        }
        let gone = Answers {
            lease: None,
            newest: BTreeMap::new(),
            ..ahead
        };
        assert_eq!(known().judge(&gone, false), Verdict::Same, "404 proves nothing");
    }

    #[test]
    fn who_holds_nothing_believes_everything() {
        assert_eq!(Known::default().judge(&Answers::default(), false), Verdict::Same);
    }
}
