//! A partial list: the objects received so far and the next request.
//!
//! Pure. On a thin link a first list takes an hour, and every broken connection ends a request. A draft keeps the
//! received pages and continues with the token of the next one. A cloud compacts the state of a list after some minutes
//! (410) and offers to continue with its current state. From there on the pages are not of one state, and alone they
//! are not a consistent list. The changes since then make them consistent again:
//!
//! > Pages p1 … pn show parts of the keys at L1 ≤ … ≤ Ln. Take every change in (L1, W], W ≥ Ln. The state of a key at W
//! > is its last change in (L1, W], else the state in its page: no change came between L1 and its page, nor after it.
//!
//! So the state with the highest RV counts for each key, a deletion included. The draft is a full list at W once all
//! pages are here and W has reached the state of the last page. It is then applied as a list without resourceVersion:
//! it is complete (I5), and nothing in it is older than a state at W (I2).

mod page_size;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde_json::json;
use yurt_apimachinery::watch::EventType;
use yurt_apimachinery::{Object, ObjectKey, ResourceKind, ResourceVersion, json_text};

pub use page_size::PageSize;

/// Bytes counted for a key known to be deleted.
const GONE_BYTES: usize = 128;

/// A part of a list, as returned by a server.
#[derive(Debug)]
pub struct Page {
    /// Its objects.
    pub items: Vec<Object>,
    /// Bytes of the answer before compression.
    pub bytes: usize,
    /// Number of objects after this page, if the server sends it.
    pub rest: Option<usize>,
    /// RV of the page's state.
    pub at: ResourceVersion,
    /// Token of the next page; `None` on the last page.
    pub token: Option<String>,
    /// Generation of the data, if the server sends it.
    pub generation: Option<u64>,
}

/// Reason to discard a draft and begin the list again.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// Another generation began.
    #[error("a new generation began between two pages of the list")]
    Generation,
    /// The page is of an older state than the one before: the server lags or was rolled back.
    #[error("a page of the list is at {at}, behind {newest}")]
    Behind {
        /// RV of the page.
        at: ResourceVersion,
        /// RV of the page before.
        newest: ResourceVersion,
    },
    /// The token has expired and the server offers no other.
    #[error("the list cannot be continued")]
    NoToken,
}

/// Newest known state of one key.
#[derive(Clone, Debug)]
enum KeyState {
    Object(Object),
    /// Deleted at that RV.
    Gone(ResourceVersion),
}

/// A partial list; see the module header.
#[derive(Debug)]
pub struct PartialList {
    generation: Option<u64>,
    /// L1.
    first: ResourceVersion,
    /// Ln.
    newest: ResourceVersion,
    /// W.
    watched: ResourceVersion,
    /// Token of the next page; `None` when all are here.
    next: Option<String>,
    /// True if the first page was older than the existing replica: the source went back.
    behind: bool,
    known: BTreeMap<ObjectKey, KeyState>,
    bytes: usize,
    unsaved: BTreeSet<ObjectKey>,
}

// === impl KeyState ===

impl KeyState {
    fn version(&self) -> ResourceVersion {
        match self {
            Self::Object(object) => object.resource_version(),
            Self::Gone(at) => *at,
        }
    }

    fn size(&self) -> usize {
        match self {
            Self::Object(object) => object.size(),
            Self::Gone(_) => GONE_BYTES,
        }
    }
}

// === impl PartialList ===

impl PartialList {
    /// Creates a draft from the first page. `held` is the position of the existing replica.
    ///
    /// # Errors
    /// [`Unfit`] if the draft is too large.
    pub fn begin(page: Page, held: ResourceVersion) -> Result<Self, Unfit> {
        let mut draft = Self {
            generation: page.generation,
            first: page.at,
            newest: page.at,
            watched: page.at,
            next: None,
            behind: page.at < held,
            known: BTreeMap::new(),
            bytes: 0,
            unsaved: BTreeSet::new(),
        };
        draft.take_page(page)?;
        Ok(draft)
    }

    /// Adds the next page.
    ///
    /// # Errors
    /// [`Unfit`] if the list has to begin again.
    pub fn take_page(&mut self, page: Page) -> Result<(), Unfit> {
        if page.generation != self.generation {
            return Err(Unfit::Generation);
        }
        if page.at < self.newest {
            return Err(Unfit::Behind {
                at: page.at,
                newest: self.newest,
            });
        }
        self.newest = page.at;
        self.next = page.token.filter(|token| !token.is_empty());
        for object in page.items {
            self.learn(object.key().clone(), KeyState::Object(object));
        }
        Ok(())
    }

    /// Continues after the server compacted the state of the list; `token` continues at its current state.
    ///
    /// # Errors
    /// [`Unfit`] without a token.
    pub fn take_expired(&mut self, token: Option<&str>) -> Result<(), Unfit> {
        self.next = Some(
            token
                .filter(|token| !token.is_empty())
                .ok_or(Unfit::NoToken)?
                .to_owned(),
        );
        Ok(())
    }

    /// Applies a change after [`Self::watched`]; earlier ones are ignored.
    pub fn take_event(&mut self, event: EventType, object: Object) {
        let (at, key) = (object.resource_version(), object.key().clone());
        if at <= self.watched {
            return;
        }
        match event {
            EventType::Added | EventType::Modified => self.learn(key, KeyState::Object(object)),
            EventType::Deleted => self.learn(key, KeyState::Gone(at)),
            EventType::Bookmark | EventType::Error => {}
        }
        self.watched = at;
    }

    /// Records that no further change came up to `at`.
    pub fn advance(&mut self, at: ResourceVersion) {
        self.watched = self.watched.max(at);
    }

    fn learn(&mut self, key: ObjectKey, news: KeyState) {
        let held = self.known.get(&key);
        if held.is_some_and(|held| held.version() >= news.version()) {
            return;
        }
        self.bytes += news.size();
        if let Some(replaced) = self.known.insert(key.clone(), news) {
            self.bytes -= replaced.size();
        }
        self.unsaved.insert(key);
    }

    /// Token of the next page; `None` if all pages are here.
    #[must_use]
    pub fn next(&self) -> Option<&str> {
        self.next.as_deref()
    }

    /// Generation of the list.
    #[must_use]
    pub fn generation(&self) -> Option<u64> {
        self.generation
    }

    /// W: the draft has every change after the first page up to this RV.
    #[must_use]
    pub fn watched(&self) -> ResourceVersion {
        self.watched
    }

    /// True if the draft needs further changes to be one state that is not older than `held`. Another source may have
    /// advanced the replica since. A source that was behind it from the start has gone back and is not waited for.
    #[must_use]
    pub fn needs_changes(&self, held: ResourceVersion) -> bool {
        let held = if self.behind { ResourceVersion::ZERO } else { held };
        self.watched < self.newest.max(held)
    }

    /// Position and newest objects of the list. A cloud that still has its history cannot contradict them.
    #[must_use]
    pub fn evidence(&self, count: usize) -> (ResourceVersion, Vec<(ObjectKey, ResourceVersion)>) {
        let objects = self.known.iter().filter_map(|(key, known)| match known {
            KeyState::Object(object) => Some((key.clone(), object.resource_version())),
            KeyState::Gone(_) => None,
        });
        let mut newest: Vec<_> = objects.collect();
        newest.sort_unstable_by_key(|(_, version)| std::cmp::Reverse(*version));
        newest.truncate(count);
        (self.watched.max(self.newest), newest)
    }

    /// Number of known objects, and their bytes.
    #[must_use]
    pub fn size(&self) -> (usize, usize) {
        (self.known.len(), self.bytes)
    }

    /// Returns the full list and its RV. Valid only if there is no [`Self::next`] and the draft needs no changes.
    #[must_use]
    pub fn into_list(self) -> (Vec<Object>, ResourceVersion) {
        let objects = self.known.into_values().filter_map(|known| match known {
            KeyState::Object(object) => Some(object),
            KeyState::Gone(_) => None,
        });
        (objects.collect(), self.watched)
    }

    /// State that a restart needs in addition to the keys.
    #[must_use]
    pub fn about(&self) -> String {
        json!({
            "first": self.first, "newest": self.newest, "watched": self.watched,
            "next": self.next, "behind": self.behind, "generation": self.generation,
        })
        .to_string()
    }

    /// Returns the keys that changed since the last call, in the form that [`Self::restore`] reads; all keys if
    /// `whole`.
    pub fn take_unsaved(&mut self, whole: bool) -> Vec<(String, Bytes)> {
        let unsaved = std::mem::take(&mut self.unsaved);
        let row = |(key, known): (&ObjectKey, &KeyState)| {
            let bytes = match known {
                KeyState::Object(object) => object.bytes(),
                KeyState::Gone(at) => at.to_string().into(),
            };
            (key.to_string(), bytes)
        };
        if whole {
            return self.known.iter().map(row).collect();
        }
        unsaved
            .iter()
            .filter_map(|key| self.known.get_key_value(key))
            .map(row)
            .collect()
    }

    /// Restores a draft from the results of [`Self::about`] and [`Self::take_unsaved`]; `None` if they cannot be read.
    #[must_use]
    pub fn restore(about: &[u8], rows: Vec<(String, Bytes)>, kind: &ResourceKind) -> Option<Self> {
        let about = json_text::parse(about).ok()?;
        let version = |name: &str| ResourceVersion::parse(about[name].as_str()?).ok();
        let mut draft = Self {
            generation: about["generation"].as_u64(),
            first: version("first")?,
            newest: version("newest")?,
            watched: version("watched")?,
            next: about["next"].as_str().map(str::to_owned),
            behind: about["behind"].as_bool()?,
            known: BTreeMap::new(),
            bytes: 0,
            unsaved: BTreeSet::new(),
        };
        for (key, bytes) in rows {
            let known = if bytes.starts_with(b"{") {
                KeyState::Object(Object::parse(bytes, kind).ok()?)
            } else {
                KeyState::Gone(ResourceVersion::parse(std::str::from_utf8(&bytes).ok()?).ok()?)
            };
            draft.learn(ObjectKey::parse(&key), known);
        }
        draft.unsaved.clear();
        Some(draft)
    }
}

#[cfg(test)]
mod tests;
