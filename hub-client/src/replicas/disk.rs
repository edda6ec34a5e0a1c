//! Opens the durable copy of the replicas. A file that is damaged, of another format or on a bad sector is moved aside
//! and replaced. A file on a disk that is full or read-only is read, and what the hub learns later is kept in memory
//! until the next start. Members of another pool are dropped. None of these prevents the hub's start.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use yurt_apimachinery::ResourceKind;
use yurt_pool_protocol::members;
use yurt_runtime::Clock;
use yurt_storage::embedded::replicas::ReplicaStore;
use yurt_storage::embedded::{Disk, OpenError};
use yurt_storage::{Oversized, Replicas, StorageError};

use super::origin::Origin;

#[cfg(test)]
pub(crate) mod failing_reads;

/// Name of the file in the directory of the durable copy.
pub const FILE: &str = "replicas.redb";
/// Name of the failure when the durable copy could not be opened unchanged.
pub const COPY: &str = "durable copy";
/// Name of the failure while the disk does not take changes of the replicas.
pub const STORING: &str = "storing of the replicas";

/// Error that prevents the use of the durable copy.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The file cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The file cannot be read.
    #[error(transparent)]
    Store(#[from] StorageError),
}

/// The durable copy and the findings of its opening.
pub(super) struct Opened {
    pub(super) replicas: Replicas,
    /// The store; `None` while the hub uses no file.
    pub(super) store: Option<ReplicaStore>,
    pub(super) origin: Origin,
    /// Fault of the file, and the measure taken.
    pub(super) failure: Option<String>,
    /// Pool of the stored members, if it is another one.
    pub(super) other_pool: Option<String>,
    /// Collections dropped because of their size, with reasons.
    pub(super) oversized: Vec<(String, String)>,
}

/// Destination of commits.
#[derive(Clone, Copy)]
enum Medium<'a> {
    /// To the file that this function opens.
    Disk(&'a dyn Fn(&Path) -> Result<Arc<Disk>, OpenError>),
    /// To memory; the file is read.
    Unwritten,
}

/// Name and kind of each collection, and the maximum bytes to load of all.
type Kinds<'a> = (&'a [(String, &'static ResourceKind)], usize);

// === impl DiskError ===

impl DiskError {
    fn is_unreadable(&self) -> bool {
        matches!(
            self,
            Self::Open(OpenError::Corrupt { .. } | OpenError::Format { .. } | OpenError::Unreadable { .. })
                | Self::Store(StorageError::Corrupt(_))
        )
    }

    fn takes_nothing(&self) -> bool {
        matches!(
            self,
            Self::Open(OpenError::Full { .. } | OpenError::ReadOnly { .. }) | Self::Store(StorageError::Full(_))
        )
    }
}

/// Opens the durable copy of `kinds` in `folder`, with the members of `pool`; `disk` opens the file.
pub(super) fn open(
    folder: &Path,
    pool: &str,
    kinds: Kinds<'_>,
    disk: &dyn Fn(&Path) -> Result<Arc<Disk>, OpenError>,
) -> Result<Opened, DiskError> {
    let open_once = || open_once(folder, pool, kinds, Medium::Disk(disk));
    match open_once() {
        Err(error) if error.is_unreadable() => {
            let aside = move_aside(&folder.join(FILE));
            let why = match &aside {
                Ok(aside) => format!("{error}; moved to {} and replaced", aside.display()),
                Err(problem) => format!("{error}; failed to move it aside ({problem})"),
            };
            match aside.map(|_| open_once()) {
                Ok(Ok(opened)) => Ok(Opened {
                    failure: Some(why),
                    ..opened
                }),
                Ok(Err(again)) => in_memory(folder, kinds, &format!("{why}; {again}")),
                Err(_) => in_memory(folder, kinds, &why),
            }
        }
        Err(error) if error.takes_nothing() => unwritten(folder, pool, kinds, &error.to_string()),
        opened => opened,
    }
}

fn open_once(folder: &Path, pool: &str, kinds: Kinds<'_>, medium: Medium<'_>) -> Result<Opened, DiskError> {
    let file = folder.join(FILE);
    let origin = Origin::open(folder, !file.exists());
    let disk = match medium {
        Medium::Disk(open) => open(&file)?,
        Medium::Unwritten => Disk::open_unwritten(&file, Clock::system())?,
    };
    let store = ReplicaStore::open(disk)?.packing();
    let other_pool = origin.other_pool(pool);
    if other_pool.is_some() {
        store.forget(members::COLLECTION)?;
    }
    // The pool is recorded before there are members of it. A file that is not written gets none.
    if let Err(error) = origin.set_pool(pool)
        && matches!(medium, Medium::Disk(_))
    {
        let why = format!("the record of the pool next to {}: {error}", file.display());
        return Err(match takes_nothing(&error) {
            true => StorageError::Full(why).into(),
            false => StorageError::Unavailable(why).into(),
        });
    }
    let (kinds, max) = kinds;
    let (replicas, oversized) = Replicas::open_within(kinds, store.clone(), max)?;
    let why = |Oversized { name, bytes, loaded }: Oversized| {
        let why = format!(
            "the durable copy had {bytes} bytes in addition to {loaded} of others: more than --max-pool-bytes={max}; it was dropped"
        );
        (name, why)
    };
    Ok(Opened {
        replicas,
        store: Some(store),
        origin,
        failure: None,
        other_pool,
        oversized: oversized.into_iter().map(why).collect(),
    })
}

/// Opens the file of a disk that takes nothing: what it has is served, and changes are kept in memory.
fn unwritten(folder: &Path, pool: &str, kinds: Kinds<'_>, why: &str) -> Result<Opened, DiskError> {
    match open_once(folder, pool, kinds, Medium::Unwritten) {
        Ok(opened) => Ok(Opened {
            failure: Some(in_memory_only(why)),
            ..opened
        }),
        Err(_) if !folder.join(FILE).exists() => in_memory(folder, kinds, why),
        Err(error) => in_memory(folder, kinds, &format!("{why}; it cannot be read either ({error})")),
    }
}

/// Opens replicas that neither read from nor write to the disk.
fn in_memory(folder: &Path, (kinds, _): Kinds<'_>, why: &str) -> Result<Opened, DiskError> {
    Ok(Opened {
        replicas: Replicas::open(kinds, None)?,
        store: None,
        origin: Origin::open(folder, false),
        failure: Some(in_memory_only(why)),
        other_pool: None,
        oversized: Vec::new(),
    })
}

fn in_memory_only(why: &str) -> String {
    format!("{why}; changes of the copies are kept in memory only until the next start")
}

/// Moves a damaged file aside, in place of an earlier one, and returns its new path.
fn move_aside(file: &Path) -> io::Result<PathBuf> {
    let mut aside = file.as_os_str().to_owned();
    aside.push(".damaged");
    let aside = PathBuf::from(aside);
    std::fs::rename(file, &aside)?;
    Ok(aside)
}

/// Deletes the durable copy in `folder` for the next start; later writes of this process are lost with it.
pub(super) fn remove(folder: &Path) -> io::Result<()> {
    match std::fs::remove_file(folder.join(FILE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// True if the disk takes nothing new: there is no space, or none for this user, or it is read-only.
#[must_use]
pub fn takes_nothing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::ReadOnlyFilesystem
    )
}

#[cfg(test)]
pub(crate) mod tests {
    use std::ops::Range;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use yurt_apimachinery::kind::find_kind;
    use yurt_apimachinery::{Object, ResourceVersion};
    use yurt_storage::OnlyWriter as _;
    use yurt_storage::embedded::{FileBackend, LockedFile};
    use yurt_test_support::TestDir;

    use super::failing_reads::FailingReads;
    use super::*;
    use crate::replicas::PoolData;
    use crate::replicas::origin::OriginVerdict;

    /// Input/output error.
    const EIO: i32 = 5;

    /// A file on a disk that may be full.
    #[derive(Debug)]
    struct Filling {
        file: LockedFile,
        is_full: Arc<AtomicBool>,
    }

    impl FileBackend for Filling {
        fn size(&self) -> io::Result<u64> {
            self.file.size()
        }

        fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            self.file.read_at(offset, out)
        }

        fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            match self.is_full.load(Ordering::Relaxed) {
                true => Err(io::ErrorKind::StorageFull.into()),
                false => self.file.write_at(offset, data),
            }
        }

        fn set_size(&self, size: u64) -> io::Result<()> {
            self.file.set_size(size)
        }

        fn sync(&self) -> io::Result<()> {
            self.file.sync()
        }
    }

    /// Opens a file on a disk that is full while `is_full` is set.
    pub(crate) fn filling(is_full: Arc<AtomicBool>, clock: Clock) -> impl Fn(&Path) -> Result<Arc<Disk>, OpenError> {
        move |path: &Path| {
            let (file, is_full) = (LockedFile::open(path).unwrap(), is_full.clone());
            Disk::open_on(path, Arc::new(Filling { file, is_full }), clock.clone())
        }
    }

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
        let names =
            |held: &yurt_collection::Collection| held.objects().map(|object| object.name().to_owned()).collect();
        services.collection().read(names)
    }

    #[tokio::test]
    async fn file_of_a_full_disk_is_read_and_stays_as_it_is_until_the_next_start() {
        let folder = TestDir::new();
        let open = |disk: &dyn Fn(&Path) -> Result<Arc<Disk>, OpenError>| {
            open(folder.path(), "p", (&kinds(), usize::MAX), disk).map_err(|error| error.to_string())
        };
        list(&open(&real).unwrap(), "stored").await;
        let opened = open(&full).unwrap();
        let why = opened.failure.clone().unwrap();
        assert!(
            why.contains("no space left") && why.contains("until the next start"),
            "{why}"
        );
        assert_eq!(held(&opened), ["stored"]);
        // Complete and served, but not written.
        list(&opened, "in memory").await;
        drop(opened);
        let opened = open(&real).unwrap();
        assert_eq!((held(&opened), &opened.failure), (vec!["stored".to_owned()], &None));
    }

    #[tokio::test]
    async fn full_disk_without_a_file_is_done_without() {
        let folder = TestDir::new();
        let opened = open(folder.path(), "p", (&kinds(), usize::MAX), &full).unwrap_or_else(|error| panic!("{error}"));
        let why = opened.failure.clone().unwrap();
        assert!(opened.store.is_none() && why.contains("no space left"), "{why}");
        assert!(!why.contains("either"), "nothing else is wrong: {why}");
        list(&opened, "in memory").await;
        assert!(!folder.path().join(FILE).exists());
    }

    #[tokio::test]
    async fn members_of_another_pool_are_not_served_from_a_disk_that_does_not_take_their_removal() {
        let folder = TestDir::new();
        let kinds = vec![(members::COLLECTION.to_owned(), find_kind("", "services").unwrap())];
        let open = |pool: &str, disk: &dyn Fn(&Path) -> Result<Arc<Disk>, OpenError>| {
            open(folder.path(), pool, (&kinds, usize::MAX), disk).unwrap_or_else(|error| panic!("{error}"))
        };
        let opened = open("p", &real);
        let replica = opened.replicas.named(members::COLLECTION).unwrap();
        replica
            .collection()
            .update(|held| held.restart(0, Vec::new(), ResourceVersion(10)));
        opened.replicas.persist(None).await.unwrap();
        drop((replica, opened));
        let record = folder.path().join("origin.json");
        let of_pool = std::fs::read(&record).unwrap();
        let is_served = |opened: &Opened| opened.replicas.named(members::COLLECTION).unwrap().is_served();
        assert!(is_served(&open("p", &full)));
        let opened = open("q", &full);
        assert_eq!(opened.other_pool.as_deref(), Some("p"));
        assert!(!is_served(&opened));
        drop(opened);
        std::fs::write(&record, of_pool).unwrap();
        assert!(is_served(&open("p", &real)), "the file is as it was");
    }

    #[tokio::test]
    async fn disk_that_does_not_take_changes_is_a_failure_until_it_does() {
        let (folder, (clock, hand)) = (TestDir::new(), Clock::fake());
        let is_full = Arc::new(AtomicBool::new(false));
        let disk = filling(is_full.clone(), clock.clone());
        let data = PoolData::open_with(folder.path(), "p", usize::MAX.into(), clock, &disk).unwrap();
        is_full.store(true, Ordering::Relaxed);
        let services = data.replicas().named("services").unwrap();
        services
            .collection()
            .update(|held| held.restart(0, Vec::new(), ResourceVersion(10)));
        for _ in 0..3 {
            data.persist_due().await;
            let why = data.failures().why(STORING);
            assert!(why.is_some_and(|why| why.contains(FILE)));
            hand.advance(Duration::from_secs(5));
        }
        assert!(!services.is_served());
        is_full.store(false, Ordering::Relaxed);
        data.persist_due().await;
        assert_eq!((data.failures().why(STORING), services.is_served()), (None, true));
    }

    #[tokio::test]
    async fn cluster_stays_known_on_a_full_disk() {
        let folder = TestDir::new();
        let open = |disk: &dyn Fn(&Path) -> Result<Arc<Disk>, OpenError>| {
            open(folder.path(), "p", (&kinds(), usize::MAX), disk).unwrap_or_else(|error| panic!("{error}"))
        };
        assert_eq!(open(&real).origin.judge("u1"), OriginVerdict::Same);
        assert_eq!(open(&full).origin.judge("u2"), OriginVerdict::Other);
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
        let why = opened.failure.clone().unwrap();
        assert!(
            why.contains("replicas.redb.damaged") && why.contains("in memory only"),
            "{why}"
        );
    }

    /// After an upgrade or a downgrade.
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
        let why = opened.failure.clone().unwrap();
        assert!(why.contains("its format is 9") && why.contains("replaced"), "{why}");
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

    #[tokio::test]
    async fn file_on_a_bad_sector_is_made_again() {
        let folder = TestDir::new();
        let open = |disk: &dyn Fn(&Path) -> Result<Arc<Disk>, OpenError>| {
            open(folder.path(), "p", (&kinds(), usize::MAX), disk).unwrap_or_else(|error| panic!("{error}"))
        };
        list(&open(&real), "stored").await;
        let bytes = std::fs::read(folder.path().join(FILE)).unwrap();
        let at = bytes.windows(6).position(|window| window == b"stored").unwrap() as u64;
        let asked = std::cell::Cell::new(0);
        let bad = |path: &Path| match asked.replace(asked.get() + 1) {
            0 => {
                let lost = move |read: Range<u64>| read.contains(&at).then(|| io::Error::from_raw_os_error(EIO));
                Disk::open_on(path, FailingReads::open(path, lost), Clock::system())
            }
            _ => real(path),
        };
        let opened = open(&bad);
        assert!(opened.store.is_some() && held(&opened).is_empty());
        let why = opened.failure.clone().unwrap();
        assert!(why.contains("os error 5") && why.contains("replaced"), "{why}");
    }
}
