//! Decides which nodes belong to the pool: those of `--initial-members`, those the feed has told, or, before anybody
//! knows, every node with a certificate of the cluster.
//!
//! Trust ends with the first snapshot of the members collection. It is given on an empty store only: afterwards the
//! membership comes from the disk.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use yurt_apimachinery::ObjectKey;
use yurt_storage::Collection;

use super::Refusal;
use super::collection::PoolCollection;

pub(crate) use yurt_storage::members::COLLECTION;

/// The nodes of the pool.
#[derive(Debug)]
pub(crate) struct Members {
    source: InitialMembers,
    // Guards only the set; replaced as a whole by a reload.
    initial: RwLock<BTreeSet<String>>,
    told: Arc<PoolCollection>,
}

/// Where `--initial-members` come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InitialMembers {
    /// The flag is not set.
    None,
    /// Names on the command line.
    List(BTreeSet<String>),
    /// A file that is read again now and then.
    File(PathBuf),
}

// === impl InitialMembers ===

impl InitialMembers {
    /// Reads the flag's value.
    pub(crate) fn parse(value: &str) -> Self {
        match value.strip_prefix('@') {
            Some(path) => Self::File(path.into()),
            None if value.trim().is_empty() => Self::None,
            None => Self::List(names(value)),
        }
    }

    /// The names as they are now. Blocks for one small read.
    ///
    /// # Errors
    /// A line that names the file.
    pub(crate) fn read(&self) -> Result<BTreeSet<String>, String> {
        match self {
            Self::None => Ok(BTreeSet::new()),
            Self::List(names) => Ok(names.clone()),
            Self::File(path) => read_file(path),
        }
    }
}

fn read_file(path: &Path) -> Result<BTreeSet<String>, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("--initial-members: cannot read {}: {error}", path.display()))?;
    Ok(names(&text))
}

/// Names separated by commas or line ends; `#` begins a comment.
fn names(text: &str) -> BTreeSet<String> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    lines
        .flat_map(|line| line.split(','))
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

// === impl Members ===

impl Members {
    /// Members from `source`, read as `initial`, and from the collection the feed fills.
    pub(crate) fn new(source: InitialMembers, initial: BTreeSet<String>, told: Arc<PoolCollection>) -> Self {
        Self {
            source,
            initial: RwLock::new(initial),
            told,
        }
    }

    /// Whether nobody has told the membership yet: every node of the cluster is let in then.
    pub(crate) fn on_trust(&self) -> bool {
        self.source == InitialMembers::None && !self.told.objects().read(Collection::is_complete)
    }

    /// Whether a node belongs to the pool.
    pub(crate) fn contains(&self, node: &str) -> bool {
        let told = || {
            self.told
                .objects()
                .read(|held| held.object(&ObjectKey::new(None, node)).is_some())
        };
        self.initial.read().contains(node) || told() || self.on_trust()
    }

    /// Their names; `None` while membership is on trust.
    pub(crate) fn names(&self) -> Option<BTreeSet<String>> {
        if self.on_trust() {
            return None;
        }
        let mut names = self.initial.read().clone();
        self.told
            .objects()
            .read(|held| names.extend(held.objects().map(|object| object.name().to_owned())));
        Some(names)
    }

    /// How many they are; `None` while membership is on trust.
    pub(crate) fn count(&self) -> Option<usize> {
        if self.on_trust() {
            return None;
        }
        let initial = self.initial.read();
        let is_told = |held: &Collection, name: &String| held.object(&ObjectKey::new(None, name)).is_some();
        let count = |held: &Collection| held.len() + initial.iter().filter(|name| !is_told(held, name)).count();
        Some(self.told.objects().read(count))
    }

    /// Whether the names `told` may become the membership by the word of `caller`. A pool that shuts its leader out has nobody
    /// who could tell it better.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn judge<'a>(&self, caller: Option<&str>, told: impl Iterator<Item = &'a str>) -> Result<(), Refusal> {
        let (mut is_empty, mut has_caller) = (true, false);
        for name in told {
            is_empty = false;
            has_caller |= caller == Some(name);
        }
        let is_initial = |caller: &str| self.initial.read().contains(caller);
        let message = match caller {
            _ if is_empty => "a membership without any node is not taken: it would shut the whole pool out".to_owned(),
            Some(caller) if has_caller || is_initial(caller) => return Ok(()),
            Some(caller) => format!(
                "a membership without the caller's own node, \"{caller}\", is not taken: a node that belongs to the pool has to \
                 lead and to tell it"
            ),
            None => "the membership is taken from a node that belongs to it only".to_owned(),
        };
        Err(Refusal::Members { message })
    }

    /// Their names, once a leader has told them: what the flag alone says may be less than the pool.
    pub(crate) fn told_names(&self) -> Option<BTreeSet<String>> {
        let is_told = self.told.objects().read(Collection::is_complete);
        is_told.then(|| self.names()).flatten()
    }

    /// Whether the members come from a file.
    pub(crate) fn is_reloadable(&self) -> bool {
        matches!(self.source, InitialMembers::File(_))
    }

    /// Reads the file again; the names before stay in force when it cannot be read. Blocks for one small read.
    pub(crate) fn reload(&self) {
        match self.source.read() {
            Ok(names) => {
                let mut initial = self.initial.write();
                if *initial != names {
                    tracing::info!(members = names.len(), "Initial members reloaded");
                    *initial = names;
                }
            }
            Err(error) => tracing::warn!(%error, "Keeping the previous initial members"),
        }
    }
}

#[cfg(test)]
mod tests {
    use yurt_storage::OnlyWriter as _;

    use super::*;

    fn members(flag: &str) -> Members {
        let kind = yurt_apimachinery::kind::find_kind("", "nodes").unwrap();
        let replicas = yurt_storage::Replicas::open(&[(COLLECTION.to_owned(), kind)], None).unwrap();
        let told = Arc::new(PoolCollection::new(replicas.named(COLLECTION).unwrap().clone()));
        let source = InitialMembers::parse(flag);
        let initial = source.read().unwrap();
        Members::new(source, initial, told)
    }

    #[test]
    fn trust_is_given_without_a_flag_and_ends_with_the_first_snapshot() {
        let trusting = members("");
        assert!(trusting.contains("any") && trusting.names().is_none());
        let node = br#"{"metadata":{"name":"a","uid":"u","resourceVersion":"5"}}"#;
        let node = yurt_apimachinery::Object::parse(node.as_slice().into(), trusting.told.objects().kind()).unwrap();
        trusting
            .told
            .objects()
            .update(|held| held.restart(0, vec![node], yurt_apimachinery::ResourceVersion(5)));
        assert!(trusting.contains("a") && !trusting.contains("any"));
        assert_eq!(trusting.told_names(), Some(BTreeSet::from(["a".to_owned()])));
        let configured = members("b");
        assert!(
            configured.contains("b") && !configured.contains("any"),
            "a flag leaves no room for trust"
        );
        assert_eq!(configured.told_names(), None, "nobody has said that these are all");
    }

    #[test]
    fn file_is_read_again_and_kept_when_it_vanishes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("members");
        std::fs::write(&path, "a").unwrap();
        let members = members(&format!("@{}", path.display()));
        assert!(members.is_reloadable() && members.contains("a"));
        std::fs::write(&path, "b").unwrap();
        members.reload();
        assert!(members.contains("b") && !members.contains("a"));
        std::fs::remove_file(&path).unwrap();
        members.reload();
        assert!(members.contains("b"));
    }

    #[test]
    fn names_come_from_lists_and_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("members");
        std::fs::write(&path, "a, b # two\n# none\n\nc\n").unwrap();
        let of = |value: &str| {
            InitialMembers::parse(value)
                .read()
                .map(|names| names.into_iter().collect::<Vec<_>>())
        };
        assert_eq!(of("a,b , c"), Ok(vec!["a".into(), "b".into(), "c".into()]));
        assert_eq!(of(&format!("@{}", path.display())), of("a,b,c"));
        assert_eq!(InitialMembers::parse(" "), InitialMembers::None);
        let missing = of("@/nonexistent/members").unwrap_err();
        assert!(
            missing.contains("--initial-members") && missing.contains("/nonexistent/members"),
            "{missing}"
        );
    }
}
