//! Sends the whole state of a replica to the coordinator: its index, then the bodies that the coordinator lacks.

use std::collections::BTreeSet;

use yurt_collection::{History, Reader, Snapshot};
use yurt_pool_protocol::feed::{self, FeedAnswer};
use yurt_pool_protocol::resume::CopyState;

use super::{CHUNK_BYTES, Feeder, Interrupted};

/// Approximate bytes of the keys in one part of an index.
const INDEX_BYTES: usize = 4 << 20;
/// Approximate bytes of the deletions sent to an empty coordinator; they share one body with the index.
const HISTORY_BYTES: usize = 512 << 10;

impl Feeder {
    /// Sends the state of the replica. Returns a reader that continues after it, and its generation.
    pub(super) async fn send_snapshot(&self, there: CopyState) -> Result<(Reader, u64), Interrupted> {
        let read_at = self.progress.now();
        let (snapshot, history, generation) = self.replica.collection().read(|c| {
            let history = (!there.complete).then(|| c.history(HISTORY_BYTES));
            (c.snapshot(None), history, c.generation())
        });
        self.progress.sending(self.replica.name(), read_at);
        // An answer names a limited number of missing bodies; a large snapshot takes several rounds.
        let (mut sent, mut left) = (0, usize::MAX);
        while left > 0 {
            let wanted = self.send_index(generation, there, &snapshot, history.as_ref()).await?;
            let after = self.send_bodies(generation, &snapshot, &wanted).await?;
            if after >= left {
                return Err(Interrupted::Reopen(format!("{after} bodies are still missing")));
            }
            (sent, left) = (sent + wanted.len(), after);
        }
        let (collection, rv) = (self.replica.name(), snapshot.position);
        tracing::info!(collection, %rv, objects = snapshot.objects.len(), sent, "Snapshot fed");
        self.delivered(rv, read_at);
        Ok((snapshot.reader, generation))
    }

    /// Sends the index of a snapshot, part by part. Returns the keys of the bodies to send.
    async fn send_index(
        &self,
        generation: u64,
        there: CopyState,
        snapshot: &Snapshot,
        history: Option<&History>,
    ) -> Result<BTreeSet<String>, Interrupted> {
        let mut answer = FeedAnswer::default();
        for part in feed::index_parts(&snapshot.objects, INDEX_BYTES) {
            let history = history.filter(|_| !part.more);
            let body = self
                .envelope(generation)
                .index(there.position, snapshot.position, &part, history);
            answer = self.post("snapshot", self.pack(body).await?).await?;
        }
        let keys = answer.missing.and_then(|keys| serde_json::from_value(keys).ok());
        Ok(keys.unwrap_or_default())
    }

    /// Sends the bodies of `wanted`. Returns the number of bodies that are still missing.
    async fn send_bodies(
        &self,
        generation: u64,
        snapshot: &Snapshot,
        wanted: &BTreeSet<String>,
    ) -> Result<usize, Interrupted> {
        let objects = snapshot.objects.iter();
        let mut chunks = feed::chunks(objects.filter(|o| wanted.contains(o.key().as_str())), CHUNK_BYTES);
        if chunks.is_empty() {
            chunks.push(Vec::new());
        }
        let last = chunks.len() - 1;
        let body_of = |index: usize| {
            let chunk = chunks.get(index)?;
            Some(
                self.envelope(generation)
                    .bodies(snapshot.position, chunk, index == last),
            )
        };
        // Compresses the next chunk while the coordinator processes the present one.
        let mut next = self.packed(body_of(0)).await?;
        let mut missing = None;
        for index in 1..=chunks.len() {
            let Some(chunk) = next else { break };
            let (sent, made) = tokio::join!(self.post("snapshot/bodies", chunk), self.packed(body_of(index)));
            missing = sent?.missing;
            next = made?;
        }
        // The field is a number while bodies are missing, and an empty list after the last one.
        let missing = missing.and_then(|missing| missing.as_u64()).unwrap_or(0);
        Ok(usize::try_from(missing).unwrap_or(usize::MAX))
    }
}
