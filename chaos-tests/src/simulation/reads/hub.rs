//! A hub of the simulated reads: a replica that follows the cloud or the coordinator, and recovers from its last
//! commit.
//!
//! Streams change the replica as in the hub's `replicas/reflector.rs`: events one by one, steps as a whole, bookmarks,
//! lists by difference. A switch is make-before-break. The hub's own code decides the next source when a source cannot
//! resume the replica, and checks the cloud's history in [`super::proof`].

use std::collections::VecDeque;
use std::time::Duration;

use crate::coordinator::Pool;
use yurt_apimachinery::watch::EventType;
use yurt_apimachinery::{Object, ResourceVersion};
use yurt_collection::{ChangeKind, Collection, Delivery, Expired, Limits, Reader, Recovered};
use yurt_pool_protocol::cloud_fallback::{Begin, CloudFallback, Wanted};
use yurt_pool_protocol::history::next_generation;
use yurt_pool_protocol::source;

use super::cloud::Cloud;
use super::{Mutation, Setting};
use crate::random::Random;

/// Source of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Cloud(usize),
    Coordinator,
}

pub(super) struct Hub {
    pub(super) held: Collection,
    limits: Limits,
    saved: Recovered,
    /// The last one is the newest; older ones continue until it is confirmed.
    streams: Vec<Stream>,
    fallback: CloudFallback,
    /// True if hubs that are followers reach the cloud.
    has_cloud: bool,
    pub(super) mutation: Option<Mutation>,
    /// The generation that the cloud was checked for, since the last break, with the result that it has its history.
    pub(super) proven: Option<u64>,
    /// The generation whose history the cloud does not have any more.
    pub(super) gone: Option<u64>,
    /// The source that was listed, while the watch is not open yet.
    listed: Option<Source>,
    /// Lists of the cloud.
    pub(super) lists: u32,
    /// Number of times that the cloud resumed the replica where the coordinator could not.
    pub(super) fallbacks: u32,
}

struct Stream {
    source: Source,
    opened_at: ResourceVersion,
    /// Generation of the copy when it was opened.
    generation: u64,
    /// Last RV sent by the cloud.
    sent: u64,
    /// Position in the coordinator's collection.
    reader: Option<Reader>,
    /// Frames under way.
    frames: VecDeque<Frame>,
    /// Position of the stream for its reader.
    at: ResourceVersion,
    /// True if the replica may resume elsewhere instead of taking a jump.
    has_fallback: bool,
    /// The frames of one step so far, and the position where it began.
    step: Option<(ResourceVersion, Vec<(EventType, Object)>)>,
}

pub(super) enum Frame {
    Event(EventType, Object),
    Bookmark(ResourceVersion),
    StepBegins,
    StepEnds { to: ResourceVersion, jumped: bool },
    Expired,
}

/// The environment of a hub.
pub(super) struct World<'a> {
    pub(super) cloud: &'a Cloud,
    pub(super) coordinator: Option<&'a Pool>,
}

// === impl Hub ===

impl Hub {
    pub(super) fn new(setting: Setting, mutation: Option<Mutation>) -> Self {
        let (has_cloud, limits) = (setting.has_cloud, setting.limits());
        Self {
            limits,
            fallback: CloudFallback::None,
            has_cloud,
            fallbacks: 0,
            held: Collection::with_limits(false, limits),
            saved: Recovered::default(),
            streams: Vec::new(),
            mutation,
            proven: None,
            gone: None,
            listed: None,
            lists: 0,
        }
    }

    pub(super) fn commit(&mut self) {
        self.saved = recovered(&self.held, self.mutation);
    }

    /// True if clients may read it: the generation is committed.
    pub(super) fn is_served(&self) -> bool {
        self.saved.generation == self.held.generation()
    }

    /// Kills the hub and starts it from the last commit, or from an empty disk.
    pub(super) fn kill(&mut self, disk_lost: bool) {
        if disk_lost {
            self.saved = Recovered::default();
        }
        self.held = Collection::with_limits(false, self.limits);
        self.held.recover(std::mem::take(&mut self.saved));
        self.commit();
        self.cut();
        (self.fallback, self.gone) = (CloudFallback::None, None);
    }

    /// Ends every connection. Checks of the cloud's history over them do not count any more.
    pub(super) fn cut(&mut self) {
        self.streams.clear();
        (self.proven, self.listed) = (None, None);
    }

    /// Connections to the cloud end.
    pub(super) fn lose_cloud(&mut self) {
        self.streams.retain(|stream| stream.source == Source::Coordinator);
        (self.proven, self.listed) = (None, None);
    }

    pub(super) fn follows(&self) -> Option<Source> {
        self.streams.last().map(|stream| stream.source)
    }

    /// Opens a stream of `source`, or of an alternative; the old one continues until this one is confirmed.
    pub(super) fn follow(&mut self, source: Source, world: &World<'_>, random: &mut Random) {
        let wanted = self.wanted(source);
        // Coordinator, cloud, and a list at the coordinator.
        for _ in 0..3 {
            let at_cloud = self
                .streams
                .first()
                .is_some_and(|stream| stream.source.kind() == source::Source::Cloud);
            let (kind, begin) = self.fallback.next(wanted, at_cloud);
            let target = match kind {
                kind if kind == source.kind() => source,
                _ => Source::Cloud(0),
            };
            if self.follows() == Some(target) || !self.can_open(target, world) {
                return;
            }
            let Err(Expired { .. }) = self.open(target, begin, world, random) else {
                return;
            };
            match target {
                Source::Coordinator if self.is_of_other_history(world) => self.fallback.contradicted(kind),
                _ => self.expired(kind, wanted),
            }
            if matches!(self.fallback, CloudFallback::Taken { .. }) && at_cloud {
                // Tried again later.
                return;
            }
        }
    }

    fn wanted(&self, source: Source) -> Wanted {
        Wanted {
            source: source.kind(),
            fallback: self.has_cloud.then_some(Duration::ZERO),
        }
    }

    fn expired(&mut self, kind: source::Source, wanted: Wanted) {
        let has_copy = self.held.is_complete() && self.mutation != Some(Mutation::NoFallback);
        self.fallbacks += u32::from(self.fallback.expired(kind, wanted, has_copy));
    }

    fn open(&mut self, source: Source, begin: Begin, world: &World<'_>, random: &mut Random) -> Result<(), Expired> {
        let (position, floor) = (self.held.position(), ResourceVersion::ZERO);
        let is_gone = source != Source::Coordinator && !self.has_cloud_history(world);
        if is_gone && begin == Begin::ResumeOnly {
            return Err(Expired { position, floor });
        }
        if is_gone || begin == Begin::List || !self.held.is_complete() {
            if !self.list(source, world, random) {
                return Ok(());
            }
            if random.once_in(2) {
                // The list is applied, and its watch is being opened: until then, the other streams continue.
                self.listed = Some(source);
                return Ok(());
            }
        }
        if source == Source::Coordinator && self.is_of_other_history(world) {
            return Err(Expired { position, floor });
        }
        let opened_at = self.held.position();
        let mut stream = Stream {
            source,
            opened_at,
            generation: self.held.generation(),
            sent: opened_at.0,
            reader: None,
            frames: VecDeque::new(),
            at: opened_at,
            step: None,
            has_fallback: begin != Begin::List && source == Source::Coordinator,
        };
        if source == Source::Coordinator {
            let Some(pool) = world.coordinator.map(Pool::objects) else {
                return Ok(());
            };
            stream.reader = Some(pool.read(|held| held.open(opened_at))?);
        } else {
            // Every position comes from the cloud, so it covers any position of ours.
            self.streams.clear();
            self.fallback.confirmed(source.kind());
        }
        self.streams.push(stream);
        Ok(())
    }

    /// True if the coordinator announces another generation of its data.
    fn is_of_other_history(&self, world: &World<'_>) -> bool {
        let there = world
            .coordinator
            .map(|pool| pool.objects().read(Collection::generation));
        let is_compared = self.mutation != Some(Mutation::GenerationNotCompared);
        is_compared && there.is_some_and(|there| there != self.held.generation())
    }

    fn can_open(&self, source: Source, world: &World<'_>) -> bool {
        source != Source::Coordinator || world.coordinator.is_some_and(Pool::is_served)
    }

    /// Lists everything. True if the list was applied.
    fn list(&mut self, source: Source, world: &World<'_>, random: &mut Random) -> bool {
        let (mut objects, at, generation) = match (source, world.coordinator) {
            (Source::Cloud(_), _) => {
                let (objects, at) = world.cloud.list();
                let held = self.held.generation();
                let generation = match self.gone == Some(held) {
                    true => next_generation(held, random.below(u64::MAX)),
                    false => held,
                };
                (objects, at, generation)
            }
            (Source::Coordinator, Some(pool)) if pool.is_served() => pool.objects().read(|held| {
                let snapshot = held.snapshot(None);
                (snapshot.objects, snapshot.position, held.generation())
            }),
            (Source::Coordinator, _) => return false,
        };
        self.lists += 1;
        match self.mutation {
            Some(Mutation::PartialList) => drop(objects.pop()),
            Some(Mutation::ListWithoutDeletions) if self.held.is_complete() => {
                for object in objects {
                    let known = self.held.object(object.key()).map(Object::resource_version);
                    if known != Some(object.resource_version()) {
                        self.held.apply(EventType::Modified, object);
                    }
                }
                self.held.advance(at);
                self.commit();
                return true;
            }
            _ => {}
        }
        let taken = if generation == self.held.generation() {
            self.held.replace(objects, at).is_ok()
        } else {
            self.held.restart(generation, objects, at);
            true
        };
        if taken {
            if source != Source::Coordinator {
                self.proven = Some(generation);
            }
            self.commit();
        }
        taken
    }

    /// Advances a stream: the server sends up to `max` frames, and up to `arrive` of those under way arrive.
    pub(super) fn pump(&mut self, max: usize, arrive: usize, world: &World<'_>, random: &mut Random) {
        if let Some(source) = self.listed.take_if(|_| random.once_in(3))
            && self.open(source, Begin::Resume, world, random).is_err()
        {
            let wanted = self.wanted(source);
            self.expired(source.kind(), wanted);
        }
        if self.streams.is_empty() {
            return;
        }
        let index = random.index(self.streams.len());
        let is_up = self.streams[index].send(max, world, self.mutation);
        if !is_up {
            self.streams.remove(index);
            return;
        }
        for _ in 0..arrive {
            let Some(frame) = self.streams[index].frames.pop_front() else {
                return;
            };
            let stream = &self.streams[index];
            let is_of_us = stream.generation == self.held.generation();
            if !is_of_us && self.mutation != Some(Mutation::StreamOfAnyHistory) {
                drop(self.streams.remove(index));
                return;
            }
            if stream.source != Source::Coordinator && self.contradicts(&frame) {
                return self.lose_cloud();
            }
            match self.take(index, frame) {
                Ok(true) => {
                    self.fallback.confirmed(self.streams[index].source.kind());
                    // Make before break: the older streams end now.
                    if index > 0 {
                        return drop(self.streams.drain(..index));
                    }
                }
                Ok(false) => {}
                Err(Expired { .. }) => return self.start_over(index, world, random),
            }
        }
    }

    fn start_over(&mut self, index: usize, world: &World<'_>, random: &mut Random) {
        let source = self.streams.remove(index).source;
        let wanted = self.wanted(source);
        self.expired(source.kind(), wanted);
        self.follow(source, world, random);
    }

    /// Applies a frame to the replica. True if the server has confirmed a position at or above ours.
    fn take(&mut self, index: usize, frame: Frame) -> Result<bool, Expired> {
        let stream = &mut self.streams[index];
        let at = match frame {
            Frame::Event(event, object) => {
                let rv = object.resource_version();
                match &mut stream.step {
                    Some((_, step)) if self.mutation != Some(Mutation::StepNotAtomic) => step.push((event, object)),
                    _ => {
                        let object = self.mutate(object);
                        self.held.apply(event, object);
                    }
                }
                rv
            }
            Frame::Bookmark(to) => {
                if stream.step.is_none() {
                    self.held.advance(to);
                }
                to
            }
            Frame::StepBegins => {
                stream.step.get_or_insert_with(|| (stream.at, Vec::new()));
                stream.at
            }
            Frame::StepEnds { to, jumped } => {
                let jumped = jumped && self.mutation != Some(Mutation::JumpNotTold);
                let is_behind = self.held.may_be_behind() && self.held.position() < to;
                let may_jump = self.mutation == Some(Mutation::JumpBeforeFallback);
                if jumped && is_behind && self.has_cloud && stream.has_fallback && !may_jump {
                    let (position, floor) = (self.held.position(), to);
                    return Err(Expired { position, floor });
                }
                match stream.step.take() {
                    Some((_, step)) if jumped && self.mutation == Some(Mutation::JumpFromAnywhere) => {
                        self.held.apply_step(to, step);
                    }
                    Some((from, step)) => self.held.follow_step((from, to), step, jumped)?,
                    None => {}
                }
                to
            }
            Frame::Expired => {
                let (position, floor) = (self.held.position(), ResourceVersion::ZERO);
                return Err(Expired { position, floor });
            }
        };
        let stream = &mut self.streams[index];
        stream.at = at;
        Ok(at >= stream.opened_at)
    }

    fn mutate(&self, object: Object) -> Object {
        match self.mutation {
            Some(Mutation::Renumber) => {
                let rv = object.resource_version().0.max(self.held.position().0 + 1);
                object.with_resource_version(ResourceVersion(rv + rv % 2))
            }
            _ => object,
        }
    }
}

/// The part of `held` that a commit stores.
pub(super) fn recovered(held: &Collection, mutation: Option<Mutation>) -> Recovered {
    let mut saved = held.to_recovered();
    match mutation {
        Some(Mutation::TombstonesNotDurable) => saved.tombstones.clear(),
        Some(Mutation::RangesNotDurable) => saved.ranges.clear(),
        Some(Mutation::GapsNotDurable) => saved.gaps.clear(),
        _ => {}
    }
    saved
}

// === impl Source ===

impl Source {
    fn kind(self) -> source::Source {
        match self {
            Self::Cloud(_) => source::Source::Cloud,
            Self::Coordinator => source::Source::Coordinator,
        }
    }
}

// === impl Stream ===

impl Stream {
    /// Sends pending frames of the server. True if the connection is up.
    fn send(&mut self, max: usize, world: &World<'_>, mutation: Option<Mutation>) -> bool {
        match (self.source, world.coordinator) {
            (Source::Cloud(server), _) => self.send_from_cloud(world.cloud, server, max),
            (Source::Coordinator, None) => return false,
            (Source::Coordinator, Some(pool)) => pool
                .objects()
                .read(|held| self.send_from_coordinator(held, max, mutation)),
        }
        true
    }

    fn send_from_cloud(&mut self, cloud: &Cloud, server: usize, max: usize) {
        let Some(events) = cloud.after(self.sent, server, max) else {
            return self.frames.push_back(Frame::Expired);
        };
        for (rv, event, object) in events {
            self.sent = *rv;
            self.frames.push_back(Frame::Event(*event, object.clone()));
        }
        let head = cloud.seen_by[server];
        if events.is_empty() && head > self.sent {
            self.sent = head;
            self.frames.push_back(Frame::Bookmark(ResourceVersion(head)));
        }
    }

    fn send_from_coordinator(&mut self, held: &Collection, max: usize, mutation: Option<Mutation>) {
        let Some(reader) = &mut self.reader else { return };
        let Ok(deliveries) = held.read(reader, max) else {
            return self.frames.push_back(Frame::Expired);
        };
        let at = reader.position();
        if mutation == Some(Mutation::BookmarkPastEvents) && !deliveries.is_empty() {
            self.frames.push_back(Frame::Bookmark(held.position()));
        }
        if deliveries.is_empty() && at == held.position() {
            self.frames.push_back(Frame::Bookmark(at));
        }
        self.frames
            .extend(deliveries.into_iter().map(|delivery| match delivery {
                Delivery::DiffBegin(_) => Frame::StepBegins,
                Delivery::DiffEnd { to, jumped } => Frame::StepEnds { to, jumped },
                Delivery::Gone(object) => Frame::Event(EventType::Deleted, object),
                Delivery::Current {
                    object, created: true, ..
                } => Frame::Event(EventType::Added, object),
                Delivery::Current { object, .. } => Frame::Event(EventType::Modified, object),
                Delivery::Exact(change) => {
                    let event = match change.kind {
                        ChangeKind::Created => EventType::Added,
                        ChangeKind::Updated => EventType::Modified,
                        ChangeKind::Deleted => EventType::Deleted,
                    };
                    Frame::Event(event, change.object.clone())
                }
            }));
    }
}
