//! Bookmarks of a watch: their schedule and content. To a replica they are also a sign of life.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use yurt_apimachinery::ResourceVersion;
use yurt_collection::Reader;

use super::super::ANNOTATION_STALE;
use super::{Pending, Phase, Watch};

/// Bookmark interval for ordinary clients.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// Bookmark interval for replicas, to which bookmarks are also a sign of life.
const REPLICA_BOOKMARK_EVERY: Duration = Duration::from_secs(10);
/// Maximum delay until a replica receives a new position.
const REPLICA_BOOKMARK_SOON: Duration = Duration::from_secs(1);
/// The last bookmark is sent this long before the stream's timeout.
const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);

// === impl Watch ===

impl Watch {
    /// Makes a bookmark for a replica due: immediately when its position is confirmed and when the data turns fresh or
    /// stale, soon after a new position.
    pub(super) fn hurry_bookmark(&mut self, reader: &Reader) {
        let soon = if !self.confirmed || self.told_fresh != (self.is_fresh)() {
            Duration::ZERO
        } else if self.told < reader.position() {
            REPLICA_BOOKMARK_SOON
        } else {
            return;
        };
        self.bookmark_at = self.bookmark_at.min(Instant::now() + soon);
    }

    /// Sends the bookmark that is due. If events have arrived in the meantime, they are sent first, and the bookmark
    /// stays due.
    pub(super) fn give_bookmark(&mut self) {
        // Other collections of the store may have moved on: a client that resumes at this position is above their
        // floor.
        self.shared.follow_store();
        let Phase::Live(reader) = &mut self.phase else {
            return self.schedule_bookmark();
        };
        let mut reached = reader.clone();
        let read = self.shared.read(|collection| {
            let news = collection.read_within(&mut reached, 1, &self.keys);
            news.map(|news| (news.is_empty(), collection.position()))
        });
        let Ok((true, position)) = read else { return };
        *reader = reached;
        if self.wants_bookmarks && position == reader.position() {
            self.confirmed = true;
            let frame = self.bookmark(position, &[]);
            self.pending.push_back(Pending::Frame(frame));
        } else {
            // Ahead of C the state at the client's position is unknown, and a bookmark must not claim it.
            self.schedule_bookmark();
        }
    }

    /// Returns a bookmark, and schedules the next one.
    pub(super) fn bookmark(&mut self, position: ResourceVersion, annotations: &[(&str, &str)]) -> Bytes {
        let mut annotations = annotations.to_vec();
        if self.replica {
            self.told_fresh = (self.is_fresh)();
            if !self.told_fresh {
                annotations.push((ANNOTATION_STALE, "true"));
            }
        }
        let frame = self.watcher.bookmark(position, &annotations);
        self.told = position;
        self.schedule_bookmark();
        frame
    }

    pub(super) fn schedule_bookmark(&mut self) {
        let now = Instant::now();
        let next = now
            + if self.replica {
                REPLICA_BOOKMARK_EVERY
            } else {
                BOOKMARK_EVERY
            };
        let last = self.ends_at.checked_sub(BOOKMARK_BEFORE_END).unwrap_or(now);
        self.bookmark_at = if now < last { next.min(last) } else { next };
    }
}
