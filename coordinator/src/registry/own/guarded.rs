//! Writes of election leases: judged by the guard, and with the epoch record in the same transaction.

use std::time::Duration;

use bytes::Bytes;
use yurt_apimachinery::{Object, ObjectKey, ResourceVersion, Status};
use yurt_storage::{Action, Durability, Expect, Op};

use super::{Failure, Intent, OwnStore, Write, op};
use crate::authn::NODE_PREFIX;
use crate::feed::fence::EPOCH_KEY;
use crate::registry::Resource;
use crate::registry::leases::{self, Attempt, Author, Written};

// === impl OwnStore ===

impl OwnStore {
    /// A write of an election lease: judged, and with the epoch record in the same transaction when the holder changes.
    pub(super) async fn write_guarded(
        &self,
        write: Write<'_>,
        intent: &Intent,
    ) -> Result<Option<ResourceVersion>, Failure> {
        let _turn = self.guard.turn.lock().await;
        let key = write.key.as_str();
        let (before, duration) = leases::standing(write.old);
        let (after, _) = leases::standing(write.new);
        if key == leases::ELECTION_KEY && before != after {
            self.check_candidate(&write, &intent.author, &after)?;
        }
        let attempt = Attempt {
            author: &intent.author,
            has_resource_version: write.is_conditional,
            holder: write.new.map(|_| after.as_str()),
        };
        self.judge(write.resource, write.key, (&before, duration), attempt)?;
        if intent.dry_run {
            return Ok(None);
        }
        let mut ops = vec![op(&write)];
        if key == leases::ELECTION_KEY && before != after {
            let owner = self.guard.owner_after(key, &intent.author, &before, &after);
            ops.push(self.next_epoch(&after, owner));
        }
        let rv = self.commit(ops).await?;
        let written = Written {
            before: &before,
            after: &after,
            renewed: leases::renew_time(write.old) != leases::renew_time(write.new),
        };
        self.guard.accepted(key, &intent.author, written, self.clock.boot());
        Ok(Some(rv))
    }

    /// A write that changes nothing is judged all the same: its author would take the answer for a renewal.
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
        let (holder, duration) = leases::standing(Some(current));
        let attempt = Attempt {
            author: &intent.author,
            has_resource_version: is_conditional,
            holder: Some(holder.as_str()),
        };
        self.judge(resource, current.key(), (&holder, duration), attempt)
    }

    fn judge(
        &self,
        resource: &Resource,
        key: &ObjectKey,
        standing: (&str, Duration),
        attempt: Attempt<'_>,
    ) -> Result<(), Status> {
        let judged = self.guard.judge(key.as_str(), standing, attempt, self.clock.boot());
        judged.map_err(|why| Status::conflict(&resource.kind.group_resource(), key.name(), &why))
    }

    /// Only members may be elected, and a node only under its own name.
    fn check_candidate(&self, write: &Write<'_>, author: &Author, holder: &str) -> Result<(), Status> {
        let Some(members) = self.electorate.as_ref().filter(|_| !holder.is_empty()) else {
            return Ok(());
        };
        let candidate = holder.split_once('_').map(|(node, _)| node);
        let caller = author.user.strip_prefix(NODE_PREFIX);
        let why = match candidate {
            Some(node) if caller.is_some_and(|caller| caller != node) => {
                "a node may only be elected under its own name"
            }
            Some(node) if members.contains(node) => return Ok(()),
            Some(_) => "only members of the NodePool may be elected",
            None => "holderIdentity must be <node>_<process>",
        };
        Err(Status::forbidden_because(
            &write.resource.kind.group_resource(),
            write.key.name(),
            why,
        ))
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
