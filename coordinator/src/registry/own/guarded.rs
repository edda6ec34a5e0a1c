//! Writes of election leases: judged by the guard, and with the epoch record in the same transaction.

use std::time::Duration;

use bytes::Bytes;
use yurt_apimachinery::status::FieldError;
use yurt_apimachinery::{Object, ObjectKey, ResourceVersion, Status};
use yurt_pool_protocol::guard::{Attempt, Author, Caller, Election, Refusal, Written, node_of};
use yurt_pool_protocol::names::{BARS_PATH, ELECTION_KEY};
use yurt_storage::{Action, Durability, Expect, Op};

use super::{Failure, Intent, OwnStore, Write, ops};
use crate::feed::fence::EPOCH_KEY;
use crate::feed::members::Members;
use crate::lease_objects;
use crate::registry::Resource;
use crate::registry::leases;

// === impl OwnStore ===

impl OwnStore {
    /// A write of an election lease: judged, and with the epoch record in the same transaction when the holder changes.
    pub(super) async fn write_guarded(
        &self,
        write: Write<'_>,
        intent: &Intent,
    ) -> Result<Option<ResourceVersion>, Failure> {
        let key = write.key.as_str();
        let lease_write = self.lease_turns.begin(key);
        let _turn = lease_write.turn().await;
        let (before, duration) = lease_objects::standing(write.old);
        let (after, _) = lease_objects::standing(write.new);
        let members = self.electorate(key);
        if let Some(members) = members {
            check_numbers(&write, &intent.caller)?;
            if before != after {
                check_candidate(members, &write, &intent.caller, &after)?;
            }
        }
        let attempt = Attempt {
            author: &intent.author,
            has_resource_version: write.is_conditional,
            holder: write.new.map(|_| after.as_str()),
        };
        self.judge(write.resource, write.key, (&before, duration), attempt, &intent.caller)?;
        self.count(&write, intent).map_err(Failure::Status)?;
        if intent.dry_run {
            return Ok(None);
        }
        let renewed = lease_objects::renew_time(write.old) != lease_objects::renew_time(write.new);
        let mut ops = ops(write);
        if key == ELECTION_KEY && before != after {
            let owner = self.guard.owner_after(key, &intent.author, &before, &after);
            ops.push(self.next_epoch(&after, owner));
        }
        let rv = self.commit(ops).await?;
        let written = Written {
            before: &before,
            after: &after,
            renewed,
        };
        let now = self.clock.boot();
        self.guard.accepted(key, &intent.author, written, now);
        if members.is_some() && before != after && !after.is_empty() {
            self.guard.took_election(&intent.author.user, now);
        }
        Ok(Some(rv))
    }

    /// Judges a write that changes nothing, too: its author would take the answer for a renewal.
    pub(super) fn judge_repeat(
        &self,
        resource: &Resource,
        current: &Object,
        is_conditional: bool,
        intent: &Intent,
    ) -> Result<(), Status> {
        if !leases::is_guarded(resource, current.key()) {
            return Ok(());
        }
        let (holder, duration) = lease_objects::standing(Some(current));
        let attempt = Attempt {
            author: &intent.author,
            has_resource_version: is_conditional,
            holder: Some(holder.as_str()),
        };
        self.judge(resource, current.key(), (&holder, duration), attempt, &intent.caller)
    }

    fn judge(
        &self,
        resource: &Resource,
        key: &ObjectKey,
        standing: (&str, Duration),
        attempt: Attempt<'_>,
        caller: &Caller,
    ) -> Result<(), Status> {
        let now = self.clock.boot();
        let judged = match self.electorate(key.as_str()) {
            Some(members) => {
                let holder_is_member = node_of(standing.0).is_some_and(|node| members.contains(node));
                let election = Election {
                    caller,
                    holder_is_member,
                };
                self.guard
                    .judge_election(key.as_str(), standing, attempt, election, now)
            }
            None => {
                let judged = self.guard.judge(key.as_str(), standing, attempt, now);
                judged.map_err(Refusal::Conflict)
            }
        };
        judged.map_err(|refusal| match refusal {
            Refusal::Conflict(why) => Status::conflict(&resource.kind.group_resource(), key.name(), &why),
            Refusal::Barred { node, left } => {
                let seconds = left.as_secs() + 1;
                let why = format!(
                    "node {node:?} fed forged pool data and may not hold the lease for another {seconds} s; an administrator \
                     allows it before that with DELETE {BARS_PATH}/{node} at the coordinator"
                );
                Status::forbidden_because(&resource.kind.group_resource(), key.name(), &why)
            }
            Refusal::TooSoon(seconds) => {
                let why = format!(
                    "the election lease {key} was acquired by this user a moment ago; try again in {seconds} s, other \
                     users may acquire it now"
                );
                Status::too_many_requests(why, seconds)
            }
        })
    }

    /// Members that may hold the lease `key`, if it is the election lease of a pool.
    fn electorate(&self, key: &str) -> Option<&Members> {
        self.electorate.as_deref().filter(|_| key == ELECTION_KEY)
    }

    fn next_epoch(&self, holder: &str, owner: Option<Author>) -> Op {
        let election = self.fence.election();
        let record = election.next(holder, owner).encode();
        let expect = election.record.map_or(Expect::Absent, Expect::At);
        Op {
            key: EPOCH_KEY.to_owned(),
            expect,
            action: Action::Put(Bytes::from(record).into(), Durability::Durable),
        }
    }
}

/// Checks that only members are elected, and a node only under its own name.
fn check_candidate(members: &Members, write: &Write<'_>, caller: &Caller, holder: &str) -> Result<(), Status> {
    if holder.is_empty() {
        return Ok(());
    }
    let why = match (node_of(holder), caller) {
        (Some(node), Caller::Node(caller)) if caller != node => "a node may only be elected under its own name",
        (Some(node), _) if members.contains(node) => return Ok(()),
        (Some(_), _) => "only members of the NodePool may be elected",
        (None, _) => "holderIdentity must be <node>_<process>",
    };
    let resource = write.resource.kind.group_resource();
    Err(Status::forbidden_because(&resource, write.key.name(), why))
}

fn check_numbers(write: &Write<'_>, caller: &Caller) -> Result<(), Status> {
    let Some(new) = write.new else { return Ok(()) };
    let fault = leases::duration_fault(write.old, new);
    let fault = fault.or_else(|| match caller {
        Caller::Node(_) => leases::transitions_fault(write.old, new),
        Caller::Administrator | Caller::Other => None,
    });
    fault.map_or(Ok(()), |fault: FieldError| {
        let kind = write.resource.kind.group_kind();
        Err(Status::invalid(&kind, write.key.name(), &fault.into()))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::FutureExt as _;
    use yurt_apimachinery::ResourceVersion;

    use crate::lease_objects::RESOURCE;
    use crate::registry::Registry;
    use crate::registry::own::fake_storage::FakeStorage;
    use crate::registry::own::{self, Intent, OwnStore};

    /// Own objects over a store that does not finish writes of lease `slow`. Counts the writes.
    fn over_slow_store() -> (OwnStore, Registry, Arc<AtomicUsize>) {
        let writes = Arc::new(AtomicUsize::new(0));
        let counted = writes.clone();
        let storage = FakeStorage {
            write: Box::new(move |ops| {
                counted.fetch_add(1, Ordering::SeqCst);
                match ops[0].key.ends_with("/slow") {
                    true => Box::pin(std::future::pending()),
                    false => Box::pin(std::future::ready(Ok(ResourceVersion(1)))),
                }
            }),
            caught_up: Box::new(|| Ok(ResourceVersion(1))),
        };
        let (own, registry) = storage.open();
        (own, registry, writes)
    }

    #[test]
    fn lease_write_waits_for_earlier_ones_of_the_same_lease_alone() {
        let (own, registry, writes) = over_slow_store();
        let leases = registry.find(RESOURCE.0, RESOURCE.1).expect("a built-in kind");
        let create = async |name: &str| {
            let lease = serde_json::json!({"metadata": {"namespace": "kube-system", "name": name, "uid": "u"}});
            let lease = own::object(lease, leases).expect("a lease");
            let in_none = || std::future::ready(Ok(None));
            own.create(leases, &lease, &Intent::of_coordinator(), in_none).await
        };
        {
            let (mut first, mut second) = (Box::pin(create("slow")), Box::pin(create("slow")));
            assert!(first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
            assert_eq!(
                writes.load(Ordering::SeqCst),
                1,
                "the guard judges the second one after the first one"
            );
            let other = create("other").now_or_never();
            assert!(matches!(other, Some(Ok(Some(_)))), "{other:?}");
        }
        assert!(own.lease_turns.is_empty(), "nothing is kept of abandoned writes");
    }
}
