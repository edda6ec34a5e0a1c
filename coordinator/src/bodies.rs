//! Request bodies: limits on their bytes in memory, and the threads that work on large ones.
//!
//! Clients decide how fast a body arrives and how large it is. Three parts of the memory keep them apart:
//!
//! | part | bytes | of one user | without room |
//! |---|---|---|---|
//! | small bodies, while they arrive | [`SMALL_TOTAL`] | [`SMALL_SHARE`] | immediate 429 |
//! | large bodies, until they are answered | [`LARGE_TOTAL`] | [`LARGE_SHARE`] | wait, then 429 |
//! | the feed's, which are the leader's | [`FEED_TOTAL`] | | wait, then 504 |
//!
//! A slow client takes nothing from another part or beyond its share: leases and other small writes still pass. While
//! others wait for room, a large body that does not arrive in time loses its own ([`Pace`]). Large bodies are parsed
//! and changed one at a time, off the serving workers.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{AcquireError, Notify, OwnedSemaphorePermit, Semaphore};
use yurt_apimachinery::Status;
use yurt_runtime::http::{BoxError, Room, read_body_into};

/// Largest small body, in bytes: a worker parses it itself.
pub(crate) const SMALL_BYTES_MAX: usize = 64 << 10;
/// Maximum bytes of an event or a lease that a node writes.
pub(crate) const NODE_OBJECT_BYTES_MAX: usize = 16 << 10;
/// Largest body of a node that writes an object of a pool: a node may store [`NODE_OBJECT_BYTES_MAX`].
pub(crate) const NODE_BODY_BYTES_MAX: usize = 2 * NODE_OBJECT_BYTES_MAX;
/// Bytes of all small bodies that have not arrived in full.
const SMALL_TOTAL: usize = 4 << 20;
/// Those of one user.
const SMALL_SHARE: usize = 512 << 10;
/// Bytes of all large bodies: two of the largest.
const LARGE_TOTAL: usize = 6 << 20;
/// Those of one user.
const LARGE_SHARE: usize = 3 << 20;
/// Bytes of the feed's large bodies: two of the largest.
const FEED_TOTAL: usize = 16 << 20;
/// Granularity of the accounting, in bytes.
const UNIT: usize = 1 << 10;
/// Longest wait for room for a large body: longer than a slow body of the largest size may keep others waiting. The
/// feed waits as long as its body may take.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(15);
/// Time that every large body has to arrive while others wait for room.
const SLOW_GRACE: Duration = Duration::from_secs(5);
/// Bytes of its room for which a large body has one more second.
const SLOW_RATE: usize = 512 << 10;
/// Interval at which a large body that is arriving is checked.
const SLOW_CHECK_EVERY: Duration = Duration::from_secs(1);
/// Longest time for a body of the feed to arrive.
const FEED_BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// Seconds of `Retry-After` for a client without room.
const RETRY_AFTER: u32 = 1;
/// Maximum number of remembered users without any body.
const IDLE_USERS_MAX: usize = 1000;

/// The room for bodies, and the queues of large ones.
pub(crate) struct Bodies {
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    feed: Arc<Semaphore>,
    /// Number of large bodies that wait for room, the feed's excepted.
    waiting: AtomicUsize,
    // Locked for one access to the map.
    users: Mutex<BTreeMap<String, Weak<Share>>>,
    calls_turn: Arc<Semaphore>,
    feed_turn: Arc<Semaphore>,
}

/// A body that has arrived, with its room.
pub(crate) struct Received {
    bytes: Bytes,
    _room: Vec<OwnedSemaphorePermit>,
}

/// Kinds of work with a queue of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Requests of clients.
    Calls,
    /// Bodies of the feed.
    Feed,
}

/// Share of one user, in bytes.
struct Share {
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

/// Time limit of one large body.
#[derive(Default)]
struct Pace {
    /// Bytes of its room, once it has some.
    reserved: OnceLock<usize>,
    begun: Notify,
}

/// One more body that waits for room.
struct Waiting<'a>(&'a AtomicUsize);

/// The room of a body that is arriving.
struct Growing<'a> {
    bodies: &'a Bodies,
    pace: &'a Pace,
    /// `None` for the feed, which has one user.
    share: Option<Arc<Share>>,
    /// Largest size of the body, in bytes.
    most: usize,
    /// Units counted as a small body.
    pieces: usize,
    held: Vec<OwnedSemaphorePermit>,
    is_large: bool,
}

/// Room for all bodies of a server.
impl Default for Bodies {
    fn default() -> Self {
        let room = |bytes: usize| Arc::new(Semaphore::new(bytes / UNIT));
        Self {
            small: room(SMALL_TOTAL),
            large: room(LARGE_TOTAL),
            feed: room(FEED_TOTAL),
            waiting: AtomicUsize::new(0),
            users: Mutex::default(),
            calls_turn: Arc::new(Semaphore::new(1)),
            feed_turn: Arc::new(Semaphore::new(1)),
        }
    }
}

// === impl Bodies ===

impl Bodies {
    /// Reads the body of a user's request, of at most `limit` bytes.
    ///
    /// # Errors
    /// 413 above the limit, 429 without room or when it arrives too slowly, 400 when the client ends the body early.
    pub(crate) async fn read<B>(&self, user: &str, body: B, limit: usize) -> Result<Received, Status>
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>>,
    {
        self.receive(Some(self.share_of(user)), body, limit).await
    }

    /// Reads a body of the feed, of at most `limit` bytes, within [`FEED_BODY_TIMEOUT`].
    ///
    /// # Errors
    /// 413 above the limit, 504 when it takes too long, 400 when the leader ends the body early.
    pub(crate) async fn read_feed<B>(&self, body: B, limit: usize) -> Result<Received, Status>
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>>,
    {
        let received = self.receive(None, body, limit);
        let received = tokio::time::timeout(FEED_BODY_TIMEOUT, received).await;
        received.unwrap_or_else(|_| Err(Status::timeout()))
    }

    async fn receive<B>(&self, share: Option<Arc<Share>>, body: B, limit: usize) -> Result<Received, Status>
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>>,
    {
        let hint = body.size_hint();
        let upper = hint.upper().and_then(|upper| usize::try_from(upper).ok());
        let pace = Pace::default();
        let mut room = Growing {
            bodies: self,
            pace: &pace,
            share,
            most: upper.map_or(limit, |upper| upper.min(limit)),
            pieces: 0,
            held: Vec::new(),
            is_large: false,
        };
        if hint.lower() > SMALL_BYTES_MAX as u64 && hint.lower() <= limit as u64 {
            room.become_large().await?;
        }
        let bytes = tokio::select! {
            biased;
            bytes = read_body_into(body, limit, &mut room) => bytes?,
            () = pace.is_lost(&self.waiting) => return Err(too_slow()),
        };
        let is_large = room.is_large;
        Ok(Received {
            bytes,
            // A small body that has arrived is soon answered.
            _room: if is_large { room.held } else { Vec::new() },
        })
    }

    /// Decompresses a body of the feed to `limit` bytes at most. `unfold` is called a second time with more room when a
    /// small one is not enough.
    ///
    /// # Errors
    /// 413 above the limit, that of `unfold`, 504 without room.
    pub(crate) async fn unfold_feed<U>(&self, folded: Received, limit: usize, unfold: U) -> Result<Received, Status>
    where
        U: Fn(&Bytes, usize) -> Result<Option<Bytes>, Status>,
    {
        if let Some(bytes) = unfold(&folded.bytes, SMALL_BYTES_MAX)? {
            return Ok(bytes.into());
        }
        // Two calls that hold room and want more would deadlock.
        let Received {
            bytes: folded,
            _room: room,
        } = folded;
        drop(room);
        let room = tokio::time::timeout(FEED_BODY_TIMEOUT, pieces(&self.feed, limit)).await;
        let room = room.map_err(|_| Status::timeout())??;
        let bytes = unfold(&folded, limit)?.ok_or_else(|| Status::too_large_body(limit))?;
        Ok(Received {
            bytes,
            _room: vec![room],
        })
    }

    /// Runs the work of a large body on a separate thread, one at a time per kind: parsing megabytes would block a
    /// worker for all other requests. Once begun, the work finishes even when the returned future is dropped.
    ///
    /// # Errors
    /// 500 when the work panicked.
    pub(crate) async fn in_turn<F>(&self, kind: Work, work: F) -> Result<F::Output, Status>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let turn = match kind {
            Work::Calls => &self.calls_turn,
            Work::Feed => &self.feed_turn,
        };
        let turn = turn.clone().acquire_owned().await.map_err(closed)?;
        let runtime = tokio::runtime::Handle::current();
        let done = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            runtime.block_on(work)
        });
        done.await.map_err(|lost| Status::internal(&lost.to_string()))
    }

    fn share_of(&self, user: &str) -> Arc<Share> {
        let mut users = self.users.lock();
        if let Some(share) = users.get(user).and_then(Weak::upgrade) {
            return share;
        }
        if users.len() >= IDLE_USERS_MAX {
            users.retain(|_, share| share.strong_count() > 0);
        }
        let share = Arc::new(Share {
            small: Arc::new(Semaphore::new(SMALL_SHARE / UNIT)),
            large: Arc::new(Semaphore::new(LARGE_SHARE / UNIT)),
        });
        users.insert(user.to_owned(), Arc::downgrade(&share));
        share
    }
}

// === impl Received ===

impl Received {
    /// An empty body.
    pub(crate) fn none() -> Self {
        Bytes::new().into()
    }

    /// True if the body has to wait for [`Bodies::in_turn`].
    pub(crate) fn is_large(&self) -> bool {
        self.bytes.len() > SMALL_BYTES_MAX
    }
}

impl Deref for Received {
    type Target = Bytes;

    fn deref(&self) -> &Bytes {
        &self.bytes
    }
}

/// A body that takes no room.
impl From<Bytes> for Received {
    fn from(bytes: Bytes) -> Self {
        Self {
            bytes,
            _room: Vec::new(),
        }
    }
}

// === impl Growing ===

impl Growing<'_> {
    /// Reserves the largest size of the body, and releases its small reservation.
    async fn become_large(&mut self) -> Result<(), Status> {
        self.is_large = true;
        let Some(share) = &self.share else {
            self.held = vec![pieces(&self.bodies.feed, self.most).await?];
            return Ok(());
        };
        // The defaults allow no body above a share; such a body takes the whole share.
        let most = self.most.min(LARGE_SHARE);
        let taken = async {
            let own = pieces(&share.large, most).await?;
            let _waiting = Waiting::new(&self.bodies.waiting);
            Ok::<_, Status>(vec![own, pieces(&self.bodies.large, most).await?])
        };
        let taken = tokio::time::timeout(ROOM_WAIT_MAX, taken).await;
        self.held = taken.map_err(|_| no_room())??;
        self.pace.begin(most);
        Ok(())
    }

    /// Reserves room for the bytes that a small body has received.
    fn become_longer(&mut self, bytes: usize) -> Result<(), Status> {
        let wanted = bytes.div_ceil(UNIT);
        let Some(share) = self.share.as_ref().filter(|_| wanted > self.pieces) else {
            return Ok(());
        };
        let more = u32::try_from(wanted - self.pieces).unwrap_or(u32::MAX);
        for room in [&share.small, &self.bodies.small] {
            let taken = room.clone().try_acquire_many_owned(more);
            self.held.push(taken.map_err(|_| no_room())?);
        }
        self.pieces = wanted;
        Ok(())
    }
}

// === impl Pace ===

impl Pace {
    /// Starts the time of a body with so many bytes of room.
    fn begin(&self, reserved: usize) {
        let _ = self.reserved.set(reserved);
        self.begun.notify_one();
    }

    /// Returns when the body has used up its time while others wait for room; never for a small body, or one of the
    /// feed.
    async fn is_lost(&self, waiting: &AtomicUsize) {
        self.begun.notified().await;
        let reserved = self.reserved.get().copied().unwrap_or_default();
        tokio::time::sleep(time_to_arrive(reserved)).await;
        while waiting.load(Ordering::Relaxed) == 0 {
            tokio::time::sleep(SLOW_CHECK_EVERY).await;
        }
    }
}

/// Time to arrive for a large body with so many bytes of room, while others wait.
fn time_to_arrive(reserved: usize) -> Duration {
    SLOW_GRACE + Duration::from_secs(reserved.div_ceil(SLOW_RATE) as u64)
}

// === impl Waiting ===

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Room for Growing<'_> {
    type Error = Status;

    async fn grow(&mut self, bytes: usize) -> Result<(), Status> {
        if self.is_large {
            return Ok(());
        }
        if bytes <= SMALL_BYTES_MAX {
            return self.become_longer(bytes);
        }
        self.become_large().await
    }
}

async fn pieces(room: &Arc<Semaphore>, bytes: usize) -> Result<OwnedSemaphorePermit, Status> {
    let pieces = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
    room.clone().acquire_many_owned(pieces).await.map_err(closed)
}

fn closed(error: AcquireError) -> Status {
    Status::internal(&error.to_string())
}

fn no_room() -> Status {
    let why = "too many bytes of request bodies are in memory, please try again later";
    Status::too_many_requests(why, RETRY_AFTER)
}

fn too_slow() -> Status {
    let why = "the request body arrives too slowly while others wait for room, please try again later";
    Status::too_many_requests(why, RETRY_AFTER)
}

#[cfg(test)]
mod tests;
