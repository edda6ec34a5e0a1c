//! A file system in front of another folder that stalls, fills up or answers EIO on request: a disk that hangs, is full
//! or fails, and is repaired. The kernel talks FUSE; `wire` parses requests and answers them, `behind` is the folder.
//! It can record all changes: [`power`] has what a kill or a power cut after each of them leaves.
//!
//! It supports the operations our programs use: files and folders, no links, no attributes but the initial ones.

mod behind;
pub mod power;
mod wire;

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::io::{FdFlags, fcntl_setfd};

pub use behind::Health;
use behind::{Behind, Switch};
use power::{Change, Recording};

/// The mounted file system. It is unmounted when dropped.
pub struct FaultFs {
    place: PathBuf,
    switch: Arc<Switch>,
    recording: Recording,
}

/// Device of the FUSE protocol.
const DEVICE: &str = "/dev/fuse";

// === impl FaultFs ===

impl FaultFs {
    /// Mounts it on `place`, in front of `behind`; both exist. `None` if that is not permitted.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn mount(place: &Path, behind: &Path) -> io::Result<Option<Self>> {
        use std::os::fd::AsRawFd as _;
        let Ok(device) = OpenOptions::new().read(true).write(true).open(DEVICE) else {
            return Ok(None);
        };
        // Only `mount` may inherit it.
        fcntl_setfd(&device, FdFlags::empty())?;
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let mut mount = Command::new("mount");
        mount
            .args(["-i", "-t", "fuse", "-o", &options, "yurt-fault-fs"])
            .arg(place)
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        let is_mounted = mount.status().is_ok_and(|status| status.success());
        fcntl_setfd(&device, FdFlags::CLOEXEC)?;
        if !is_mounted {
            return Ok(None);
        }
        let switch = Arc::<Switch>::default();
        let recording = Recording::default();
        let behind = Behind::new(behind.to_path_buf(), Arc::clone(&switch), recording.clone());
        let thread = std::thread::Builder::new().name("fault fs".to_owned());
        thread.spawn(move || serve(device, behind))?;
        let place = place.to_path_buf();
        Ok(Some(Self {
            place,
            switch,
            recording,
        }))
    }

    /// Mounts it for a test as [`Self::mount`] does. `None`, with a note in the test's output, if that is not
    /// permitted: the test ends early then.
    ///
    /// # Panics
    /// When no thread can be started.
    #[must_use]
    pub fn mount_or_skip(place: &Path, behind: &Path) -> Option<Self> {
        let mounted = Self::mount(place, behind).expect("a thread");
        if mounted.is_none() {
            eprintln!("SKIPPED: a file system of ours cannot be mounted here");
        }
        mounted
    }

    /// Records all changes from now on.
    pub fn record(&self) {
        self.recording.start();
    }

    /// Marks this point of the recording with the number of an acknowledgement.
    pub fn note(&self, fact: usize) {
        self.recording.push(|| Change::Note(fact));
    }

    /// Returns the changes so far, and records nothing more.
    #[must_use]
    pub fn stop_recording(&self) -> Vec<Change> {
        self.recording.stop()
    }

    /// Makes every read, write and sync work, stall or fail from now on.
    pub fn set(&self, health: Health) {
        self.switch.set(health);
    }
}

impl Drop for FaultFs {
    fn drop(&mut self) {
        // Stalled requests would block its thread and their callers for ever.
        self.set(Health::Works);
        // Lazily: a program that is still ending closes its files a moment later.
        let mut unmount = Command::new("umount");
        let _ = unmount.args(["-q", "-l"]).arg(&self.place).status();
    }
}

/// Answers until it is unmounted.
fn serve(mut device: File, mut behind: Behind) {
    let mut buffer = vec![0; wire::REQUEST_BYTES_MAX];
    loop {
        let request = match device.read(&mut buffer) {
            Ok(read) => wire::Request::parse(&buffer[..read]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        let Some(request) = request else { return };
        if let Some(answer) = wire::answer(&request, &mut behind) {
            // The caller may be gone.
            let _ = device.write_all(&answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::FileExt as _;

    use super::*;

    #[test]
    fn broken_disk_reads_and_writes_nothing_until_it_is_mended() {
        let folder = tempfile::tempdir().expect("a folder");
        let (place, behind) = (folder.path().join("place"), folder.path().join("behind"));
        fs::create_dir(&place).expect("a folder");
        fs::create_dir(&behind).expect("a folder");
        let Some(disk) = FaultFs::mount_or_skip(&place, &behind) else {
            return;
        };
        let path = place.join("inner/file");
        fs::create_dir(place.join("inner")).expect("a folder in it");
        fs::write(&path, "one").expect("a file");
        let file = OpenOptions::new().read(true).write(true).open(&path).expect("it opens");
        disk.set(Health::Fails);
        let is_error = |outcome: io::Result<()>| outcome.expect_err("EIO").raw_os_error() == Some(5);
        assert!(is_error(file.write_all_at(b"two", 0)));
        assert!(is_error(file.sync_all()));
        assert!(is_error(file.read_exact_at(&mut [0; 3], 0)));
        assert!(is_error(File::open(&path).map(drop)));
        disk.set(Health::ReadOnly);
        let is_read_only = |outcome: io::Result<()>| outcome.expect_err("EROFS").raw_os_error() == Some(30);
        assert!(is_read_only(file.write_all_at(b"two", 0)));
        assert!(is_read_only(OpenOptions::new().write(true).open(&path).map(drop)));
        assert!(is_read_only(fs::rename(&path, place.join("inner/other"))));
        assert!(is_read_only(fs::remove_file(&path)) && is_read_only(fs::write(place.join("new"), "")));
        assert_eq!(fs::read_to_string(&path).expect("read"), "one");
        disk.set(Health::Works);
        file.write_all_at(b"two and more", 0).expect("it is mended");
        file.set_len(3).expect("shorter");
        file.sync_all().expect("synced");
        let large = vec![7; 300_000];
        fs::write(place.join("inner/large"), &large).expect("in pieces");
        assert_eq!(fs::read(place.join("inner/large")).expect("read"), large);
        fs::rename(&path, place.join("inner/other")).expect("moved");
        assert_eq!(fs::read_to_string(place.join("inner/other")).expect("read"), "two");
        assert_eq!(
            fs::read_dir(place.join("inner")).expect("a folder").flatten().count(),
            2
        );
        fs::remove_dir_all(place.join("inner")).expect("all gone");
        assert_eq!(fs::read_dir(&behind).expect("a folder").count(), 0);
    }

    #[test]
    fn stalled_disk_answers_once_it_works_or_fails() {
        let folder = tempfile::tempdir().expect("a folder");
        let (place, behind) = (folder.path().join("place"), folder.path().join("behind"));
        fs::create_dir(&place).expect("a folder");
        fs::create_dir(&behind).expect("a folder");
        let Some(disk) = FaultFs::mount_or_skip(&place, &behind) else {
            return;
        };
        let file = File::create(place.join("file")).expect("a file");
        let written = |health: Health| {
            disk.set(Health::Stalls);
            std::thread::scope(|scope| {
                let writing = scope.spawn(|| file.write_all_at(b"one", 0).and_then(|()| file.sync_all()));
                assert!(!writing.is_finished(), "nothing answers while it stalls");
                disk.set(health);
                writing.join().expect("no panic")
            })
        };
        written(Health::Works).expect("it works again");
        assert_eq!(fs::read_to_string(place.join("file")).expect("read"), "one");
        let error = written(Health::Fails).expect_err("it fails in the end");
        assert_eq!(error.raw_os_error(), Some(5));
    }
}
