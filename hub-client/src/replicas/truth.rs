//! Decides whether this node's copy of an object agrees with the cloud's.
//!
//! Pure. A list without resourceVersion shows the state at the cloud's present RV, its head. A replica at `C` claims to
//! be the state at `C`. Either may be the older one: an honest replica lags, but never has a state that the cloud did
//! not have.

use serde_json::Value;
use yurt_apimachinery::{Object, ResourceVersion};

/// One state of an object.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectState {
    /// Its RV.
    pub version: ResourceVersion,
    /// Uid of the object.
    pub uid: String,
    /// Everything but its type; `None` if only its metadata was read.
    pub content: Option<Value>,
}

/// ObjectState at the cloud.
#[derive(Clone, Debug, PartialEq)]
pub struct Truth {
    /// RV of the answer: the cloud's head.
    pub head: ResourceVersion,
    /// The object at that RV; `None` if there was none.
    pub state: Option<ObjectState>,
}

/// ObjectState of the replica.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldObject {
    /// `C`.
    pub position: ResourceVersion,
    /// The object in the replica; `None` if there is none.
    pub state: Option<ObjectState>,
    /// True if the replica was read before the cloud, so that it has nothing after the head.
    pub is_before: bool,
}

/// Result of a comparison with the cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TruthVerdict {
    /// Nothing contradicts the replica.
    Honest,
    /// The replica has not reached the cloud's answer; it can be judged once `C` is at the head.
    Behind,
    /// The replica has a state that never was; the text is the reason.
    Forged(&'static str),
}

// === impl HeldObject ===

impl HeldObject {
    /// RV of the object; zero if there is none.
    #[must_use]
    pub fn version(&self) -> ResourceVersion {
        self.state
            .as_ref()
            .map_or(ResourceVersion::default(), |state| state.version)
    }
}

// === impl ObjectState ===

impl ObjectState {
    /// Reads the state of `object`, with its content if `is_whole`.
    #[must_use]
    pub fn of(object: &Object, is_whole: bool) -> Self {
        let content = is_whole.then(|| {
            let mut content = object.to_value();
            if let Value::Object(members) = &mut content {
                // Items of a list lack it.
                members.remove("apiVersion");
                members.remove("kind");
            }
            content
        });
        Self {
            version: object.resource_version(),
            uid: object.uid().to_owned(),
            content,
        }
    }

    /// True if this equals `other`, which has the same RV, as far as both are known.
    fn is(&self, other: &Self) -> bool {
        let same_content = match (&self.content, &other.content) {
            (Some(one), Some(other)) => one == other,
            _ => true,
        };
        self.uid == other.uid && same_content
    }
}

/// Compares the replica's state `held` with the cloud's, `truth`.
#[must_use]
pub fn judge(held: &HeldObject, truth: &Truth) -> TruthVerdict {
    let at_head = held.position >= truth.head;
    match (&held.state, &truth.state) {
        (None, None) => TruthVerdict::Honest,
        // Newer than the cloud's answer.
        (Some(ours), _) if ours.version > truth.head && !held.is_before => TruthVerdict::Honest,
        (Some(ours), _) if ours.version > truth.head => {
            TruthVerdict::Forged("it has a resourceVersion that the cloud has not reached")
        }
        (Some(ours), Some(theirs)) if ours.version == theirs.version => match ours.is(theirs) {
            true => TruthVerdict::Honest,
            false => TruthVerdict::Forged("it is another object in the cloud, under the same resourceVersion"),
        },
        (Some(ours), Some(theirs)) if ours.version > theirs.version => {
            TruthVerdict::Forged("the cloud never had it: it did not change there since an earlier resourceVersion")
        }
        (Some(_), Some(theirs)) if held.position >= theirs.version => TruthVerdict::Forged("a change of it is missing"),
        (Some(_), None) if at_head => TruthVerdict::Forged("the cloud does not have it"),
        // It may have been deleted since.
        (None, Some(theirs)) if held.position >= theirs.version && (held.is_before || held.position == truth.head) => {
            TruthVerdict::Forged("the cloud has it, and the copy does not")
        }
        (None, Some(_)) if at_head => TruthVerdict::Honest,
        (Some(_) | None, _) => TruthVerdict::Behind,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn state(version: u64, uid: &str, content: u64) -> ObjectState {
        ObjectState {
            version: ResourceVersion(version),
            uid: uid.to_owned(),
            content: Some(json!(content)),
        }
    }

    fn held(position: u64, state: Option<ObjectState>) -> HeldObject {
        HeldObject {
            position: ResourceVersion(position),
            state,
            is_before: true,
        }
    }

    fn truth(head: u64, state: Option<ObjectState>) -> Truth {
        Truth {
            head: ResourceVersion(head),
            state,
        }
    }

    fn is_forged(held: &HeldObject, truth: &Truth) -> bool {
        matches!(judge(held, truth), TruthVerdict::Forged(_))
    }

    #[test]
    fn every_sort_of_forgery_is_one() {
        let now = truth(100, Some(state(50, "u", 1)));
        for (why, forged) in [
            ("content", held(60, Some(state(50, "u", 2)))),
            ("uid", held(60, Some(state(50, "v", 1)))),
            ("number not reached", held(200, Some(state(150, "u", 1)))),
            ("number never given to it", held(90, Some(state(80, "u", 1)))),
            ("change held back", held(60, Some(state(40, "u", 0)))),
            ("hidden", held(60, None)),
        ] {
            assert!(is_forged(&forged, &now), "{why}");
        }
        let gone = truth(100, None);
        assert!(is_forged(&held(100, Some(state(50, "u", 1))), &gone), "invented");
        assert!(is_forged(&held(200, Some(state(150, "u", 1))), &gone), "ahead");
    }

    #[test]
    fn lag_is_none() {
        let now = truth(100, Some(state(50, "u", 1)));
        assert_eq!(
            judge(&held(45, Some(state(40, "u", 0))), &now),
            TruthVerdict::Behind,
            "changed"
        );
        assert_eq!(judge(&held(45, None), &now), TruthVerdict::Behind, "created");
        let gone = truth(100, None);
        assert_eq!(
            judge(&held(60, Some(state(50, "u", 1))), &gone),
            TruthVerdict::Behind,
            "deleted"
        );
        let metadata = ObjectState {
            content: None,
            ..state(50, "u", 0)
        };
        let of_page = truth(100, Some(metadata));
        assert_eq!(
            judge(&held(60, Some(state(50, "u", 1))), &of_page),
            TruthVerdict::Honest
        );
    }

    /// Changes of one object at consecutive RVs: `None` is a change of another object.
    fn history() -> impl Strategy<Value = Vec<Option<bool>>> {
        prop::collection::vec(prop::option::weighted(0.5, any::<bool>()), 1..30)
    }

    /// The states after each RV.
    fn states(history: &[Option<bool>]) -> Vec<Option<ObjectState>> {
        let (mut states, mut uid) = (vec![None], 0);
        for (index, what) in history.iter().enumerate() {
            let version = index as u64 + 1;
            let before: Option<ObjectState> = states.last().cloned().flatten();
            states.push(match what {
                None => before,
                Some(false) => None,
                Some(true) => {
                    uid += u64::from(before.is_none());
                    Some(state(version, &uid.to_string(), version))
                }
            });
        }
        states
    }

    proptest! {
        #[test]
        fn honest_copy_is_never_accused(history in history(), at in any::<prop::sample::Index>(), head in any::<prop::sample::Index>()) {
            let states = states(&history);
            let (at, head) = (at.index(states.len()), head.index(states.len()));
            let held = HeldObject {
                position: ResourceVersion(at as u64),
                state: states[at].clone(),
                is_before: at <= head,
            };
            let truth = truth(head as u64, states[head].clone());
            let verdict = judge(&held, &truth);
            prop_assert!(!matches!(verdict, TruthVerdict::Forged(_)), "{verdict:?}");
            if at >= head {
                prop_assert_eq!(verdict, TruthVerdict::Honest);
            }
        }

        #[test]
        fn copy_at_the_head_with_any_other_state_is_forged(history in history(), other in 0..40_u64, uid in 0..4_u64, is_there in any::<bool>()) {
            let states = states(&history);
            let head = states.len() - 1;
            let forged = is_there.then(|| state(other, &uid.to_string(), other));
            prop_assume!(forged != states[head]);
            let held = held(head as u64, forged);
            prop_assert!(is_forged(&held, &truth(head as u64, states[head].clone())));
        }
    }
}
