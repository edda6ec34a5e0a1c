//! The file of the audit log: appended to in batches, renamed when it is full. The oldest files are
//! deleted.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use prometheus::IntCounter;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::warn;

/// Maximum number of lines in one write.
const BATCH_MAX: usize = 1024;

/// Writes the events of the queue.
pub(crate) struct AuditWriter {
    file: LogFile,
    queue: mpsc::Receiver<String>,
    lost: IntCounter,
}

/// One file and its predecessors `<path>.1` (the youngest) to `<path>.<n>`.
struct LogFile {
    path: PathBuf,
    max_bytes: u64,
    backups: u32,
    file: File,
    bytes: u64,
}

// === impl AuditWriter ===

impl AuditWriter {
    /// Opens the file for appending.
    ///
    /// # Errors
    /// Errors of the file system.
    pub(super) fn open(
        path: &Path,
        max_bytes: u64,
        backups: u32,
        queue: mpsc::Receiver<String>,
        lost: IntCounter,
    ) -> io::Result<Self> {
        let file = LogFile::open(path, max_bytes, backups)?;
        Ok(Self { file, queue, lost })
    }

    /// Writes until `stop`, then writes the rest of the queue.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut reported = 0;
        let mut lines = Vec::new();
        loop {
            let received = stop
                .run_until_cancelled(self.queue.recv_many(&mut lines, BATCH_MAX))
                .await;
            let is_stopping = received.is_none();
            while let Ok(line) = self.queue.try_recv() {
                lines.push(line);
            }
            let (mut file, batch) = (self.file, std::mem::take(&mut lines));
            // A slow disk must not block requests.
            let written = tokio::task::spawn_blocking(move || {
                let failed = file.append(&batch);
                (file, failed, batch.len())
            });
            let Ok((file, failed, count)) = written.await else {
                return;
            };
            self.file = file;
            if let Err(error) = failed {
                self.lost.inc_by(count as u64);
                warn!(%error, "Failed to write audit events");
            }
            let lost = self.lost.get();
            if lost > reported {
                warn!(lost, "Audit events lost");
                reported = lost;
            }
            if is_stopping {
                return;
            }
        }
    }
}

// === impl LogFile ===

impl LogFile {
    fn open(path: &Path, max_bytes: u64, backups: u32) -> io::Result<Self> {
        let file = append_to(path)?;
        Ok(Self {
            bytes: file.metadata()?.len(),
            path: path.to_owned(),
            max_bytes,
            backups,
            file,
        })
    }

    /// Appends whole lines. A file exceeds its maximum size only by one line that is longer than that.
    fn append(&mut self, lines: &[String]) -> io::Result<()> {
        let mut batch = Vec::new();
        for line in lines {
            let waiting = self.bytes + batch.len() as u64;
            if waiting > 0 && waiting + line.len() as u64 > self.max_bytes {
                self.write(&batch)?;
                batch.clear();
                self.rotate()?;
            }
            batch.extend_from_slice(line.as_bytes());
        }
        self.write(&batch)
    }

    fn write(&mut self, batch: &[u8]) -> io::Result<()> {
        self.file.write_all(batch)?;
        self.bytes += batch.len() as u64;
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        for number in (1..self.backups).rev() {
            let (from, to) = (self.backup(number), self.backup(number + 1));
            if from.exists() {
                std::fs::rename(from, to)?;
            }
        }
        if self.backups > 0 {
            std::fs::rename(&self.path, self.backup(1))?;
        } else {
            std::fs::remove_file(&self.path)?;
        }
        self.file = append_to(&self.path)?;
        self.bytes = 0;
        Ok(())
    }

    fn backup(&self, number: u32) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{number}"));
        name.into()
    }
}

/// Only the owner of the file may read the log.
fn append_to(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_rotate_at_the_byte_and_only_so_many_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let mut log = LogFile::open(&path, 10, 2).unwrap();
        let lines = |texts: &[&str]| texts.iter().map(|text| format!("{text}\n")).collect::<Vec<_>>();
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).ok();
        log.append(&lines(&["1234", "5678"])).unwrap();
        assert_eq!(read("audit.log").unwrap(), "1234\n5678\n", "exactly full");
        log.append(&lines(&["a"])).unwrap();
        assert_eq!(
            (read("audit.log").unwrap(), read("audit.log.1").unwrap()),
            ("a\n".into(), "1234\n5678\n".into())
        );
        log.append(&lines(&["longer than a file", "b", "c"])).unwrap();
        assert_eq!(read("audit.log").unwrap(), "b\nc\n");
        assert_eq!(read("audit.log.1").unwrap(), "longer than a file\n");
        assert_eq!(read("audit.log.2").unwrap(), "a\n");
        assert_eq!(read("audit.log.3"), None);
        let again = LogFile::open(&path, 10, 2).unwrap();
        assert_eq!(again.bytes, 4, "a restart goes on where the file ends");
    }
}
