//! Names of the pool's members, as its collection has them.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;
use yurt_apimachinery::ResourceVersion;
use yurt_pool_protocol::members;
use yurt_storage::{Replica, Replicas};

/// The pool's members, for everything that needs to know no more of the pool's data.
pub struct Membership {
    replica: Option<Arc<Replica>>,
    /// Names as last read, cached so that filters need not gather them per object.
    known: Mutex<Option<MemberNames>>,
}

/// Names of the members at one position.
#[derive(Clone)]
struct MemberNames {
    /// Generation and `C` of the collection.
    at: (u64, ResourceVersion),
    names: Arc<BTreeSet<String>>,
}

// === impl Membership ===

impl Membership {
    pub(super) fn new(replicas: &Replicas) -> Self {
        Self {
            replica: replicas.named(members::COLLECTION),
            known: Mutex::default(),
        }
    }

    /// The pool's members; `None` while they are unknown. The names and the check for completeness are of one snapshot.
    #[must_use]
    pub fn names(&self) -> Option<Arc<BTreeSet<String>>> {
        let replica = self.replica.as_ref()?;
        let known = self.known.lock().clone();
        let read = replica.collection().read(|held| {
            let at = (held.generation(), held.position());
            held.is_complete().then(|| {
                known.filter(|known| known.at == at).unwrap_or_else(|| MemberNames {
                    at,
                    names: Arc::new(members::names(held.objects())),
                })
            })
        });
        self.known.lock().clone_from(&read);
        read.map(|read| read.names)
    }

    /// Receiver that ticks after every change of the collection; `None` if the hub has none.
    #[must_use]
    pub fn changes(&self) -> Option<watch::Receiver<u64>> {
        self.replica.as_ref().map(|replica| replica.collection().subscribe())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use yurt_apimachinery::Object;
    use yurt_collection::Collection;
    use yurt_runtime::Clock;
    use yurt_storage::OnlyWriter as _;
    use yurt_test_support::TestDir;

    use super::*;
    use crate::replicas::PoolData;

    fn member(name: &str) -> Object {
        let metadata = json!({"name": name, "uid": name, "resourceVersion": "5"});
        let member =
            json!({"apiVersion": members::kind().api_version(), "kind": members::kind().kind, "metadata": metadata});
        Object::from_value(member, members::kind()).unwrap()
    }

    #[test]
    fn members_are_those_of_the_collection_at_every_moment() {
        let folder = TestDir::new();
        let data = PoolData::open(folder.path(), "p", usize::MAX, Clock::system()).unwrap();
        let told = || {
            data.membership()
                .names()
                .map(|names| names.iter().cloned().collect::<Vec<_>>().join(","))
        };
        assert_eq!(told(), None, "not known");
        let copy = data.replicas().named(members::COLLECTION).unwrap();
        let list = |names: &[&str], generation, at| {
            let list = names.iter().map(|name| member(name)).collect();
            copy.collection()
                .update(|held| held.restart(generation, list, ResourceVersion(at)));
        };
        list(&["n1"], 0, 5);
        assert_eq!(told().as_deref(), Some("n1"));
        list(&["n1", "n2"], 0, 6);
        assert_eq!(told().as_deref(), Some("n1,n2"));
        list(&["n3"], 7, 6);
        assert_eq!(told().as_deref(), Some("n3"), "another generation at the same number");
        copy.collection().update(Collection::distrust);
        assert_eq!(told(), None, "not known any more");
    }
}
