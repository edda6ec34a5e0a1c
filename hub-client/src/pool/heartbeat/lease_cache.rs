//! Cache of the cloud's last answer about this node's lease. Serves while the cloud is away, also after a restart.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use parking_lot::Mutex;
use yurt_apimachinery::ResourceVersion;
use yurt_apimachinery::time::BootTime;
use yurt_codec::negotiation::{body_format, body_json};
use yurt_pool_protocol::heartbeat::DELEGATE_HEARTBEAT_ANNOTATION;
use yurt_runtime::TaskGroup;
use yurt_runtime::http::{Body, full};

use crate::replicas::history_check::lease_version;

/// Minimum interval between two writes of the cached answer: a write per beat (10 s) would wear out an SD card.
const STORE_EVERY: Duration = Duration::from_secs(600);

/// Answer of the cloud, cached for the time without the cloud.
#[derive(Clone, Debug)]
pub(super) struct CachedLease {
    content_type: HeaderValue,
    body: Bytes,
}

/// File of the cached answer. It is written in the background, so that a disk that hangs delays no request.
#[derive(Debug)]
pub(super) struct LeaseFile {
    path: PathBuf,
    tasks: TaskGroup,
    // Leaf lock: never held during I/O.
    writes: Mutex<Writes>,
}

/// State of the writes.
#[derive(Debug, Default)]
struct Writes {
    /// Time of the last write.
    at: Option<BootTime>,
    /// True while a task writes. There is one at a time.
    is_running: bool,
    /// Answer that this task writes next.
    next: Option<CachedLease>,
}

// === impl CachedLease ===

impl CachedLease {
    pub(super) fn of(headers: &HeaderMap, body: Bytes) -> Option<Self> {
        let content_type = headers.get(CONTENT_TYPE)?.clone();
        (!body.is_empty()).then_some(Self { content_type, body })
    }

    /// Returns the RV of the lease; `None` if the body is not a lease.
    pub(super) fn version(&self) -> Option<ResourceVersion> {
        let format = body_format(self.content_type.to_str().ok()).ok()?;
        let lease = body_json(format, "coordination.k8s.io/v1", "Lease", &self.body).ok()?;
        lease_version(&lease)
    }

    /// True if the lease carries the delegate annotation. Its name is plain text in JSON and in protobuf.
    pub(super) fn is_annotated(&self) -> bool {
        let name = DELEGATE_HEARTBEAT_ANNOTATION.as_bytes();
        self.body.windows(name.len()).any(|window| window == name)
    }

    pub(super) fn answer(&self, status: StatusCode) -> Response<Body> {
        let mut response = Response::new(full(self.body.clone()));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, self.content_type.clone());
        response
    }

    /// Loads an answer; `None` if it is no lease, as a power cut may leave it. File format: the content type in the
    /// first line, then the body.
    pub(super) fn load(path: &Path) -> Option<Self> {
        let text = std::fs::read(path).ok()?;
        let end = text.iter().position(|byte| *byte == b'\n')?;
        let content_type = HeaderValue::from_bytes(&text[..end]).ok()?;
        let loaded = Self {
            content_type,
            body: Bytes::copy_from_slice(&text[end + 1..]),
        };
        loaded.version().is_some().then_some(loaded)
    }

    /// Stores the answer, best effort and without a flush: [`Self::load`] finds what a power cut leaves. A failed write
    /// only costs a 503 after a restart without the cloud. Blocks.
    fn store(&self, path: &Path) {
        let mut text = self.content_type.as_bytes().to_vec();
        text.push(b'\n');
        text.extend_from_slice(&self.body);
        let temporary = path.with_extension("tmp");
        if let Err(error) = std::fs::write(&temporary, text).and_then(|()| std::fs::rename(&temporary, path)) {
            tracing::debug!(%error, path = %path.display(), "Failed to store node lease");
        }
    }
}

// === impl LeaseFile ===

impl LeaseFile {
    /// Creates the writer of `path`; `tasks` owns its task.
    pub(super) fn new(path: PathBuf, tasks: TaskGroup) -> Arc<Self> {
        let writes = Mutex::default();
        Arc::new(Self { path, tasks, writes })
    }

    /// Stores `answer` at most every [`STORE_EVERY`]: any answer about this node's lease serves after a restart. The
    /// first one of a history is stored immediately, because the stored one is of another history.
    pub(super) fn store(self: &Arc<Self>, answer: &CachedLease, now: BootTime, is_first: bool) {
        let mut writes = self.writes.lock();
        if !is_store_due(writes.at, now, is_first) {
            return;
        }
        writes.at = Some(now);
        writes.next = Some(answer.clone());
        if !std::mem::replace(&mut writes.is_running, true) {
            let this = self.clone();
            self.tasks.spawn("store-node-lease", async move { this.write().await });
        }
    }

    async fn write(self: Arc<Self>) {
        while let Some(answer) = self.next() {
            let this = self.clone();
            // A panic is logged by the runtime; the next answer follows.
            let _ = tokio::task::spawn_blocking(move || answer.store(&this.path)).await;
        }
    }

    /// Takes the next answer; without one the task ends.
    fn next(&self) -> Option<CachedLease> {
        let mut writes = self.writes.lock();
        let next = writes.next.take();
        writes.is_running = next.is_some();
        next
    }
}

/// True if an answer has to be written: it is the first one of a history, or the last write was [`STORE_EVERY`] ago.
fn is_store_due(stored: Option<BootTime>, now: BootTime, is_first: bool) -> bool {
    is_first || stored.is_none_or(|at| now.since(at) >= STORE_EVERY)
}

#[cfg(test)]
mod tests {
    use yurt_runtime::Clock;
    use yurt_test_support::TestDir;
    use yurt_test_support::fault_fs::{FaultFs, Health};

    use super::*;

    fn lease(version: u32) -> CachedLease {
        let metadata = format!(r#"{{"name":"n1","resourceVersion":"{version}"}}"#);
        let body = format!(r#"{{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{metadata}}}"#);
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
        CachedLease::of(&headers, body.into()).unwrap()
    }

    #[test]
    fn answer_is_stored_rarely_and_immediately_in_another_history() {
        let (clock, hand) = Clock::fake();
        let first = clock.boot();
        assert!(is_store_due(None, first, false), "the first one of this process");
        hand.advance(STORE_EVERY - Duration::from_secs(1));
        assert!(!is_store_due(Some(first), clock.boot(), false));
        assert!(
            is_store_due(Some(first), clock.boot(), true),
            "the stored one is of another history"
        );
        hand.advance(Duration::from_secs(1));
        assert!(is_store_due(Some(first), clock.boot(), false));
    }

    #[tokio::test]
    async fn one_write_at_a_time_hangs_with_the_disk_and_the_last_answer_follows_it() {
        let (folder, behind) = (TestDir::new(), TestDir::new());
        let Some(disk) = FaultFs::mount_or_skip(folder.path(), behind.path()) else {
            return;
        };
        let (path, tasks, now) = (
            folder.path().join("node-lease"),
            TaskGroup::new(),
            Clock::system().boot(),
        );
        let file = LeaseFile::new(path.clone(), tasks.clone());
        disk.set(Health::Stalls);
        for version in 1..=3 {
            file.store(&lease(version), now, true);
            tokio::task::yield_now().await;
        }
        assert_eq!(tasks.running(), [("store-node-lease", 1)]);
        disk.set(Health::Works);
        tasks.shutdown(Duration::from_secs(60)).await.unwrap();
        assert_eq!(CachedLease::load(&path).unwrap().body, lease(3).body);
        file.store(&lease(4), now, true);
        tasks.shutdown(Duration::from_secs(60)).await.unwrap();
        assert_eq!(CachedLease::load(&path).unwrap().body, lease(4).body);
    }

    #[test]
    fn answer_that_a_power_cut_left_in_part_is_none() {
        let folder = TestDir::new();
        let path = folder.path().join("node-lease");
        lease(7).store(&path);
        assert_eq!(CachedLease::load(&path).unwrap().body, lease(7).body);
        let whole = std::fs::read(&path).unwrap();
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            assert!(CachedLease::load(&path).is_none(), "the first {length} bytes");
            let zeros = [&whole[..length], &vec![0; whole.len() - length]].concat();
            std::fs::write(&path, zeros).unwrap();
            assert!(CachedLease::load(&path).is_none(), "zeros after {length} bytes");
        }
    }
}
