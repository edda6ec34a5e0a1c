//! Atomic write of a small file: a reader, or a power cut, sees the old content or the new one, never a part. Also its
//! folder, whose name has to survive a power cut as well.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

/// Readable by the owner only: keys, tokens, admin kubeconfigs.
const SECRET_MODE: u32 = 0o600;
/// Readable by all users: certificates.
const PUBLIC_MODE: u32 = 0o644;

/// Writes `content` to `path` with mode 0600, atomically and durably. Blocks.
///
/// # Errors
/// The message names `path`. The old content is still there, or the new one, which a power cut may undo.
pub fn write_secret(path: &Path, content: impl AsRef<[u8]>) -> io::Result<()> {
    write(path, content.as_ref(), SECRET_MODE).map_err(|e| naming(path, &e))
}

/// Writes `content` to `path` with mode 0644, atomically and durably. Blocks.
///
/// # Errors
/// The message names `path`. The old content is still there, or the new one, which a power cut may undo.
pub fn write_public(path: &Path, content: impl AsRef<[u8]>) -> io::Result<()> {
    write(path, content.as_ref(), PUBLIC_MODE).map_err(|e| naming(path, &e))
}

/// Creates the folder `path` and its missing parents with `mode`, durably; an existing one stays as it is. Blocks.
///
/// # Errors
/// The message names `path`.
pub fn make_folder(path: &Path, mode: u32) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = parent(path);
    if parent != path {
        make_folder(parent, mode)?;
    }
    let made = DirBuilder::new().mode(mode).create(path);
    let made = match made {
        // Another task was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        made => made,
    };
    made.and_then(|()| File::open(parent)?.sync_all())
        .map_err(|e| naming(path, &e))
}

fn write(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no file name"))?;
    // The process id separates two programs; within one program a file has one writer.
    let temporary = path.with_file_name(format!(".{}.{}.tmp", name.to_string_lossy(), std::process::id()));
    let written = write_new(&temporary, content, mode).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_file(&temporary);
    }
    written?;
    // Makes the rename itself durable.
    File::open(parent(path))?.sync_all()
}

/// The folder of `path`.
fn parent(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

fn write_new(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(path)?;
    // The mode above is subject to the umask and ignored for a leftover of an earlier run.
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.write_all(content)?;
    file.sync_all()
}

fn naming(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot write {}: {error}", path.display()))
}
