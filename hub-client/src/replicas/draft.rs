//! A list that is still coming: what is here of it, and what has to be asked for next.
//!
//! Pure. On a thin link a first list takes an hour, and every cut ends a request. A draft keeps the pages that arrived and
//! goes on with the token of the next one. A cloud forgets the state of a list after some minutes (410) and offers to go on
//! with the state it has then. The pages are not of one state from there on, and on their own they prove nothing.
//! The changes that happened meanwhile make them one again:
//!
//! > Pages p1 … pn show parts of the keys at L1 ≤ … ≤ Ln. With every change in (L1, W], W ≥ Ln, the state of a key at W is
//! > its last change in (L1, W], else what its page shows: nothing happened to it between L1 and its page, nor after it.
//!
//! So of everything known of a key the one with the highest RV counts, a deletion included, and the draft is a full list
//! at W once all pages are here and W has reached the last one's state. It is then taken as a list with
//! resourceVersion unset is: nothing was left out (I5), and nothing in it is older than a state at W (I2).

mod page_size;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde_json::{Value, json};
use yurt_apimachinery::watch::EventType;
use yurt_apimachinery::{Object, ObjectKey, ResourceKind, ResourceVersion};

pub use page_size::PageSize;

/// Bytes of a draft at the most.
const DRAFT_BYTES_MAX: usize = 1 << 30;
/// Bytes counted for a key known to be gone.
const GONE_BYTES: usize = 128;

/// A part of a list, as a server gave it.
#[derive(Debug)]
pub struct Page {
    /// Its objects.
    pub items: Vec<Object>,
    /// Bytes of the answer, not compressed.
    pub bytes: usize,
    /// Objects after this page, as far as the server tells.
    pub rest: Option<usize>,
    /// The state they are of.
    pub at: ResourceVersion,
    /// Token of the next page; `None` when this is the last one.
    pub token: Option<String>,
    /// Timeline, where the server tells.
    pub generation: Option<u64>,
}

/// Why a draft is of no use any more: the list has to begin again.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// Another timeline began.
    #[error("a new generation began between two pages of the list")]
    Generation,
    /// A page is of an older state than the one before: the server lags or was rolled back.
    #[error("a page of the list is at {at}, behind {newest}")]
    Behind {
        /// State of the page.
        at: ResourceVersion,
        /// State of the page before.
        newest: ResourceVersion,
    },
    /// The token is not known any more and there is no other.
    #[error("the list cannot be continued")]
    NoToken,
    /// More than a hub takes into memory.
    #[error("the list is larger than {DRAFT_BYTES_MAX} bytes")]
    TooLarge,
}

/// What is known of one key.
#[derive(Clone, Debug)]
enum Known {
    Object(Object),
    /// Deleted at that RV.
    Gone(ResourceVersion),
}

/// A list that is still coming; see the module header.
#[derive(Debug)]
pub struct Draft {
    generation: Option<u64>,
    /// L1.
    first: ResourceVersion,
    /// Ln.
    newest: ResourceVersion,
    /// W.
    watched: ResourceVersion,
    /// Token of the next page; `None` when all are here.
    next: Option<String>,
    /// The first page was older than what was held already: the source went back.
    behind: bool,
    known: BTreeMap<ObjectKey, Known>,
    bytes: usize,
    unsaved: BTreeSet<ObjectKey>,
}

// === impl Known ===

impl Known {
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

// === impl Draft ===

impl Draft {
    /// A draft of the first page. `held` is the position of what is held already.
    ///
    /// # Errors
    /// [`Unfit`] when it is too large.
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

    /// The next page.
    ///
    /// # Errors
    /// [`Unfit`]: begin again.
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
            self.learn(object.key().clone(), Known::Object(object));
        }
        if self.bytes > DRAFT_BYTES_MAX {
            return Err(Unfit::TooLarge);
        }
        Ok(())
    }

    /// The server has forgotten the state of the list; `token` is the one it offers for the rest as it is now.
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

    /// A change after [`Self::watched`]; others are known already.
    pub fn take_event(&mut self, event: EventType, object: Object) {
        let (at, key) = (object.resource_version(), object.key().clone());
        if at <= self.watched {
            return;
        }
        match event {
            EventType::Added | EventType::Modified => self.learn(key, Known::Object(object)),
            EventType::Deleted => self.learn(key, Known::Gone(at)),
            EventType::Bookmark | EventType::Error => {}
        }
        self.watched = at;
    }

    /// Nothing else happened up to `at`.
    pub fn advance(&mut self, at: ResourceVersion) {
        self.watched = self.watched.max(at);
    }

    fn learn(&mut self, key: ObjectKey, news: Known) {
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

    /// Token of the next page; `None` when all are here.
    #[must_use]
    pub fn next(&self) -> Option<&str> {
        self.next.as_deref()
    }

    /// Timeline of the list.
    #[must_use]
    pub fn generation(&self) -> Option<u64> {
        self.generation
    }

    /// W: every change after the first page, up to here, is known.
    #[must_use]
    pub fn watched(&self) -> ResourceVersion {
        self.watched
    }

    /// Whether changes are missing that make it one state, not older than `held`. What is held may have moved on by
    /// another source meanwhile; a source that was behind it from the start has gone back and is not waited for.
    #[must_use]
    pub fn needs_changes(&self, held: ResourceVersion) -> bool {
        let held = if self.behind { ResourceVersion::ZERO } else { held };
        self.watched < self.newest.max(held)
    }

    /// What a cloud that still has the history of this list cannot contradict: how far it was, and the newest objects.
    #[must_use]
    pub fn evidence(&self, count: usize) -> (ResourceVersion, Vec<(ObjectKey, ResourceVersion)>) {
        let objects = self.known.iter().filter_map(|(key, known)| match known {
            Known::Object(object) => Some((key.clone(), object.resource_version())),
            Known::Gone(_) => None,
        });
        let mut newest: Vec<_> = objects.collect();
        newest.sort_unstable_by_key(|(_, version)| std::cmp::Reverse(*version));
        newest.truncate(count);
        (self.watched.max(self.newest), newest)
    }

    /// Objects known, and their bytes.
    #[must_use]
    pub fn size(&self) -> (usize, usize) {
        (self.known.len(), self.bytes)
    }

    /// The full list and the state it is of. Only of use when there is no [`Self::next`] and it needs no changes.
    #[must_use]
    pub fn into_list(self) -> (Vec<Object>, ResourceVersion) {
        let objects = self.known.into_values().filter_map(|known| match known {
            Known::Object(object) => Some(object),
            Known::Gone(_) => None,
        });
        (objects.collect(), self.watched)
    }

    /// What a restart needs beside the keys.
    #[must_use]
    pub fn about(&self) -> String {
        json!({
            "first": self.first, "newest": self.newest, "watched": self.watched,
            "next": self.next, "behind": self.behind, "generation": self.generation,
        })
        .to_string()
    }

    /// Keys that changed since the last call, in the form [`Self::restore`] reads; all of them when `whole`.
    pub fn take_unsaved(&mut self, whole: bool) -> Vec<(String, Bytes)> {
        let unsaved = std::mem::take(&mut self.unsaved);
        let row = |(key, known): (&ObjectKey, &Known)| {
            let bytes = match known {
                Known::Object(object) => object.bytes().clone(),
                Known::Gone(at) => at.to_string().into(),
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

    /// A draft from what [`Self::about`] and [`Self::take_unsaved`] gave; `None` when it cannot be read.
    #[must_use]
    pub fn restore(about: &[u8], rows: Vec<(String, Bytes)>, kind: &ResourceKind) -> Option<Self> {
        let about: Value = serde_json::from_slice(about).ok()?;
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
                Known::Object(Object::parse(bytes, kind).ok()?)
            } else {
                Known::Gone(ResourceVersion::parse(std::str::from_utf8(&bytes).ok()?).ok()?)
            };
            draft.learn(ObjectKey::parse(&key), known);
        }
        draft.unsaved.clear();
        Some(draft)
    }
}

#[cfg(test)]
mod tests;
