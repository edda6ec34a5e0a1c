//! The leader's feed in the simulated reads: the algorithm of the hub's `pool/feed.rs`, with its real messages, over a
//! faulty link. The link loses calls and answers, repeats calls, and delivers some after the leader has changed.

use std::collections::BTreeSet;

use crate::coordinator::Pool;
use serde_json::Value;
use yurt_apimachinery::ResourceVersion;
use yurt_collection::{Collection, Delivery, Reader};
use yurt_pool_protocol::feed;
use yurt_pool_protocol::feed::{Envelope, as_events};
use yurt_pool_protocol::history::next_generation;
use yurt_pool_protocol::resume::{CopyState, ResumePlan};

use super::Mutation;
use super::hub::Hub;
use super::setting::MESSAGE_MAX;
use crate::faults::{Fault, Struck};
use crate::random::Random;

/// Most calls that wait to arrive late or again.
const MAIL_MAX: usize = 64;

pub(super) struct Feeder {
    pub(super) hub: usize,
    pub(super) store: String,
    pub(super) epoch: u64,
    reader: Option<Reader>,
    fed: ResourceVersion,
    snapshot: bool,
    /// True if the coordinator has newer states than ours under our number.
    is_contradicted: bool,
    /// Bytes of one message.
    message: usize,
}

/// A call on its way.
#[derive(Clone)]
struct Call {
    hub: usize,
    epoch: u64,
    store: String,
    path: &'static str,
    body: bytes::Bytes,
}

/// The link between leaders and the coordinator.
#[derive(Default)]
pub(super) struct Post {
    late: Vec<Call>,
    /// True if calls are lost, late or repeated.
    pub(super) is_rough: bool,
    /// Store and epoch of the present leader.
    pub(super) present: (String, u64),
    /// Set if a call of a former leader was applied.
    pub(super) violation: Option<String>,
    /// Calls applied, and rejected.
    pub(super) taken: u64,
    pub(super) refused: u64,
    /// True if the last rejection was that the coordinator has another history.
    is_contradicted: bool,
    /// A snapshot was applied: the coordinator's data is durable.
    pub(super) is_durable: bool,
}

/// The coordinator, and the counters of its link.
pub(super) struct Door<'a> {
    pub(super) pool: &'a Pool,
    pub(super) post: &'a mut Post,
    pub(super) random: &'a mut Random,
    pub(super) struck: &'a Struck,
    pub(super) mutation: Option<Mutation>,
}

/// No answer, or a rejection: the feed reads the coordinator's position again.
struct Interrupted;

// === impl Feeder ===

impl Feeder {
    pub(super) fn new(hub: usize, store: String, epoch: u64, message: usize) -> Self {
        Self {
            hub,
            store,
            epoch,
            reader: None,
            fed: ResourceVersion::ZERO,
            snapshot: false,
            is_contradicted: false,
            message,
        }
    }

    /// The hub was killed: its open reader is gone.
    pub(super) fn reopen(&mut self) {
        (self.reader, self.snapshot) = (None, false);
    }

    /// Sends the pending deliveries, about `max` of them.
    pub(super) fn feed(&mut self, hub: &mut Hub, max: usize, door: &mut Door<'_>) {
        if !hub.held.is_complete() {
            return;
        }
        if self.reader.is_none() {
            self.begin(hub, door);
            self.open(&hub.held, door);
        }
        let held = &hub.held;
        let Some(mut reader) = self.reader.take() else { return };
        self.reader = self.follow(&mut reader, held, max, door).ok().map(|()| reader);
    }

    /// Gives the hub's copy a number of its own if the coordinator has another history.
    fn begin(&mut self, hub: &mut Hub, door: &mut Door<'_>) {
        let place = |held: &Collection| CopyState {
            position: held.position(),
            generation: held.generation(),
            complete: held.is_complete(),
        };
        let (there, here) = (door.pool.objects().read(place), place(&hub.held));
        let random = door.random.below(u64::MAX);
        let is_refused = std::mem::take(&mut self.is_contradicted) && hub.holds();
        match ResumePlan::of(there, here, hub.holds(), random) {
            ResumePlan::Begin(generation) if door.mutation == Some(Mutation::NumberTakenOver) => {
                hub.held.adopt(generation.min(there.generation));
            }
            ResumePlan::Begin(generation) => hub.held.adopt(generation),
            _ if is_refused => hub.held.adopt(next_generation(here.generation, random)),
            _ => {}
        }
    }

    fn open(&mut self, held: &Collection, door: &mut Door<'_>) {
        let there = |held: &Collection| (held.position(), held.generation());
        let (position, generation) = door.pool.objects().read(there);
        if std::mem::take(&mut self.snapshot) || !door.pool.is_served() || generation != held.generation() {
            self.reader = self.send_snapshot(position, held, door).ok();
        } else if position <= held.position() {
            match held.open(position) {
                Ok(reader) => (self.reader, self.fed) = (Some(reader), position),
                Err(_) => self.snapshot = true,
            }
        }
    }

    fn follow(
        &mut self,
        reader: &mut Reader,
        held: &Collection,
        max: usize,
        door: &mut Door<'_>,
    ) -> Result<(), Interrupted> {
        let Ok((deliveries, step)) = read(reader, held, max) else {
            self.snapshot = true;
            return Err(Interrupted);
        };
        if deliveries.is_empty() && reader.position() == self.fed {
            return Ok(());
        }
        let events = match door.mutation {
            Some(Mutation::DifferenceAsEvents) => as_events(self.fed, &without_ends(&deliveries)),
            _ => as_events(self.fed, &deliveries),
        };
        let Some(events) = events else {
            self.snapshot = true;
            return Err(Interrupted);
        };
        let batches = feed::batches(events, reader.position(), self.message);
        let step = step && door.mutation != Some(Mutation::DifferenceAsEvents);
        if step && batches.len() > 1 {
            self.snapshot = true;
            return Err(Interrupted);
        }
        for (batch, up_to) in batches {
            let body = self.envelope(held).events(self.fed, &batch, up_to, true, step);
            self.call("services/events", body, door)?;
            self.fed = up_to;
        }
        Ok(())
    }

    fn send_snapshot(
        &mut self,
        after: ResourceVersion,
        held: &Collection,
        door: &mut Door<'_>,
    ) -> Result<Reader, Interrupted> {
        let snapshot = held.snapshot(None);
        let is_told = !door.pool.is_served() && door.mutation != Some(Mutation::SnapshotWithoutHistory);
        let history = is_told.then(|| held.history(MESSAGE_MAX));
        let envelope = self.envelope(held);
        let index: Vec<_> = feed::index_parts(&snapshot.objects, self.message)
            .iter()
            .map(|part| envelope.index(after, snapshot.position, part, history.as_ref().filter(|_| !part.more)))
            .collect();
        let mut answer = Value::Null;
        for body in index {
            answer = self.call("services/snapshot", body, door)?;
        }
        let missing: Vec<String> = serde_json::from_value(answer["missing"].clone()).unwrap_or_default();
        let wanted: BTreeSet<&str> = missing.iter().map(String::as_str).collect();
        let objects = snapshot.objects.iter().filter(|o| wanted.contains(o.key().as_str()));
        let mut chunks = feed::chunks(objects, self.message);
        if chunks.is_empty() {
            chunks.push(Vec::new());
        }
        let last = chunks.len() - 1;
        for (index, chunk) in chunks.iter().enumerate() {
            let body = self.envelope(held).bodies(snapshot.position, chunk, index == last);
            self.call("services/snapshot/bodies", body, door)?;
        }
        self.fed = snapshot.position;
        Ok(snapshot.reader)
    }

    fn envelope(&self, held: &Collection) -> Envelope<'_> {
        Envelope {
            store: &self.store,
            epoch: self.epoch,
            generation: held.generation(),
        }
    }

    fn call(&mut self, path: &'static str, body: bytes::Bytes, door: &mut Door<'_>) -> Result<Value, Interrupted> {
        let call = Call {
            hub: self.hub,
            epoch: self.epoch,
            store: self.store.clone(),
            path,
            body,
        };
        let answer = door.send(call);
        self.is_contradicted |= std::mem::take(&mut door.post.is_contradicted);
        answer
    }
}

/// Returns the next deliveries, and whether they are one step, which is then complete.
fn read(reader: &mut Reader, held: &Collection, max: usize) -> Result<(Vec<Delivery>, bool), yurt_collection::Expired> {
    let mut deliveries = held.read(reader, max)?;
    let step = matches!(deliveries.first(), Some(Delivery::DiffBegin(_)));
    while step && !matches!(deliveries.last(), Some(Delivery::DiffEnd { .. })) {
        deliveries.extend(held.read(reader, usize::MAX)?);
    }
    Ok((deliveries, step))
}

fn without_ends(deliveries: &[Delivery]) -> Vec<Delivery> {
    let is_end = |delivery: &&Delivery| matches!(delivery, Delivery::DiffEnd { .. });
    deliveries
        .iter()
        .filter(|delivery| !is_end(delivery))
        .cloned()
        .collect()
}

// === impl Door ===

impl Door<'_> {
    fn send(&mut self, call: Call) -> Result<Value, Interrupted> {
        if self.post.is_rough {
            match self.random.below(40) {
                0 => {
                    self.struck.count(Fault::MessageLost);
                    return Err(Interrupted);
                }
                1 => {
                    self.struck.count(Fault::MessageLate);
                    self.post.keep(call);
                    return Err(Interrupted);
                }
                2 => {
                    self.struck.count(Fault::MessageDuplicated);
                    self.post.keep(call.clone());
                }
                3 => {
                    self.struck.count(Fault::AnswerLost);
                    let _ = self.arrive(&call);
                    return Err(Interrupted);
                }
                _ => {}
            }
        }
        self.arrive(&call)
    }

    /// Delivers a call that was kept.
    pub(super) fn deliver_late(&mut self) {
        if self.post.late.is_empty() {
            return;
        }
        let index = self.random.index(self.post.late.len());
        let call = self.post.late.swap_remove(index);
        let _ = self.arrive(&call);
    }

    fn arrive(&mut self, call: &Call) -> Result<Value, Interrupted> {
        let node = format!("hub-{}", call.hub);
        let leads = (&call.store, call.epoch) == (&self.post.present.0, self.post.present.1);
        match self.pool.take(&node, call.path, &call.body) {
            Ok(answer) => {
                self.post.taken += 1;
                if !leads {
                    let what = format!("taken from epoch {} while {:?} leads", call.epoch, self.post.present);
                    self.post.violation.get_or_insert(what);
                }
                self.post.is_durable |= call.path.contains("snapshot");
                Ok(answer)
            }
            Err(refusal) => {
                self.post.refused += 1;
                self.post.is_contradicted = refusal["reason"] == "backwards";
                if !leads {
                    self.struck.count(Fault::StaleFeed);
                } else if refusal["reason"] == "fenced" {
                    let what = format!("epoch {} leads and was refused: {refusal}", call.epoch);
                    self.post.violation.get_or_insert(what);
                }
                Err(Interrupted)
            }
        }
    }
}

// === impl Post ===

impl Post {
    /// A link with lost, late and repeated calls.
    pub(super) fn rough() -> Self {
        Self {
            is_rough: true,
            ..Self::default()
        }
    }

    fn keep(&mut self, call: Call) {
        if self.late.len() < MAIL_MAX {
            self.late.push(call);
        }
    }
}
