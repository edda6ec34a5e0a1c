//! One cached selection: its replica, the state of its stream, and the credentials that the cloud accepts for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::HeaderValue;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use yurt_collection::Limits;
use yurt_storage::Replica;

use super::key::Key;

/// Maximum time for which a selection without a stream is served while the cloud answers others. Its loss is noticed in
/// less.
const LOST_MAX: Duration = Duration::from_secs(30);

/// Maximum characters of the cloud's message that are kept of a refusal.
const DENIAL_CHARS_MAX: usize = 1024;

/// Credential of a caller, for reading at the cloud.
#[derive(Clone, PartialEq, Eq)]
pub enum Reader {
    /// The node's certificate.
    Node,
    /// `Authorization` header of a caller with a token of its own.
    Token(HeaderValue),
}

/// State of the stream that keeps a selection up to date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamState {
    /// No attempt has ended since the start.
    Starting,
    /// The cloud confirmed the position.
    Live,
    /// The stream ended, the connection to the cloud failed, or the cloud asked to come back later.
    Lost,
    /// The cloud forbids the data (403) or does not have the resource (404).
    Denied,
    /// The cloud or this hub refused for another reason: an unknown credential, the size, the disk.
    Refused,
}

/// One cached selection.
pub struct Entry {
    key: Key,
    replica: Arc<Replica>,
    /// With the time of the last loss of a live stream; `None` before the first.
    state: watch::Sender<(StreamState, Option<Instant>)>,
    /// True until a request has waited for the selection in vain: later ones do not wait.
    is_awaited: AtomicBool,
    readers: watch::Sender<Readers>,
    /// The credential that the cloud forbade the data last, and the message.
    denial: watch::Sender<Option<(Reader, String)>>,
    /// Ends the open watches of this node's clients.
    watches: Mutex<CancellationToken>,
    used: Mutex<Instant>,
    /// True if it is filled with the node's rights alone; else with those of any reader.
    is_of_node: bool,
}

/// Credentials of callers that may read the selection. Kept in memory only.
#[derive(Default)]
struct Readers {
    node: Option<CredentialResult>,
    token: Option<(HeaderValue, CredentialResult)>,
}

/// Result of the last use of a credential.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CredentialResult {
    Accepted,
    Refused,
}

// === impl StreamState ===

impl StreamState {
    /// True if the cloud or this hub refused.
    #[must_use]
    pub fn is_refused(self) -> bool {
        matches!(self, Self::Denied | Self::Refused)
    }
}

// === impl Entry ===

impl Entry {
    pub(super) fn new(key: Key, replica: Arc<Replica>, is_of_node: bool) -> Self {
        replica.collection().set_limits(Limits::of_a_selection());
        Self {
            key,
            replica,
            state: watch::Sender::new((StreamState::Starting, None)),
            is_awaited: AtomicBool::new(true),
            readers: watch::Sender::default(),
            denial: watch::Sender::default(),
            watches: Mutex::default(),
            used: Mutex::new(Instant::now()),
            is_of_node,
        }
    }

    /// The selection.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Its replica.
    #[must_use]
    pub fn replica(&self) -> &Arc<Replica> {
        &self.replica
    }

    /// State of its stream.
    #[must_use]
    pub fn state(&self) -> StreamState {
        self.state.borrow().0
    }

    /// True if it is filled with the node's rights alone. Any other one shows the node only what it may read itself.
    #[must_use]
    pub fn is_of_node(&self) -> bool {
        self.is_of_node
    }

    pub(super) fn set_state(&self, state: StreamState) {
        self.state.send_if_modified(|(known, lost)| {
            let before = std::mem::replace(known, state);
            if before == StreamState::Live && state != StreamState::Live {
                *lost = Some(Instant::now());
            }
            before != state
        });
    }

    /// True if the cloud confirmed the data, and the stream is open or was lost only just now.
    #[must_use]
    pub fn is_followed(&self) -> bool {
        let (state, lost) = *self.state.borrow();
        match state {
            StreamState::Live => true,
            StreamState::Lost => lost.is_some_and(|lost| lost.elapsed() < LOST_MAX),
            StreamState::Starting | StreamState::Denied | StreamState::Refused => false,
        }
    }

    /// Waits until the first attempt to follow the selection has ended, and readers may see its data if it succeeded.
    /// For `max` at most, and not at all once a wait took that long.
    pub async fn settled(&self, max: Duration) {
        if !self.is_awaited.load(Ordering::Relaxed) {
            return;
        }
        let settled = async {
            let mut state = self.state.subscribe();
            // The sender is in `self`.
            let first = state.wait_for(|(state, _)| *state != StreamState::Starting).await;
            if first.is_ok_and(|known| known.0 == StreamState::Live) {
                self.replica.served().await;
            }
        };
        if tokio::time::timeout(max, settled).await.is_err() {
            self.is_awaited.store(false, Ordering::Relaxed);
        }
    }

    /// Waits until the cloud confirmed the data. The caller bounds the time.
    pub async fn live(&self) {
        // The sender is in `self`.
        let _ = self
            .state
            .subscribe()
            .wait_for(|(state, _)| *state == StreamState::Live)
            .await;
    }

    /// Records a reader whose rights the cloud confirmed. A credential that it refused for this selection counts again
    /// only once it `has_answered` a request of it.
    pub fn accept(&self, reader: &Reader, has_answered: bool) {
        let is_better = |known: Option<CredentialResult>| match known {
            None => true,
            Some(known) => has_answered && known == CredentialResult::Refused,
        };
        self.readers.send_if_modified(|readers| match reader {
            Reader::Node if is_better(readers.node) => {
                readers.node = Some(CredentialResult::Accepted);
                true
            }
            Reader::Token(token) => {
                let known = readers.token.as_ref().filter(|(known, _)| known == token);
                let is_news = is_better(known.map(|(_, known)| *known));
                if is_news {
                    readers.token = Some((token.clone(), CredentialResult::Accepted));
                }
                is_news
            }
            Reader::Node => false,
        });
    }

    /// As [`Self::accept`], for a read that only this selection can answer: no answer of the cloud to it will show that
    /// a refused credential works again. So another attempt has to; the pauses of the stream bound the attempts.
    pub fn retry(&self, reader: &Reader) {
        let is_of_node = self.is_of_node;
        self.readers.send_if_modified(|readers| {
            // Its stream has the node's rights, whichever credential the reader has.
            let is_refused = is_of_node && readers.node == Some(CredentialResult::Refused);
            readers.node = readers.node.filter(|_| !is_refused);
            is_refused
        });
        self.accept(reader, true);
    }

    /// Lets its stream begin, or begin again, with the node's rights if it is the node's: a pod may need it.
    pub(super) fn follow_for_pods(&self) {
        if self.is_of_node {
            self.retry(&Reader::Node);
        }
    }

    /// Records that the cloud refused `reader` for this selection.
    pub(super) fn refuse(&self, reader: &Reader) {
        self.readers.send_modify(|readers| match (reader, &mut readers.token) {
            (Reader::Node, _) => readers.node = Some(CredentialResult::Refused),
            (Reader::Token(token), Some((held, known))) if held == token => *known = CredentialResult::Refused,
            // A newer token came in between.
            (Reader::Token(_), _) => {}
        });
    }

    /// Records the cloud's message of a 403 to `reader`.
    pub(super) fn note_denial(&self, reader: &Reader, why: &str) {
        let why = why.chars().take(DENIAL_CHARS_MAX).collect();
        self.denial.send_replace(Some((reader.clone(), why)));
    }

    /// Shows refusals with 403 that come later.
    #[must_use]
    pub fn denials(&self) -> watch::Receiver<Option<(Reader, String)>> {
        self.denial.subscribe()
    }

    /// The cloud's message if it forbids the data now, and refused the credential of this reader last.
    #[must_use]
    pub fn denied(&self, reader: Option<&Reader>) -> Option<String> {
        let denial = self.denial.borrow();
        let (refused, message) = denial.as_ref().filter(|_| self.state() == StreamState::Denied)?;
        (Some(refused) == reader).then(|| message.clone())
    }

    /// As [`Self::live`], or until one of `denials` concerns `reader`.
    pub async fn live_or_denied(
        &self,
        reader: Option<&Reader>,
        mut denials: watch::Receiver<Option<(Reader, String)>>,
    ) {
        let is_of_reader = |denial: &Option<(Reader, String)>| denial.as_ref().map(|(refused, _)| refused) == reader;
        let denied = async {
            // The sender is in `self`.
            while denials.changed().await.is_ok() && !is_of_reader(&denials.borrow()) {}
        };
        tokio::select! {
            () = self.live() => {}
            () = denied => {}
        }
    }

    /// Waits for a reader, and for a credential that may fill the selection and that the cloud did not refuse: the
    /// node's own, or the newest token.
    pub(super) async fn reader(&self) -> Reader {
        let mut readers = self.readers.subscribe();
        loop {
            if let Some(reader) = readers.borrow_and_update().best(self.is_of_node) {
                return reader;
            }
            // The sender is in `self`.
            let _ = readers.changed().await;
        }
    }

    /// Cancelled when the stream is refused: the watches that are open then would stay silent. Those that are opened
    /// later need another one.
    #[must_use]
    pub fn refusal(&self) -> CancellationToken {
        self.watches.lock().clone()
    }

    /// Ends the open watches. Their clients watch again, each with its own credential.
    pub(super) fn end_watches(&self) {
        std::mem::take(&mut *self.watches.lock()).cancel();
    }

    /// Records a read now. One of data that the cloud denies is no use: it would keep them for readers without the
    /// cloud.
    pub(super) fn note_read(&self) {
        if self.state() != StreamState::Denied {
            self.touch();
        }
    }

    /// Records a use now.
    pub(super) fn touch(&self) {
        *self.used.lock() = Instant::now();
    }

    /// Time of the last use.
    pub(super) fn used(&self) -> Instant {
        *self.used.lock()
    }

    /// True once it is dropped.
    pub(super) fn is_gone(&self) -> bool {
        self.replica.gone().is_cancelled()
    }

    /// True if a client reads it now: only readers hold the collection itself.
    pub(super) fn is_in_use(&self) -> bool {
        Arc::strong_count(self.replica.collection()) > 1
    }
}

// === impl Readers ===

impl Readers {
    fn best(&self, is_of_node: bool) -> Option<Reader> {
        let token = self
            .token
            .as_ref()
            .filter(|(_, known)| *known == CredentialResult::Accepted);
        match self.node {
            Some(CredentialResult::Accepted) => Some(Reader::Node),
            None if is_of_node && token.is_some() => Some(Reader::Node),
            Some(CredentialResult::Refused) if is_of_node => None,
            _ => token.map(|(token, _)| Reader::Token(token.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use yurt_runtime::Clock;
    use yurt_test_support::TestDir;

    use super::*;
    use crate::replicas::PoolData;

    fn token(text: &'static str) -> Reader {
        Reader::Token(HeaderValue::from_static(text))
    }

    fn entry(folder: &TestDir) -> Entry {
        let (key, _) = Key::parse("/api/v1/pods").unwrap();
        let data = PoolData::open(folder.path(), "", usize::MAX, Clock::system()).unwrap();
        let replica = data.replicas().create("/api/v1/pods", key.built_in().unwrap());
        Entry::new(key, replica, false)
    }

    /// The reader of the stream now; `None` while it pauses.
    fn now(entry: &Entry) -> Option<Reader> {
        entry.reader().now_or_never()
    }

    #[test]
    fn stream_uses_the_nodes_rights_or_the_newest_token() {
        let folder = TestDir::new();
        let entry = entry(&folder);
        assert!(now(&entry).is_none());
        entry.accept(&token("Bearer a"), false);
        assert!(now(&entry) == Some(token("Bearer a")));
        entry.accept(&token("Bearer b"), false);
        assert!(now(&entry) == Some(token("Bearer b")));
        entry.accept(&Reader::Node, false);
        assert!(now(&entry) == Some(Reader::Node));
        entry.refuse(&Reader::Node);
        assert!(now(&entry) == Some(token("Bearer b")), "it may still read");
    }

    #[test]
    fn selection_of_the_node_is_filled_with_its_rights_alone() {
        let folder = TestDir::new();
        let Entry { key, replica, .. } = entry(&folder);
        let entry = Entry::new(key, replica, true);
        assert!(now(&entry).is_none(), "nothing reads it");
        entry.accept(&token("Bearer a"), false);
        assert!(now(&entry) == Some(Reader::Node));
        entry.refuse(&Reader::Node);
        assert!(now(&entry).is_none(), "no token fills it");
        entry.accept(&Reader::Node, true);
        assert!(now(&entry) == Some(Reader::Node));
    }

    #[test]
    fn refused_credential_pauses_the_stream_until_it_works_again_or_another_one_comes() {
        let folder = TestDir::new();
        let entry = entry(&folder);
        entry.accept(&token("Bearer a"), false);
        entry.refuse(&token("Bearer a"));
        assert!(now(&entry).is_none());
        entry.accept(&token("Bearer a"), false);
        assert!(
            now(&entry).is_none(),
            "a review of its rights is no answer to this selection"
        );
        entry.accept(&token("Bearer a"), true);
        assert!(now(&entry) == Some(token("Bearer a")));
        entry.accept(&token("Bearer b"), false);
        entry.refuse(&token("Bearer a"));
        assert!(now(&entry) == Some(token("Bearer b")), "the older one was refused");
    }

    #[test]
    fn read_that_only_the_selection_answers_has_a_refused_credential_tried_again() {
        let folder = TestDir::new();
        let entry = entry(&folder);
        for reader in [token("Bearer a"), Reader::Node] {
            entry.accept(&reader, false);
            entry.refuse(&reader);
            entry.refuse(&token("Bearer a"));
            assert!(now(&entry).is_none());
            entry.retry(&reader);
            assert!(now(&entry) == Some(reader));
        }
        let Entry { key, replica, .. } = entry;
        let entry = Entry::new(key, replica, true);
        entry.accept(&Reader::Node, false);
        entry.refuse(&Reader::Node);
        entry.retry(&token("Bearer a"));
        assert!(now(&entry) == Some(Reader::Node), "no token fills it");
    }

    #[test]
    fn refusal_ends_the_watches_that_are_open_and_no_later_one() {
        let folder = TestDir::new();
        let entry = entry(&folder);
        let open = entry.refusal();
        entry.end_watches();
        assert!(open.is_cancelled() && !entry.refusal().is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn reader_waits_for_its_own_next_refusal_and_sees_no_other() {
        let folder = TestDir::new();
        let entry = entry(&folder);
        let (node, other) = (Some(&Reader::Node), token("Bearer a"));
        let denials = entry.denials();
        entry.note_denial(&Reader::Node, &"é".repeat(DENIAL_CHARS_MAX + 1));
        assert!(entry.denied(node).is_none(), "it may be of an earlier attempt");
        entry.set_state(StreamState::Denied);
        assert_eq!(entry.denied(node), Some("é".repeat(DENIAL_CHARS_MAX)));
        assert!(entry.denied(Some(&other)).is_none() && entry.denied(None).is_none());
        let decided = |reader, denials| entry.live_or_denied(reader, denials).now_or_never().is_some();
        assert!(decided(node, denials.clone()), "it came after the request");
        assert!(!decided(Some(&other), denials) && !decided(node, entry.denials()));
        entry.set_state(StreamState::Live);
        assert!(decided(node, entry.denials()) && entry.denied(node).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn selection_that_stays_without_a_stream_is_read_at_the_cloud() {
        let folder = TestDir::new();
        let entry = entry(&folder);
        assert!(!entry.is_followed(), "nothing is known yet");
        entry.set_state(StreamState::Lost);
        assert!(!entry.is_followed(), "the cloud never confirmed the data of the disk");
        entry.set_state(StreamState::Live);
        entry.set_state(StreamState::Lost);
        tokio::time::advance(LOST_MAX / 2).await;
        assert!(entry.is_followed(), "the cloud may be gone without a probe that failed");
        entry.set_state(StreamState::Lost);
        tokio::time::advance(LOST_MAX / 2).await;
        assert!(!entry.is_followed(), "only this stream fails");
        entry.set_state(StreamState::Live);
        assert!(entry.is_followed());
        entry.set_state(StreamState::Refused);
        assert!(!entry.is_followed());
    }

    #[tokio::test(start_paused = true)]
    async fn later_failure_does_not_prolong_the_time_of_a_lost_selection() {
        let folder = TestDir::new();
        let entry = entry(&folder);
        entry.set_state(StreamState::Live);
        entry.set_state(StreamState::Lost);
        tokio::time::advance(LOST_MAX).await;
        for later in [StreamState::Lost, StreamState::Refused, StreamState::Lost] {
            entry.set_state(later);
            assert!(!entry.is_followed(), "{later:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_wait_only_once_for_a_first_list_that_takes_long() {
        let folder = TestDir::new();
        let entry = entry(&folder);
        let (began, max) = (Instant::now(), Duration::from_secs(2));
        entry.settled(max).await;
        assert_eq!(began.elapsed(), max);
        entry.settled(max).await;
        assert_eq!(began.elapsed(), max);
    }

    /// A disk that is full keeps the data from being served, and costs no later request anything.
    #[tokio::test(start_paused = true)]
    async fn data_that_the_disk_does_not_take_is_awaited_only_once() {
        let folder = TestDir::new();
        let entry = entry(&folder);
        let (began, max) = (Instant::now(), Duration::from_secs(2));
        entry.set_state(StreamState::Live);
        entry.settled(max).await;
        entry.settled(max).await;
        assert_eq!(began.elapsed(), max);
    }
}
