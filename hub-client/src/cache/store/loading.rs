//! Loads the selections on the disk at a start.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use yurt_storage::StorageError;

use super::{Cache, UNREAD};
use crate::cache::entry::Entry;
use crate::cache::key::Key;
use crate::cache::limits::SELECTIONS_MAX;
use crate::replicas::{CACHED, budget};

/// Pause of a start before it repeats a read that failed: the store does not open its file again before.
const REREAD_AFTER: Duration = Duration::from_millis(1_500);
/// Maximum number of such pauses of a start.
const REREADS_MAX: usize = 4;

/// Reason why a stored selection is not loaded.
enum Unloaded {
    /// No start can use it.
    Useless(String),
    /// The disk does not give it now.
    Unread(StorageError),
}

// === impl Unloaded ===

impl<T: Into<String>> From<T> for Unloaded {
    fn from(why: T) -> Self {
        Self::Useless(why.into())
    }
}

// === impl Cache ===

impl Cache {
    /// Loads the selections on the disk: what keeps the node running, then its others, then those of tokens. What is
    /// damaged, or exceeds the limits, is dropped. A read that fails is repeated; what the disk does not give then
    /// stays there for the next start.
    pub async fn load(&self) {
        let data = &self.0.means.data;
        let mut rereads = 0..REREADS_MAX;
        let mut stored = self.stored().await;
        if stored.is_err() && may_reread(&mut rereads).await {
            stored = self.stored().await;
        }
        let mut stored = match stored {
            Ok(stored) => stored,
            Err(error) => return data.failures().refused(UNREAD, &format!("their names: {error}")),
        };
        stored.sort_by_cached_key(|(name, _)| self.load_order(name));
        let (mut loaded, limits) = (budget::Loaded::default(), data.limits());
        for (name, bytes) in stored {
            let fits = loaded.has_room(limits, &name, bytes);
            let mut outcome = self.load_one(&name, fits).await;
            if matches!(outcome, Err(Unloaded::Unread(_))) && may_reread(&mut rereads).await {
                outcome = self.load_one(&name, fits).await;
            }
            let why = match outcome {
                Ok(()) => {
                    loaded.add(&name, bytes);
                    continue;
                }
                Err(Unloaded::Unread(error)) if !Key::is_of_node(&name) => {
                    tracing::warn!(collection = name, %error, "Failed to read a cached selection; the next start tries again");
                    continue;
                }
                Err(Unloaded::Unread(error)) => {
                    data.failures().refused(UNREAD, &format!("{name}: {error}"));
                    self.0.unread.lock().insert(name);
                    continue;
                }
                Err(Unloaded::Useless(why)) => why,
            };
            tracing::warn!(collection = name, why, "Dropped a cached selection");
            if !fits && Key::is_of_node(&name) && Key::parse(&name).is_some() {
                // The pods that read the others may be gone.
                data.dropped(&name, &format!("its {bytes} bytes: {why}; it was dropped at the start"));
                if self.load_order(&name) > 0 {
                    self.0.dropped.lock().insert(name.clone(), Instant::now());
                }
            }
            let (of_disk, of) = (data.clone(), name.clone());
            let forgotten = tokio::task::spawn_blocking(move || of_disk.replicas().forget_stored(&of)).await;
            if let Ok(Err(error)) = forgotten {
                tracing::warn!(collection = name, %error, "Failed to delete a cached selection");
            }
        }
    }

    /// Names and bytes of the selections on the disk.
    async fn stored(&self) -> Result<Vec<(String, usize)>, StorageError> {
        let data = self.0.means.data.clone();
        let read = tokio::task::spawn_blocking(move || data.replicas().stored(CACHED)).await;
        read.map_err(|error| StorageError::Unavailable(error.to_string()))?
    }

    /// Rank of a stored selection in the order of a start.
    fn load_order(&self, name: &str) -> u8 {
        let is_essential = |(key, _): (Key, _)| key.is_essential(&self.0.means.node);
        match Key::is_of_node(name) {
            true if Key::parse(name).is_some_and(is_essential) => 0,
            true => 1,
            false => 2,
        }
    }

    async fn load_one(&self, name: &str, fits: bool) -> Result<(), Unloaded> {
        let (key, about) = Key::parse(name).ok_or("its name is not one of this version")?;
        if !fits {
            return Err("it does not fit into --max-cache-bytes".into());
        }
        let is_of_node = Key::is_of_node(name);
        if !is_of_node && key.is_essential(&self.0.means.node) {
            return Err("it keeps the node running, and has the rights of tokens".into());
        }
        let text = key.text();
        if self.0.entries.lock().len() >= SELECTIONS_MAX || self.0.entries.lock().contains_key(&text) {
            return Err("there are too many".into());
        }
        let kind = self.0.described.kind(&key, about.as_ref())?;
        let added = self.0.means.data.replicas().add(name, kind).await;
        let replica = added.map_err(|error| match error {
            StorageError::Corrupt(why) => Unloaded::Useless(why),
            other => Unloaded::Unread(other),
        })?;
        if let Some(about) = about {
            self.0.described.know(key.gvr(), about).await;
        }
        let entry = Arc::new(Entry::new(key, replica, is_of_node));
        self.0.entries.lock().insert(text, entry.clone());
        self.follow(entry);
        Ok(())
    }
}

/// Waits until a read may be repeated; false if a start has waited often enough.
async fn may_reread(rereads: &mut Range<usize>) -> bool {
    let may_reread = rereads.next().is_some();
    if may_reread {
        tokio::time::sleep(REREAD_AFTER).await;
    }
    may_reread
}
