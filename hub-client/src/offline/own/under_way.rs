//! Sends of local statuses that are under way: at most one of each object.

use std::collections::BTreeMap;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::oneshot;

use super::write::OwnKey;

/// Signals the end of a send to a request that waits for it.
type Done = oneshot::Sender<()>;

/// Sends under way; `send` makes one, which returns false if there was no result.
pub struct UnderWay<'a, F> {
    send: F,
    running: FuturesUnordered<BoxFuture<'a, Ended>>,
    /// Requests that wait for a further send of an object, by object with one under way.
    waiting: BTreeMap<OwnKey, Vec<Done>>,
}

struct Ended {
    key: OwnKey,
    has_result: bool,
    /// True if no request waited for it.
    is_own: bool,
}

// === impl UnderWay ===

impl<'a, F: Fn(OwnKey) -> BoxFuture<'a, bool>> UnderWay<'a, F> {
    /// Creates the state before the first send.
    pub fn new(send: F) -> Self {
        Self {
            send,
            running: FuturesUnordered::new(),
            waiting: BTreeMap::new(),
        }
    }

    /// Number of sends.
    #[must_use]
    pub fn count(&self) -> usize {
        self.running.len()
    }

    /// True if an object's send is under way.
    #[must_use]
    pub fn has(&self, key: &OwnKey) -> bool {
        self.waiting.contains_key(key)
    }

    /// Begins the send of an object that has none.
    pub fn begin(&mut self, key: OwnKey) {
        self.begin_for(key, Vec::new());
    }

    /// Begins a send for a request; after the present one if the object has one, because that may send an older status.
    pub fn command(&mut self, key: OwnKey, done: Done) {
        let Some(waiting) = self.waiting.get_mut(&key) else {
            return self.begin_for(key, vec![done]);
        };
        waiting.retain(|done| !done.is_closed());
        waiting.push(done);
    }

    /// Waits for the end of a send. Returns false if it had no result, and no request waited for it; `None` if none is
    /// under way.
    ///
    /// # Cancel safety
    /// May be dropped.
    pub async fn next(&mut self) -> Option<bool> {
        let ended = self.running.next().await?;
        let mut waiting = self.waiting.remove(&ended.key).unwrap_or_default();
        waiting.retain(|done| !done.is_closed());
        if !waiting.is_empty() {
            self.begin_for(ended.key, waiting);
        }
        Some(ended.has_result || !ended.is_own)
    }

    fn begin_for(&mut self, key: OwnKey, waiting: Vec<Done>) {
        self.waiting.insert(key.clone(), Vec::new());
        let sending = (self.send)(key.clone());
        self.running.push(Box::pin(async move {
            let has_result = sending.await;
            let is_own = waiting.is_empty();
            // The requests may be gone.
            for done in waiting {
                let _ = done.send(());
            }
            Ended {
                key,
                has_result,
                is_own,
            }
        }));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt as _;
    use parking_lot::Mutex;
    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn object_has_one_send_at_a_time_and_the_next_one_is_for_all_that_wait() {
        let (begun, ends) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Semaphore::new(0)));
        let (sent, end) = (begun.clone(), ends.clone());
        let mut sends = UnderWay::new(move |key: OwnKey| {
            sent.lock().push(key.name);
            let end = end.clone();
            async move { end.acquire_owned().await.map(|permit| permit.forget()).is_err() }.boxed()
        });
        let key = |name| OwnKey::node(name).unwrap();
        let [(one, mut first), (two, mut second), (gone, _)] = std::array::from_fn(|_| oneshot::channel());
        sends.begin(key("n1"));
        sends.begin(key("n2"));
        for done in [gone, one, two] {
            sends.command(key("n1"), done);
        }
        assert_eq!((sends.count(), sends.has(&key("n1"))), (2, true));
        assert_eq!(begun.lock().split_off(0), ["n1", "n2"]);
        ends.add_permits(1);
        assert_eq!(sends.next().await, Some(false), "without a result");
        assert!(first.try_recv().is_err() && second.try_recv().is_err());
        assert_eq!(begun.lock().split_off(0), ["n1"], "one more for both");
        ends.add_permits(2);
        let rest = [sends.next().await, sends.next().await, sends.next().await];
        assert_eq!(rest.iter().filter(|end| **end == Some(true)).count(), 1, "{rest:?}");
        assert!(first.try_recv().is_ok() && second.try_recv().is_ok());
        assert_eq!((sends.count(), sends.has(&key("n1")), rest[2]), (0, false, None));
    }
}
