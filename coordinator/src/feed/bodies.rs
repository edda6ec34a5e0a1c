//! Bodies of a snapshot that is still arriving. Few are kept in memory, many in an unnamed file that ends with the
//! process. The disk bounds them, not the memory.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use yurt_apimachinery::{Object, ResourceKind, ResourceVersion};
use yurt_pool_protocol::feed::snapshot;

/// Bytes of bodies that one snapshot keeps in memory. A smaller snapshot uses no disk.
const IN_MEMORY_MAX: usize = 16 << 20;
/// Bytes that bodies leave free on the disk: elections and own objects need them more.
const DISK_RESERVE: u64 = 64 << 20;

/// The bodies of one snapshot by key.
#[derive(Debug, Default)]
pub(super) struct Bodies {
    in_memory: BTreeMap<String, Object>,
    memory_bytes: usize,
    on_disk: BTreeMap<String, BodyPlace>,
    file: Option<Spill>,
}

/// The file, and the offset of the next body.
#[derive(Clone, Debug)]
struct Spill {
    file: Arc<File>,
    end: u64,
}

/// One body in the file.
#[derive(Clone, Copy, Debug)]
struct BodyPlace {
    rv: ResourceVersion,
    offset: u64,
    length: usize,
}

/// A pending write of bodies to the disk.
#[derive(Debug)]
pub(super) struct Spilling {
    to: Option<Spill>,
    path: PathBuf,
}

/// Result of a [`Spilling`]: bodies that are on the disk.
#[derive(Debug)]
pub(super) struct Spilled {
    file: Spill,
    places: BTreeMap<String, BodyPlace>,
}

/// A view of all bodies, for reading without a lock.
#[derive(Debug)]
pub(super) struct Reading {
    in_memory: BTreeMap<String, Object>,
    on_disk: BTreeMap<String, BodyPlace>,
    file: Option<Arc<File>>,
}

// === impl Bodies ===

impl Bodies {
    /// True if `bytes` more fit into the memory.
    pub(super) fn have_room(&self, bytes: usize) -> bool {
        self.memory_bytes + bytes <= IN_MEMORY_MAX
    }

    /// Stores a body in memory.
    pub(super) fn keep(&mut self, key: String, object: Object) {
        self.memory_bytes += object.size();
        self.in_memory.insert(key, object);
    }

    /// Prepares a write of bodies to the disk; creates an unnamed file at `path` if there is none.
    pub(super) fn spilling(&self, path: PathBuf) -> Spilling {
        let to = self.file.clone();
        Spilling { to, path }
    }

    /// Records bodies that are on the disk.
    pub(super) fn keep_spilled(&mut self, spilled: Spilled) {
        self.file = Some(spilled.file);
        self.on_disk.extend(spilled.places);
    }

    /// All bodies, for reading.
    pub(super) fn reading(&self) -> Reading {
        Reading {
            in_memory: self.in_memory.clone(),
            on_disk: self.on_disk.clone(),
            file: self.file.as_ref().map(|spill| spill.file.clone()),
        }
    }

    /// The bodies to copy when more than half of the file is obsolete: snapshots that never end must not fill the disk.
    pub(super) fn wasted(&self) -> Option<Reading> {
        let spill = self.file.as_ref()?;
        let wanted: u64 = self.on_disk.values().map(|place| place.length as u64).sum();
        (spill.end > 2 * wanted + IN_MEMORY_MAX as u64).then(|| Reading {
            in_memory: BTreeMap::new(),
            ..self.reading()
        })
    }
}

impl snapshot::Bodies for Bodies {
    /// Keeps the bodies for which `is_wanted` is true.
    fn retain(&mut self, is_wanted: impl Fn(&str, ResourceVersion) -> bool) {
        self.in_memory
            .retain(|key, object| is_wanted(key, object.resource_version()));
        self.memory_bytes = self.in_memory.values().map(Object::size).sum();
        self.on_disk.retain(|key, place| is_wanted(key, place.rv));
    }

    /// Keys of all bodies.
    fn keys(&self) -> impl Iterator<Item = &String> {
        self.in_memory.keys().chain(self.on_disk.keys())
    }

    /// Bytes of all bodies. The file may be twice as large, and [`IN_MEMORY_MAX`] more: see [`Self::wasted`].
    fn bytes(&self) -> usize {
        self.memory_bytes + self.on_disk.values().map(|place| place.length).sum::<usize>()
    }
}

// === impl Spilling ===

impl Spilling {
    /// Appends bodies to the file. Blocks.
    ///
    /// # Errors
    /// Errors of the disk. Nothing is kept then, and earlier bodies stay.
    pub(super) fn write(self, objects: &[(String, Object)]) -> io::Result<Spilled> {
        let bodies = objects
            .iter()
            .map(|(key, object)| (key.clone(), object.resource_version(), object.bytes()));
        self.append(bodies.map(|(key, rv, bytes)| Ok((key, rv, bytes))))
    }

    fn append<B: AsRef<[u8]>>(
        self,
        bodies: impl Iterator<Item = io::Result<(String, ResourceVersion, B)>>,
    ) -> io::Result<Spilled> {
        let mut file = match self.to {
            Some(spill) => spill,
            None => Spill {
                file: Arc::new(nameless(&self.path)?),
                end: 0,
            },
        };
        let mut places = BTreeMap::new();
        for body in bodies {
            let (key, rv, bytes) = body?;
            let bytes = bytes.as_ref();
            let (offset, length) = (file.end, bytes.len());
            require_space(&file.file, length as u64)?;
            file.file.write_all_at(bytes, offset)?;
            file.end += length as u64;
            places.insert(key, BodyPlace { rv, offset, length });
        }
        Ok(Spilled { file, places })
    }
}

fn nameless(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)?;
    std::fs::remove_file(path)?;
    Ok(file)
}

fn require_space(file: &File, bytes: u64) -> io::Result<()> {
    let disk = rustix::fs::fstatvfs(file)?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if free >= bytes.saturating_add(DISK_RESERVE) {
        return Ok(());
    }
    let why = format!("{free} bytes are free, {DISK_RESERVE} of them are reserved for elections and own objects");
    Err(io::Error::new(io::ErrorKind::StorageFull, why))
}

// === impl Reading ===

impl Reading {
    /// True if reading blocks.
    pub(super) fn blocks(&self) -> bool {
        !self.on_disk.is_empty()
    }

    /// The bodies by key. May block.
    ///
    /// # Errors
    /// Errors of the disk.
    pub(super) fn read(self, kind: &ResourceKind) -> io::Result<BTreeMap<String, Object>> {
        let mut objects = self.in_memory;
        for (key, place) in &self.on_disk {
            let bytes = read_at(self.file.as_deref(), *place)?;
            let object = Object::parse(bytes.into(), kind).map_err(io::Error::other)?;
            objects.insert(key.clone(), object);
        }
        Ok(objects)
    }

    /// Copies the bodies on the disk into a new file. Blocks.
    ///
    /// # Errors
    /// Errors of the disk.
    pub(super) fn copy(self, path: PathBuf) -> io::Result<Spilled> {
        let to = Spilling { to: None, path };
        let body = |(key, place): (&String, &BodyPlace)| {
            let bytes = read_at(self.file.as_deref(), *place)?;
            Ok((key.clone(), place.rv, Bytes::from(bytes)))
        };
        to.append(self.on_disk.iter().map(body))
    }
}

fn read_at(file: Option<&File>, place: BodyPlace) -> io::Result<Vec<u8>> {
    let file = file.ok_or(io::ErrorKind::NotFound)?;
    let mut bytes = vec![0; place.length];
    file.read_exact_at(&mut bytes, place.offset)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use yurt_apimachinery::kind::find_kind;

    use yurt_pool_protocol::feed::snapshot::Bodies as _;

    use super::*;

    fn services() -> &'static ResourceKind {
        find_kind("", "services").unwrap()
    }

    fn body(name: &str, rv: u64, bytes: usize) -> (String, Object) {
        let metadata = serde_json::json!({"namespace": "x", "name": name, "resourceVersion": rv.to_string()});
        let value = serde_json::json!({"metadata": metadata, "data": "x".repeat(bytes)});
        let object = Object::parse(value.to_string().into(), services()).unwrap();
        (format!("x/{name}"), object)
    }

    fn spill(bodies: &mut Bodies, path: &Path, objects: &[(String, Object)]) {
        let spilled = bodies.spilling(path.to_owned()).write(objects).unwrap();
        bodies.keep_spilled(spilled);
    }

    #[test]
    fn what_is_on_the_disk_comes_back_as_it_was_and_unwanted_bodies_give_it_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("services.bodies");
        let mut bodies = Bodies::default();
        let (small, one, two) = (body("a", 1, 10), body("b", 2, 9 << 20), body("c", 3, 9 << 20));
        assert!(bodies.have_room(small.1.size()));
        bodies.keep(small.0.clone(), small.1.clone());
        assert!(!bodies.have_room(one.1.size() + two.1.size()));
        spill(&mut bodies, &path, &[one.clone(), two.clone()]);
        // The same keys with newer content, twice: the file has obsolete bodies.
        for round in 1..3 {
            let newer = [body("b", 2 + 10 * round, 9 << 20), body("c", 3 + 10 * round, 9 << 20)];
            spill(&mut bodies, &path, &newer);
        }
        assert!(!path.exists(), "it goes with the process");
        let all = bodies.reading().read(services()).unwrap();
        let versions: Vec<u64> = all.values().map(|object| object.resource_version().0).collect();
        assert_eq!(versions, [1, 22, 23]);
        bodies.retain(|key, rv| (key, rv.0) != ("x/c", 23));
        let wasted = bodies.wasted().expect("5 of 6 bodies are not wanted");
        bodies.keep_spilled(wasted.copy(path.clone()).unwrap());
        assert!(bodies.wasted().is_none());
        let left = bodies.reading().read(services()).unwrap();
        assert_eq!(left["x/b"].bytes(), body("b", 22, 9 << 20).1.bytes());
        assert_eq!(left.len(), 2);
        spill(&mut bodies, &path, std::slice::from_ref(&two));
        assert_eq!(bodies.reading().read(services()).unwrap()["x/c"].bytes(), two.1.bytes());
    }

    #[test]
    fn bodies_leave_space_for_what_matters_more() {
        let file = tempfile::tempfile().unwrap();
        require_space(&file, 1).expect("a disk with 64 MiB free");
        let refused = require_space(&file, u64::MAX / 2).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
    }
}
