//! Rules for a snapshot: its index arrives in parts, then the missing bodies, and it applies as a whole.

use std::collections::{BTreeMap, BTreeSet};

use yurt_apimachinery::{Object, ObjectKey, ResourceVersion, Status};
use yurt_collection::{Collection, History, WriteError};

use super::events::require_mark;
use super::{BodiesCall, Refusal, SnapshotCall};
use crate::fence::Claim;

/// Approximate bytes of an entry of the index, or of the missing keys, in addition to its key.
const ENTRY_BYTES: usize = 64;

/// Bodies of a snapshot that have arrived, by key, wherever they are kept.
pub trait Bodies: Default {
    /// Keeps the bodies for which `is_wanted` is true for the key and the RV.
    fn retain(&mut self, is_wanted: impl Fn(&str, ResourceVersion) -> bool);

    /// Keys of all bodies.
    fn keys(&self) -> impl Iterator<Item = &String>;

    /// Bytes of all bodies.
    fn bytes(&self) -> usize;
}

/// Incoming data for one collection.
#[derive(Debug)]
pub struct Arriving<B> {
    /// An index whose later parts are still to come.
    announced: Option<Announced>,
    /// A snapshot whose index is complete. It stays until another index is complete, so that its bodies are not sent
    /// again.
    pub pending: Option<Pending<B>>,
}

/// Identity of a snapshot: claim of the leader, generation and position.
type Version = (Claim, u64, ResourceVersion);

/// Keys and RVs that a leader has sent so far.
#[derive(Debug)]
struct Announced {
    version: Version,
    index: BTreeMap<String, ResourceVersion>,
    bytes: usize,
}

/// A snapshot whose bodies are still arriving.
#[derive(Debug)]
pub struct Pending<B> {
    version: Version,
    index: BTreeMap<String, ResourceVersion>,
    missing: BTreeSet<String>,
    /// The bodies that have arrived.
    pub bodies: B,
    /// The leader's history before the snapshot.
    history: Option<History>,
}

// === impl Arriving ===

impl<B> Default for Arriving<B> {
    fn default() -> Self {
        Self {
            announced: None,
            pending: None,
        }
    }
}

impl<B: Bodies> Arriving<B> {
    /// Adds a part of an index. Returns the number of keys, and with the last part the whole index.
    ///
    /// # Errors
    /// [`Refusal::Gap`] for a part that does not continue the earlier ones.
    pub fn announce(
        &mut self,
        call: &mut SnapshotCall<'_>,
        applied: ResourceVersion,
    ) -> Result<(Option<BTreeMap<String, ResourceVersion>>, usize), Refusal> {
        let version = (call.claim(), call.generation, call.at);
        let before = self.announced.take();
        let mut announced = match before {
            _ if call.from == 0 => Announced {
                version,
                index: BTreeMap::new(),
                bytes: 0,
            },
            Some(before) if before.version == version && before.index.len() == call.from => before,
            _ => return Err(Refusal::Gap { applied }),
        };
        for (key, rv) in std::mem::take(&mut call.index) {
            announced.bytes += key.len() + ENTRY_BYTES;
            announced.index.insert(key, rv);
        }
        let keys = announced.index.len();
        if call.more {
            self.announced = Some(announced);
            return Ok((None, keys));
        }
        Ok((Some(announced.index), keys))
    }

    /// Drops what came with other claims.
    pub fn keep_only(&mut self, claim: &Claim) {
        self.announced.take_if(|announced| announced.version.0 != *claim);
        self.pending.take_if(|pending| pending.version.0 != *claim);
    }

    /// Bytes of the whole incoming data.
    pub fn bytes(&self) -> usize {
        let announced = self.announced.as_ref().map_or(0, |announced| announced.bytes);
        announced + self.pending.as_ref().map_or(0, Pending::bytes)
    }

    /// The snapshot to which these bodies belong.
    pub fn pending_of(&mut self, call: &BodiesCall<'_>) -> Option<&mut Pending<B>> {
        let version = (call.claim(), call.generation, call.at);
        self.pending.as_mut().filter(|pending| pending.version == version)
    }
}

// === impl Pending ===

impl<B: Bodies> Pending<B> {
    /// The snapshot that `call` announces with `index`. Bodies of an unfinished earlier snapshot are reused, even from
    /// another leader: within one generation an RV of a key has one content.
    #[must_use]
    pub fn of(
        call: &SnapshotCall<'_>,
        index: BTreeMap<String, ResourceVersion>,
        history: Option<History>,
        held: &Collection,
        before: Option<Self>,
    ) -> Self {
        // In a new generation an old RV may have another content.
        let may_reuse = call.generation == held.generation();
        let is_held = |key: &str, rv: ResourceVersion| {
            may_reuse && find(held, key).is_some_and(|object| object.resource_version() == rv)
        };
        let mut missing: BTreeSet<String> = index
            .iter()
            .filter(|(key, rv)| !is_held(key, **rv))
            .map(|(key, _)| key.clone())
            .collect();
        let before = before.filter(|before| before.version.1 == call.generation);
        let mut bodies = before.map(|before| before.bodies).unwrap_or_default();
        bodies.retain(|key, rv| missing.contains(key) && index.get(key) == Some(&rv));
        for key in bodies.keys() {
            missing.remove(key);
        }
        Self {
            version: (call.claim(), call.generation, call.at),
            index,
            missing,
            bodies,
            history,
        }
    }

    /// Bytes of the index, of the missing keys, of the history and of the bodies that have arrived.
    fn bytes(&self) -> usize {
        let keys = self.index.keys().chain(&self.missing);
        let index: usize = keys.map(|key| key.len() + ENTRY_BYTES).sum();
        index + self.history.as_ref().map_or(0, History::bytes) + self.bodies.bytes()
    }

    /// Bytes of the snapshot's objects, from `bodies` and from those already held.
    pub fn bytes_with(&self, bodies: &BTreeMap<String, Object>, held: &Collection) -> usize {
        let size = |key: &String| bodies.get(key).or_else(|| find(held, key)).map_or(0, Object::size);
        self.index.keys().map(size).sum()
    }

    /// Keys of the bodies that are still to come.
    pub fn missing(&self) -> &BTreeSet<String> {
        &self.missing
    }

    /// The missing ones among `objects`.
    ///
    /// # Errors
    /// 400 for an object that the snapshot did not announce; none of them is accepted then.
    pub fn wanted(&self, objects: Vec<Object>) -> Result<Vec<(String, Object)>, Status> {
        let mut wanted = Vec::with_capacity(objects.len());
        for object in objects {
            let (key, rv) = (object.key().to_string(), object.resource_version());
            if self.index.get(&key) != Some(&rv) {
                let message = format!("{key} at {rv} is not in the index of the snapshot");
                return Err(Status::bad_request(message));
            }
            if self.missing.contains(&key) {
                wanted.push((key, object));
            }
        }
        Ok(wanted)
    }

    /// Records that a body has arrived.
    pub fn has_arrived(&mut self, key: &str) {
        self.missing.remove(key);
    }

    /// Generation and position of the snapshot.
    pub fn place(&self) -> (u64, ResourceVersion) {
        (self.version.1, self.version.2)
    }

    /// The leader's history, for a collection that has no data.
    pub fn history(&self) -> Option<&History> {
        self.history.as_ref()
    }

    /// The whole list, from `bodies` and from held objects; `None` when one of these has changed since the index came.
    pub fn list(&self, mut bodies: BTreeMap<String, Object>, held: &Collection) -> Option<Vec<Object>> {
        let object = |(key, rv): (&String, &ResourceVersion)| {
            bodies.remove(key).or_else(|| {
                find(held, key)
                    .filter(|object| object.resource_version() == *rv)
                    .cloned()
            })
        };
        self.index.iter().map(object).collect()
    }
}

fn find<'a>(held: &'a Collection, key: &str) -> Option<&'a Object> {
    held.object(&object_key(key))
}

fn object_key(key: &str) -> ObjectKey {
    match key.split_once('/') {
        Some((namespace, name)) => ObjectKey::new(Some(namespace), name),
        None => ObjectKey::new(None, key),
    }
}

/// Checks if a snapshot of this generation and position may be applied at all.
///
/// # Errors
/// [`Refusal`].
pub fn check(held: &Collection, (generation, at): (u64, ResourceVersion)) -> Result<(), Refusal> {
    let applied = held.position();
    if generation < held.generation() {
        return Err(Refusal::Generation {
            generation: held.generation(),
            applied,
        });
    }
    if generation == held.generation() {
        return match at < applied {
            true => Err(Refusal::Behind { applied }),
            false => Ok(()),
        };
    }
    Refusal::check_generation(held.generation(), generation)
}

/// Applies a snapshot whose bodies are complete. Returns `C` after it.
///
/// # Errors
/// [`Refusal`]; nothing has changed then.
pub fn apply<B: Bodies>(
    held: &mut Collection,
    pending: &Pending<B>,
    bodies: BTreeMap<String, Object>,
) -> Result<ResourceVersion, Refusal> {
    let (generation, at) = pending.place();
    check(held, (generation, at))?;
    // Readers of this pool before its store was lost can resume here, too. An existing copy has its own history.
    let history = pending.history().filter(|_| !held.is_complete()).cloned();
    // Events may have replaced an object since the index came; the leader then sends another snapshot.
    let Some(list) = pending.list(bodies, held) else {
        return Err(Refusal::Gap {
            applied: held.position(),
        });
    };
    if generation > held.generation() {
        held.restart(generation, list, at);
    } else {
        require_mark(held, at)?;
        held.replace(list, at).map_err(|error| match error {
            WriteError::Behind { position, .. } => Refusal::Behind { applied: position },
            WriteError::Backwards { .. } | WriteError::CameBack { .. } => Refusal::Backwards {
                message: error.to_string(),
            },
        })?;
    }
    if let Some(history) = history {
        held.remember(history);
    }
    Ok(held.position())
}

/// Returns `C` for bodies of a snapshot that has been applied: the answer was lost.
///
/// # Errors
/// [`Refusal::Gap`] for an unknown snapshot.
pub fn already_applied(held: &Collection, call: &BodiesCall<'_>) -> Result<ResourceVersion, Refusal> {
    let applied = held.position();
    if held.is_complete() && held.generation() == call.generation && applied >= call.at {
        return Ok(applied);
    }
    Err(Refusal::Gap { applied })
}
