//! Membership: the nodes of `--initial-members`, or those that a leader has fed.
//!
//! With `--members-from-leader` both count. While neither source exists, no node is a member. With
//! `--trust-first-leader` every node of the cluster is one until the first snapshot of the members collection. Members
//! fed by a leader are loaded from the disk afterwards, until an administrator voids them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use yurt_apimachinery::ObjectKey;
use yurt_apimachinery::collecting::inserted;
use yurt_apimachinery::meta::dns_subdomain_errors;
use yurt_collection::Collection;
use yurt_pool_protocol::feed::Refusal;
use yurt_pool_protocol::members::COLLECTION;

use super::collection::PoolCollections;
use crate::config::Config;

/// The nodes of the pool.
#[derive(Debug)]
pub(crate) struct Members {
    policy: Policy,
    // Guards only the set; replaced as a whole by a reload.
    initial: RwLock<BTreeSet<String>>,
    collections: Arc<PoolCollections>,
}

/// Sources of the membership that the command line allows.
#[derive(Clone, Debug)]
pub(crate) struct Policy {
    /// `--initial-members`.
    pub(crate) initial: InitialMembers,
    /// `--members-from-leader`.
    pub(crate) takes_leaders: bool,
    /// `--trust-first-leader`.
    pub(crate) trusts_first: bool,
}

/// Present source of the membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Basis {
    /// No source: every node is refused.
    Nobody,
    /// No leader has fed the members yet; every node of the cluster is trusted to.
    FirstLeader,
    /// The command line.
    Initial,
    /// Members fed by a leader.
    Leader,
    /// The command line and the members fed by a leader.
    InitialAndLeader,
}

/// Source of `--initial-members`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InitialMembers {
    /// The flag is not set.
    None,
    /// Names on the command line.
    List(BTreeSet<String>),
    /// A file that is read again periodically.
    File(PathBuf),
}

// === impl Policy ===

impl Policy {
    /// The policy of the command line, and the present initial members. Blocks for one small read.
    ///
    /// # Errors
    /// A line that names the file.
    pub(crate) fn read(config: &Config) -> Result<(Self, BTreeSet<String>), String> {
        let policy = Self {
            initial: InitialMembers::parse(&config.initial_members),
            takes_leaders: config.members_from_leader,
            trusts_first: config.trust_first_leader,
        };
        let initial = policy.initial.read()?;
        Ok((policy, initial))
    }
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

    /// The present names. Blocks for one small read.
    ///
    /// # Errors
    /// A line that names the flag, the file, and a name that no Node can have.
    pub(crate) fn read(&self) -> Result<BTreeSet<String>, String> {
        let (names, origin) = match self {
            Self::None => return Ok(BTreeSet::new()),
            Self::List(names) => (names.clone(), String::new()),
            Self::File(path) => (read_file(path)?, format!("{}: ", path.display())),
        };
        for name in &names {
            if let Some(why) = dns_subdomain_errors(name).pop() {
                return Err(format!(
                    "--initial-members: {origin}{name:?} cannot be the name of a Node: {why}"
                ));
            }
        }
        Ok(names)
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
    let names = lines
        .flat_map(|line| line.split(','))
        .map(str::trim)
        .filter(|name| !name.is_empty());
    inserted(names.map(str::to_owned))
}

// === impl Basis ===

impl Basis {
    /// Text form in the feed's state.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Nobody => "nobody",
            Self::FirstLeader => "first-leader",
            Self::Initial => "initial-members",
            Self::Leader => "leader",
            Self::InitialAndLeader => "initial-members,leader",
        }
    }

    /// True if members fed by a leader count.
    pub(crate) fn has_leader(self) -> bool {
        matches!(self, Self::Leader | Self::InitialAndLeader)
    }
}

// === impl Members ===

impl Members {
    /// Members by `policy`, whose `--initial-members` were read as `initial`, and by the collection the feed fills.
    pub(crate) fn new(policy: Policy, initial: BTreeSet<String>, collections: Arc<PoolCollections>) -> Self {
        Self {
            policy,
            initial: RwLock::new(initial),
            collections,
        }
    }

    /// Source of the membership.
    pub(crate) fn basis(&self) -> Basis {
        let is_from_leader = self.of_leader(Collection::is_complete).unwrap_or_default();
        match (&self.policy.initial, is_from_leader) {
            (InitialMembers::None, true) => Basis::Leader,
            (InitialMembers::None, false) if self.policy.trusts_first => Basis::FirstLeader,
            (InitialMembers::None, false) => Basis::Nobody,
            (_, true) if self.policy.takes_leaders => Basis::InitialAndLeader,
            (_, _) => Basis::Initial,
        }
    }

    /// True while every node of the cluster is trusted because no leader has fed the members.
    pub(crate) fn on_trust(&self) -> bool {
        self.basis() == Basis::FirstLeader
    }

    /// True if a node belongs to the pool.
    pub(crate) fn contains(&self, node: &str) -> bool {
        let is_from_leader = || {
            let key = ObjectKey::new(None, node);
            self.of_leader(|held| held.object(&key).is_some()).unwrap_or_default()
        };
        match self.basis() {
            Basis::Nobody => false,
            Basis::FirstLeader => true,
            Basis::Initial => self.initial.read().contains(node),
            Basis::Leader => is_from_leader(),
            Basis::InitialAndLeader => self.initial.read().contains(node) || is_from_leader(),
        }
    }

    /// Names of the members; `None` while membership is on trust.
    pub(crate) fn names(&self) -> Option<BTreeSet<String>> {
        let basis = self.basis();
        if basis == Basis::FirstLeader {
            return None;
        }
        let mut names = self.initial.read().clone();
        if basis.has_leader() {
            self.of_leader(|held| names.extend(held.objects().map(|object| object.name().to_owned())));
        }
        Some(names)
    }

    /// Number of members; `None` while membership is on trust.
    pub(crate) fn count(&self) -> Option<usize> {
        let basis = self.basis();
        let initial = self.initial.read();
        if !basis.has_leader() {
            return (basis != Basis::FirstLeader).then(|| initial.len());
        }
        let is_from_leader = |held: &Collection, name: &String| held.object(&ObjectKey::new(None, name)).is_some();
        let count = |held: &Collection| held.len() + initial.iter().filter(|name| !is_from_leader(held, name)).count();
        self.of_leader(count)
    }

    /// Reads the collection that a leader fed; `None` in a process without that collection.
    fn of_leader<T>(&self, look: impl FnOnce(&Collection) -> T) -> Option<T> {
        let told = self.collections.named(COLLECTION)?;
        Some(told.objects().read(look))
    }

    /// Checks if `caller` may feed the names `told` as the membership. They must not be empty. They must contain the
    /// leader, unless `--initial-members` does: otherwise no node could correct them.
    ///
    /// # Errors
    /// The reason of the refusal.
    pub(super) fn judge<'a>(&self, caller: Option<&str>, told: impl Iterator<Item = &'a str>) -> Result<(), Refusal> {
        let (mut is_empty, mut has_caller) = (true, false);
        for name in told {
            is_empty = false;
            has_caller |= caller == Some(name);
        }
        let is_initial = |caller: &str| self.initial.read().contains(caller);
        let message = match caller {
            _ if is_empty => "a membership without any node is refused: it would lock out the whole pool".to_owned(),
            Some(caller) if has_caller || is_initial(caller) => return Ok(()),
            Some(caller) => format!(
                "a membership without the caller's own node, \"{caller}\", is refused: a member of the pool has to lead \
                 and feed it"
            ),
            None => "only a member of the pool may feed the membership".to_owned(),
        };
        Err(Refusal::Members { message })
    }

    /// Names of the members, once a leader has fed them: the flag alone may list fewer nodes than the pool has.
    pub(crate) fn names_from_leader(&self) -> Option<BTreeSet<String>> {
        let is_from_leader = self.of_leader(Collection::is_complete).unwrap_or_default();
        is_from_leader.then(|| self.names()).flatten()
    }

    /// True if the members come from a file.
    pub(crate) fn is_reloadable(&self) -> bool {
        matches!(self.policy.initial, InitialMembers::File(_))
    }

    /// Reads the file again; the previous names stay in force when it cannot be read. Blocks for one small read.
    pub(crate) fn reload(&self) {
        match self.policy.initial.read() {
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

    fn members(initial: &str, takes_leaders: bool, trusts_first: bool) -> Members {
        let kind = yurt_apimachinery::kind::find_kind("", "nodes").unwrap();
        let replicas = yurt_storage::Replicas::open(&[(COLLECTION.to_owned(), kind)], None).unwrap();
        let initial = InitialMembers::parse(initial);
        let names = initial.read().unwrap();
        let policy = Policy {
            initial,
            takes_leaders,
            trusts_first,
        };
        Members::new(policy, names, Arc::new(PoolCollections::new(replicas.iter())))
    }

    /// Feeds "a" as the only member.
    fn tell(members: &Members) {
        let told = members.collections.named(COLLECTION).unwrap();
        let node = br#"{"metadata":{"name":"a","uid":"u","resourceVersion":"5"}}"#;
        let node = yurt_apimachinery::Object::parse(node.as_slice().into(), told.objects().kind()).unwrap();
        told.objects()
            .update(|held| held.restart(0, vec![node], yurt_apimachinery::ResourceVersion(5)));
    }

    #[test]
    fn nobody_belongs_to_a_pool_that_nobody_has_told() {
        let members = members("", false, false);
        assert_eq!((members.basis(), members.count()), (Basis::Nobody, Some(0)));
        assert!(!members.contains("a") && !members.on_trust());
        tell(&members);
        assert_eq!(
            members.basis(),
            Basis::Leader,
            "it was fed before the flag was left out"
        );
        assert!(members.contains("a") && !members.contains("any"));
    }

    #[test]
    fn trust_is_asked_for_and_ends_with_the_first_snapshot() {
        let trusting = members("", false, true);
        assert!(trusting.contains("any") && trusting.names().is_none() && trusting.count().is_none());
        tell(&trusting);
        assert!(trusting.contains("a") && !trusting.contains("any"));
        assert_eq!(trusting.names_from_leader(), Some(BTreeSet::from(["a".to_owned()])));
    }

    #[test]
    fn leader_adds_to_the_initial_members_where_the_flag_says_so_only() {
        for (takes_leaders, basis, count) in [(false, Basis::Initial, 1), (true, Basis::InitialAndLeader, 2)] {
            let members = members("b", takes_leaders, false);
            assert_eq!(members.basis(), Basis::Initial);
            assert!(members.contains("b") && !members.contains("any"));
            assert_eq!(
                members.names_from_leader(),
                None,
                "no leader has fed the whole membership"
            );
            tell(&members);
            assert_eq!((members.basis(), members.count()), (basis, Some(count)));
            assert_eq!(members.names().unwrap().len(), count);
            assert!(members.contains("b") && members.contains("a") == takes_leaders);
        }
    }

    #[test]
    fn file_is_read_again_and_kept_when_it_vanishes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("members");
        std::fs::write(&path, "a").unwrap();
        let members = members(&format!("@{}", path.display()), false, false);
        assert!(members.is_reloadable() && members.contains("a"));
        std::fs::write(&path, "b").unwrap();
        members.reload();
        assert!(members.contains("b") && !members.contains("a"));
        std::fs::remove_file(&path).unwrap();
        members.reload();
        assert!(members.contains("b"));
    }

    #[test]
    fn name_that_no_node_can_have_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("members");
        std::fs::write(&path, "a\nN_2\n").unwrap();
        let file = path.display().to_string();
        for (value, parts) in [
            ("n1,N2", vec!["--initial-members: \"N2\"", "lower case"]),
            (&format!("@{file}"), vec!["--initial-members", &file, "\"N_2\""]),
        ] {
            let why = InitialMembers::parse(value).read().unwrap_err();
            assert!(parts.iter().all(|part| why.contains(part)), "{why}");
        }
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
