//! Copy of the hub's configuration on disk, for a start without the cloud.
//!
//! One file with mode 0600, replaced as a whole: the SHA-256 of the rest in the first line, then a JSON document. A
//! file that is damaged, or of another namespace, counts as absent.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use yurt_runtime::pki::write_secret;

use super::HubConfig;

/// Name of the file in the directory of the durable copy.
pub(crate) const FILE: &str = "hub-config";
/// Layout version of the document.
const VERSION: u32 = 1;
/// Maximum size of a file that is read, bytes: JSON escapes take up to six bytes per character.
const FILE_BYTES_MAX: u64 = 8 << 20;

/// The file.
#[derive(Clone, Debug)]
pub(crate) struct ConfigFile {
    path: PathBuf,
    namespace: String,
    /// True during a write, and after a failed one.
    is_behind: Arc<AtomicBool>,
    /// Held by the present write.
    turn: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Deserialize, Serialize)]
struct Document {
    version: u32,
    namespace: String,
    data: BTreeMap<String, String>,
}

// === impl ConfigFile ===

impl ConfigFile {
    /// File in `folder` for the ConfigMap in `namespace`.
    pub(crate) fn new(folder: &Path, namespace: &str) -> Self {
        Self::named(folder, FILE, namespace)
    }

    /// File `name` in `folder`. It counts as absent if it was stored for another `namespace`, or pool.
    pub(crate) fn named(folder: &Path, name: &str, namespace: &str) -> Self {
        Self {
            path: folder.join(name),
            namespace: namespace.to_owned(),
            is_behind: Arc::default(),
            turn: Arc::default(),
        }
    }

    /// True if the last state could not be stored.
    pub(crate) fn is_behind(&self) -> bool {
        self.is_behind.load(Ordering::Relaxed)
    }

    /// Loads the state; not synced if there is none. Logs a file that cannot be used.
    pub(crate) fn load(&self) -> HubConfig {
        match self.read() {
            Ok(data) => HubConfig {
                synced: true,
                data,
                ..HubConfig::default()
            },
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    let path = self.path.display();
                    tracing::warn!(%error, %path, "Failed to read the kept state; waiting for the cloud's");
                }
                HubConfig::default()
            }
        }
    }

    fn read(&self) -> io::Result<BTreeMap<String, String>> {
        let mut text = Vec::new();
        File::open(&self.path)?
            .take(FILE_BYTES_MAX + 1)
            .read_to_end(&mut text)?;
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(invalid(format!("more than {FILE_BYTES_MAX} bytes")));
        }
        let end = text.iter().position(|byte| *byte == b'\n');
        let (sum, body) = text.split_at(end.ok_or_else(|| invalid("no checksum".to_owned()))?);
        let body = &body[1..];
        if sum != checksum(body).as_bytes() {
            return Err(invalid("wrong checksum".to_owned()));
        }
        let document: Document = serde_json::from_slice(body)?;
        if (document.version, &document.namespace) != (VERSION, &self.namespace) {
            return Err(invalid(format!(
                "version {} of namespace {:?}, not {VERSION} of {:?}",
                document.version, document.namespace, self.namespace
            )));
        }
        Ok(document.data)
    }

    /// Waits for the end of a write whose [`Self::store`] was cut.
    pub(crate) async fn settled(&self) {
        drop(self.turn.lock().await);
    }

    /// Stores a state. A failure is logged; the next start then uses an older state, or waits for the cloud.
    pub(crate) async fn store(&self, data: BTreeMap<String, String>) {
        let (file, turn) = (self.clone(), self.turn.clone().lock_owned().await);
        // It ends also if the caller is gone, which is why it holds the turn.
        let writing = tokio::task::spawn_blocking(move || {
            file.is_behind.store(true, Ordering::Relaxed);
            let written = file.write(data);
            file.is_behind.store(written.is_err(), Ordering::Relaxed);
            drop(turn);
            written
        });
        let error = match writing.await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        tracing::warn!(
            error,
            path = %self.path.display(),
            "Failed to store a state of the cloud; a start without the cloud uses an older one"
        );
    }

    fn write(&self, data: BTreeMap<String, String>) -> io::Result<()> {
        let document = Document {
            version: VERSION,
            namespace: self.namespace.clone(),
            data,
        };
        let body = serde_json::to_string(&document)?;
        write_secret(&self.path, format!("{}\n{body}", checksum(body.as_bytes())))
    }
}

/// SHA-256 in hexadecimal.
fn checksum(body: &[u8]) -> String {
    let sum = digest(&SHA256, body);
    sum.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use futures_util::FutureExt as _;
    use yurt_test_support::TestDir;

    use super::*;

    fn some() -> BTreeMap<String, String> {
        BTreeMap::from([("masterservice".to_owned(), "a,\n\"b\"".to_owned())])
    }

    #[tokio::test]
    async fn stored_state_is_loaded_by_the_next_run_and_is_private() {
        let folder = TestDir::new();
        let file = ConfigFile::new(folder.path(), "kube-system");
        assert_eq!(file.load(), HubConfig::default(), "there is none yet");
        for data in [some(), BTreeMap::new()] {
            file.store(data.clone()).await;
            assert!(!file.is_behind());
            let loaded = file.load();
            assert_eq!((loaded.synced, loaded.current, loaded.data), (true, false, data));
        }
        let mode = std::fs::metadata(folder.path().join(FILE))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(
            !ConfigFile::new(folder.path(), "other").load().synced,
            "of another namespace"
        );
    }

    #[tokio::test]
    async fn write_that_is_cut_ends_before_the_file_is_settled() {
        let folder = TestDir::new();
        let file = ConfigFile::new(folder.path(), "kube-system");
        // On a busy machine the write may have ended before the first poll.
        let _ = file.store(some()).now_or_never();
        file.settled().await;
        assert!(file.load().synced && !file.is_behind());
    }

    #[tokio::test]
    async fn state_that_the_disk_did_not_take_is_known_to_be_missing() {
        let folder = TestDir::new();
        let file = ConfigFile::new(&folder.path().join("absent"), "kube-system");
        file.store(some()).await;
        assert!(file.clone().is_behind() && !file.load().synced);
        std::fs::create_dir(folder.path().join("absent")).unwrap();
        file.store(some()).await;
        assert!(!file.is_behind() && file.load().synced);
    }

    #[tokio::test]
    async fn damaged_file_is_not_synced() {
        let folder = TestDir::new();
        let file = ConfigFile::new(folder.path(), "kube-system");
        file.store(some()).await;
        let path = folder.path().join(FILE);
        let good = std::fs::read(&path).unwrap();
        assert!(file.load().synced);
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            std::fs::write(&path, &bad).unwrap();
            assert_eq!(file.load(), HubConfig::default(), "byte {at}");
            std::fs::write(&path, &good[..at]).unwrap();
            assert_eq!(file.load(), HubConfig::default(), "the first {at} bytes");
        }
    }
}
