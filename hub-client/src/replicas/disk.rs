//! Opens the durable copy. It is a copy: a file that is damaged, or of another format, is moved aside and made again, a full disk is done without until the
//! next start, and members of another pool are dropped. Nothing of that keeps a node without its hub.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use yurt_apimachinery::ResourceKind;
use yurt_storage::embedded::replicas::ReplicaStore;
use yurt_storage::embedded::{Disk, OpenError};
use yurt_storage::{Replicas, StorageError};

use super::members;
use super::origin::Origin;

/// Name of the file in the folder of the durable copy.
pub const FILE: &str = "replicas.redb";
/// What does not work when the copy could not be opened as it was.
pub const COPY: &str = "durable copy";

/// Why the durable copy cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// It cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It cannot be read.
    #[error(transparent)]
    Store(#[from] StorageError),
}

/// The durable copy, and how it was found.
pub(super) struct Opened {
    pub(super) replicas: Replicas,
    /// `None` while the hub keeps nothing on its disk.
    pub(super) store: Option<ReplicaStore>,
    pub(super) origin: Origin,
    /// What was wrong with it, and what became of it.
    pub(super) trouble: Option<String>,
    /// The pool whose members it had, where that is another one.
    pub(super) other_pool: Option<String>,
    /// The collections that were dropped because of their size, and why.
    pub(super) oversized: Vec<(String, String)>,
}

/// Name and kind of each collection, and how many bytes of them may be loaded.
type Kinds<'a> = (&'a [(String, &'static ResourceKind)], usize);

// === impl DiskError ===

impl DiskError {
    fn is_unreadable(&self) -> bool {
        matches!(
            self,
            Self::Open(OpenError::Corrupt { .. } | OpenError::Format { .. }) | Self::Store(StorageError::Corrupt(_))
        )
    }

    fn is_full(&self) -> bool {
        matches!(
            self,
            Self::Open(OpenError::Full { .. }) | Self::Store(StorageError::Full(_))
        )
    }
}

/// Opens the copy of `kinds` in `folder`, with the members of `pool`; `disk` opens the file.
pub(super) fn open(
    folder: &Path,
    pool: &str,
    kinds: Kinds<'_>,
    disk: &dyn Fn(&Path) -> Result<Arc<Disk>, OpenError>,
) -> Result<Opened, DiskError> {
    match open_once(folder, pool, kinds, disk) {
        Err(error) if error.is_unreadable() => {
            let aside = move_aside(&folder.join(FILE));
            let why = match &aside {
                Ok(aside) => format!("{error}; moved to {} and made again", aside.display()),
                Err(problem) => format!("{error}; it cannot be moved aside ({problem})"),
            };
            match aside.map(|_| open_once(folder, pool, kinds, disk)) {
                Ok(Ok(opened)) => Ok(Opened {
                    trouble: Some(why),
                    ..opened
                }),
                Ok(Err(again)) => in_memory(kinds, &format!("{why}; {again}")),
                Err(_) => in_memory(kinds, &why),
            }
        }
        Err(error) if error.is_full() => in_memory(kinds, &error.to_string()),
        opened => opened,
    }
}

fn open_once(
    folder: &Path,
    pool: &str,
    kinds: Kinds<'_>,
    disk: &dyn Fn(&Path) -> Result<Arc<Disk>, OpenError>,
) -> Result<Opened, DiskError> {
    let file = folder.join(FILE);
    let origin = Origin::open(folder, !file.exists());
    let store = ReplicaStore::open(disk(&file)?)?;
    let other_pool = origin.other_pool(pool);
    if other_pool.is_some() {
        store.forget(members::COLLECTION)?;
        store.drop_draft(members::COLLECTION)?;
    }
    // Before there is anything to record it for.
    if let Err(error) = origin.set_pool(pool) {
        let why = format!("the record of the pool beside {}: {error}", file.display());
        return Err(match is_full(&error) {
            true => StorageError::Full(why).into(),
            false => StorageError::Unavailable(why).into(),
        });
    }
    let oversized = drop_oversized(&store, kinds)?;
    Ok(Opened {
        replicas: Replicas::open(kinds.0, Some(store.clone()))?,
        store: Some(store),
        origin,
        trouble: None,
        other_pool,
        oversized,
    })
}

/// Drops what does not fit, before any of it is loaded.
fn drop_oversized(store: &ReplicaStore, (kinds, max): Kinds<'_>) -> Result<Vec<(String, String)>, DiskError> {
    let (mut loaded, mut oversized) = (0_usize, Vec::new());
    for (name, _) in kinds {
        let bytes = store.bytes(name)?;
        if loaded.saturating_add(bytes) <= max {
            loaded += bytes;
            continue;
        }
        store.forget(name)?;
        store.drop_draft(name)?;
        let why = format!(
            "the durable copy had {bytes} bytes beside {loaded} of others: more than --max-pool-bytes={max}; it was dropped"
        );
        oversized.push((name.clone(), why));
    }
    Ok(oversized)
}

/// Nothing is read from the disk, and nothing is written there.
fn in_memory((kinds, _): Kinds<'_>, why: &str) -> Result<Opened, DiskError> {
    Ok(Opened {
        replicas: Replicas::open(kinds, None)?,
        store: None,
        origin: Origin::in_memory(),
        trouble: Some(format!("{why}; copies are kept in memory only until the next start")),
        other_pool: None,
        oversized: Vec::new(),
    })
}

/// Where a damaged file is kept, in place of the one before.
fn move_aside(file: &Path) -> io::Result<PathBuf> {
    let mut aside = file.as_os_str().to_owned();
    aside.push(".damaged");
    let aside = PathBuf::from(aside);
    std::fs::rename(file, &aside)?;
    Ok(aside)
}

/// Drops the copy in `folder` for the next start; what this process still writes goes with it.
pub(super) fn remove(folder: &Path) -> io::Result<()> {
    match std::fs::remove_file(folder.join(FILE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// There is no space, or none for this user.
#[must_use]
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use yurt_apimachinery::kind::find_kind;
    use yurt_apimachinery::{Object, ResourceVersion};
    use yurt_runtime::Clock;
    use yurt_storage::OnlyWriter as _;
    use yurt_test_support::TestDir;

    use super::*;

    fn kinds() -> Vec<(String, &'static ResourceKind)> {
        vec![("services".to_owned(), find_kind("", "services").unwrap())]
    }

    fn real(path: &Path) -> Result<Arc<Disk>, OpenError> {
        Disk::open(path, Clock::system())
    }

    fn full(path: &Path) -> Result<Arc<Disk>, OpenError> {
        Err(OpenError::Full {
            path: path.to_owned(),
            why: "no space left".to_owned(),
        })
    }

    async fn list(opened: &Opened, name: &str) {
        let metadata = serde_json::json!({"namespace": "x", "name": name, "uid": name, "resourceVersion": "5"});
        let object = Object::from_value(
            serde_json::json!({"metadata": metadata}),
            find_kind("", "services").unwrap(),
        );
        let list = vec![object.unwrap()];
        let services = opened.replicas.named("services").unwrap();
        services
            .collection()
            .update(|held| held.restart(0, list, ResourceVersion(10)));
        opened.replicas.persist(None).await.unwrap();
        assert!(services.is_served());
    }

    fn held(opened: &Opened) -> Vec<String> {
        let services = opened.replicas.named("services").unwrap();
        let names = |held: &yurt_storage::Collection| held.objects().map(|object| object.name().to_owned()).collect();
        services.collection().read(names)
    }

    #[tokio::test]
    async fn full_disk_is_done_without_until_the_next_start() {
        let folder = TestDir::new();
        let open = |disk: &dyn Fn(&Path) -> Result<Arc<Disk>, OpenError>| {
            open(folder.path(), "p", (&kinds(), usize::MAX), disk).map_err(|error| error.to_string())
        };
        list(&open(&real).unwrap(), "stored").await;
        let opened = open(&full).unwrap();
        let why = opened.trouble.clone().unwrap();
        assert!(
            why.contains("no space left") && why.contains("until the next start"),
            "{why}"
        );
        assert!(opened.store.is_none() && held(&opened).is_empty());
        // Complete, served, and not written.
        list(&opened, "in memory").await;
        drop(opened);
        let opened = open(&real).unwrap();
        assert_eq!((held(&opened), &opened.trouble), (vec!["stored".to_owned()], &None));
    }

    #[tokio::test]
    async fn damage_that_does_not_go_away_is_done_without_too() {
        let folder = TestDir::new();
        let damaged = |path: &Path| -> Result<Arc<Disk>, OpenError> {
            std::fs::write(path, b"x").unwrap();
            Err(OpenError::Corrupt {
                path: path.to_owned(),
                why: "its pages make no sense".to_owned(),
            })
        };
        let opened =
            open(folder.path(), "p", (&kinds(), usize::MAX), &damaged).unwrap_or_else(|error| panic!("{error}"));
        assert!(opened.store.is_none());
        let why = opened.trouble.clone().unwrap();
        assert!(
            why.contains("replicas.redb.damaged") && why.contains("in memory only"),
            "{why}"
        );
    }

    /// After an upgrade, or the way back from one.
    #[tokio::test]
    async fn file_of_another_format_is_made_again() {
        let folder = TestDir::new();
        let open = |disk: &dyn Fn(&Path) -> Result<Arc<Disk>, OpenError>| {
            open(folder.path(), "p", (&kinds(), usize::MAX), disk).unwrap_or_else(|error| panic!("{error}"))
        };
        list(&open(&real), "stored").await;
        let asked = std::cell::Cell::new(0);
        let other = |path: &Path| match asked.replace(asked.get() + 1) {
            0 => Err(OpenError::Format {
                path: path.to_owned(),
                found: 9,
                supported: 1,
            }),
            _ => real(path),
        };
        let opened = open(&other);
        assert!(opened.store.is_some() && held(&opened).is_empty());
        let why = opened.trouble.clone().unwrap();
        assert!(why.contains("its format is 9") && why.contains("made again"), "{why}");
    }

    #[test]
    fn what_is_neither_damage_nor_want_of_space_is_said() {
        let folder = TestDir::new();
        let refused = |path: &Path| -> Result<Arc<Disk>, OpenError> {
            Err(OpenError::Unusable {
                path: path.to_owned(),
                why: "permission denied".to_owned(),
            })
        };
        assert!(open(folder.path(), "p", (&kinds(), usize::MAX), &refused).is_err());
    }
}
