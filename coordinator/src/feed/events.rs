//! Takes a batch of events of the cloud's log from the leader; `yurt_pool_protocol::feed::events` has the rules.

use std::collections::BTreeSet;

use serde_json::Value;
use yurt_apimachinery::Object;
use yurt_apimachinery::collecting::inserted;
use yurt_apimachinery::watch::EventType;
use yurt_pool_protocol::feed::decode;
use yurt_pool_protocol::feed::events::{apply, next, read_events};
use yurt_pool_protocol::feed::snapshot::Arriving;
use yurt_pool_protocol::members;
// The feeding call holds the fence: there is no other writer, and `apply` compares the generation.
use yurt_collection::Collection;
use yurt_pool_protocol::feed::{EventsCall, Progress, Refusal};
use yurt_storage::OnlyWriter as _;

use super::collection::PoolCollection;
use super::{Feed, FeedError, fence};
use crate::authn::User;

impl Feed {
    /// Applies one batch as a whole or not at all. It is durable a few seconds later: a crash costs a resend. Where
    /// several coordinators share the data, it is stored immediately, for the others to see.
    pub(super) async fn take_events(
        &self,
        collection: &PoolCollection,
        user: &User,
        body: &[u8],
    ) -> Result<Value, FeedError> {
        let call: EventsCall<'_> = decode(body)?;
        if !call.up_to.is_own() {
            Refusal::check_position("upTo", call.up_to)?;
        }
        let events = read_events(&call, collection.objects().kind())?;
        self.require_members(collection)?;
        self.admit(collection, events.iter().map(|(_, object)| object))?;
        if collection.objects().read(|held| next(held, &call))?.is_none() {
            self.cover(collection, call.generation, call.up_to).await?;
        }
        let (applied, guard) = {
            let election = self.enter(collection, &call.claim(), user)?;
            self.require_room(collection, &events)?;
            let judge = |held: &Collection, events: &[_]| self.judge_members(collection, user, held, events);
            let applied = collection.objects().update(|held| apply(held, &call, events, judge))?;
            // The collection goes on without an earlier leader's unfinished snapshot.
            *collection.arriving() = Arriving::default();
            self.metrics.batch(collection.name(), self.is_late(&election.holder));
            (applied, fence::guard(&election))
        };
        if self.replicas.is_shared() {
            self.persist(guard.as_ref()).await?;
            self.tell_freshness(collection, call.fresh).await;
        }
        collection.heard(call.fresh, self.clock.boot());
        Ok(Progress {
            applied,
            durable: collection.replica().durable().position.min(applied),
        }
        .to_json())
    }

    /// Checks the membership that results from these events, if the collection is the members.
    fn judge_members(
        &self,
        collection: &PoolCollection,
        user: &User,
        held: &Collection,
        events: &[(EventType, Object)],
    ) -> Result<(), Refusal> {
        if collection.name() != members::COLLECTION || events.is_empty() {
            return Ok(());
        }
        let mut names: BTreeSet<&str> = inserted(held.objects().map(Object::name));
        for (event_type, object) in events {
            match event_type {
                EventType::Deleted => names.remove(object.name()),
                _ => names.insert(object.name()),
            };
        }
        self.members.judge(user.node_name(), names.into_iter())
    }

    pub(super) fn fenced(&self) -> Refusal {
        Refusal::Fenced {
            store: self.fence.store().to_owned(),
        }
    }
}
