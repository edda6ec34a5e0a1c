//! A small disk under a program's data, which can be filled and broken: a tmpfs, behind a FUSE file system
//! ([`yurt_test_support::fault_fs`]), where this machine permits mounts.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use yurt_test_support::fault_fs::{FaultFs, Health};

/// Options of the tmpfs: its size is several times that of a store after a run.
const OPTIONS: &str = "size=64m,mode=0700";
/// The file that takes all the space.
const BALLAST: &str = "ballast";
/// It is written in pieces of these sizes, until not one byte fits.
const PIECES: [usize; 3] = [1 << 20, 4096, 1];

/// A mounted disk; unmounted when dropped.
pub struct Disk {
    place: PathBuf,
    /// Path of the tmpfs: the place itself, or the folder behind the file system there.
    behind: PathBuf,
    fault_fs: Option<FaultFs>,
}

// === impl Disk ===

impl Disk {
    /// Mounts one at `place`, which need not exist; `None` if mounting is not permitted.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub fn mount(place: &Path) -> Result<Option<Self>> {
        let behind = place.with_added_extension("behind");
        for folder in [place, &behind] {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        if !mount_tmpfs(&behind) {
            return Ok(None);
        }
        let fault_fs = FaultFs::mount(place, &behind)?;
        if fault_fs.is_none() && !mount_tmpfs(place) {
            return Ok(None);
        }
        let behind = if fault_fs.is_some() {
            behind
        } else {
            place.to_path_buf()
        };
        Ok(Some(Self {
            place: place.to_path_buf(),
            behind,
            fault_fs,
        }))
    }

    /// True if it can be broken.
    pub fn is_breakable(&self) -> bool {
        self.fault_fs.is_some()
    }

    /// Makes all reads, writes and syncs work, stall or fail from now on.
    pub fn set(&self, health: Health) {
        if let Some(fault_fs) = &self.fault_fs {
            fault_fs.set(health);
        }
    }

    /// Fills the rest of the space.
    ///
    /// # Errors
    /// Any error except that there is no more space.
    pub fn fill(&self) -> Result<()> {
        let mut file = File::create(self.ballast()).or_else(|error| match error.kind() {
            ErrorKind::StorageFull => File::open(self.ballast()),
            _ => Err(error),
        })?;
        for piece in PIECES {
            let bytes = vec![1; piece];
            loop {
                match file.write_all(&bytes) {
                    Ok(()) => {}
                    Err(error) if error.kind() == ErrorKind::StorageFull => break,
                    Err(error) => return Err(error).context("cannot fill a disk"),
                }
            }
        }
        Ok(())
    }

    /// Frees the space.
    ///
    /// # Errors
    /// When the file cannot be removed.
    pub fn clear(&self) -> Result<()> {
        // Truncated first: a process that is just being forked holds the file open for a moment, and its space with it.
        let truncated = File::options().write(true).truncate(true).open(self.ballast());
        match truncated.and_then(|_| std::fs::remove_file(self.ballast())) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error).context("cannot clear a disk"),
            _ => Ok(()),
        }
    }

    fn ballast(&self) -> PathBuf {
        self.behind.join(BALLAST)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: a program that is still ending closes its files a moment later.
        for place in [&self.place, &self.behind] {
            let _ = Command::new("umount").args(["-q", "-l"]).arg(place).status();
        }
    }
}

fn mount_tmpfs(place: &Path) -> bool {
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", OPTIONS, "tmpfs"]).arg(place);
    yurt_workspace::command::succeeds(&mut mount)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_disk_takes_nothing_until_it_is_cleared() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = folder.path().join("disk");
        let Some(disk) = Disk::mount(&place).expect("a folder") else {
            eprintln!("SKIPPED: a tmpfs cannot be mounted here");
            return;
        };
        disk.fill().expect("it is filled");
        disk.fill().expect("it is full already");
        let error = std::fs::write(place.join("more"), "more").expect_err("no space");
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        // Held open as by a program that was started in the meantime, until it runs.
        let held = File::open(disk.ballast()).expect("it is there");
        disk.clear().expect("it is cleared");
        std::fs::write(place.join("more"), "more").expect("space");
        drop(held);
    }
}
