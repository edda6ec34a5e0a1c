//! Model of a hub's client while the hub and its sources crash, lag, switch and go back in time.
//!
//! ```text
//!   cloud (one log, two servers) ──events, snapshots──► coordinator ──watch──┐
//!                    └───────────────────watch, list─────────────────────────┴─► hub ──watch, list──► client
//! ```
//!
//! A stream is modelled by its next request: the deliveries that a copy at `C` (or a client at its RV) would get now,
//! cut after any number of events. A switch is therefore possible at every moment: the next piece may come from any
//! source, and the deliveries of two open streams are covered. A stream changes only the generation it was opened for,
//! so one that continues after another source has begun a new generation changes nothing. A feed call may come from any
//! leader of any time, with any content the log ever had; the other model checks that no stale call is applied.
//!
//! Left out: the tail of exact history (a client always gets the last state of each key), selectors and filters,
//! freshness.

mod actions;
pub mod cloud;
pub mod copy;
mod properties;
mod rules;
pub mod scenarios;
pub mod state;

use std::sync::Arc;

use stateright::{Model, Property};

use crate::faults::{Fault, Struck};
use cloud::Cloud;
pub use rules::Server;
use state::{Link, Node, Reader, Spent, State, Which};

/// Bounds of an exploration.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// RVs of the cloud.
    pub changes: u8,
    /// True if there is a coordinator.
    pub coordinator: bool,
    /// True if the hub may follow the cloud itself.
    pub direct: bool,
    /// True if one of the cloud's servers lags.
    pub lagging: bool,
    /// True if the feed may bring snapshots although the coordinator is complete.
    pub differences: bool,
    /// True if the client resumes by the rule for new generations.
    pub resync: bool,
    /// See [`Spent`].
    pub coordinator_crashes: u8,
    /// See [`Spent`].
    pub hub_crashes: u8,
    /// See [`Spent`].
    pub disks: u8,
    /// See [`Spent`].
    pub rollbacks: u8,
    /// See [`Spent`].
    pub compactions: u8,
    /// See [`Spent`].
    pub forgotten: u8,
    /// See [`Spent`].
    pub cuts: u8,
    /// See [`Spent`].
    pub leaders: u8,
}

/// A rule left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// The coordinator numbers its copies itself.
    Renumber,
    /// `C` moves to the RV of a list that lacks a page.
    PartialList,
    /// The first page of the first list is published.
    FirstPagePublished,
    /// An incomplete copy is served as it is.
    ServeIncomplete,
    /// A reader ahead of `C` gets `C`.
    NoHold,
    /// A new leader starts with an empty coordinator.
    WipeOnLeaderChange,
    /// A list older than the held data is applied.
    SnapshotBehind,
    /// A deletion without a watch event is delivered with the RV of the list.
    RangeWithListVersion,
    /// Followers do not learn of a range in which objects may have been created and deleted unseen.
    GapsNotAnnounced,
    /// The deletion of an object that was never here is not kept.
    ForgetUnknown,
    /// A reader inside such a range is resumed all the same.
    NoGaps,
    /// Tombstones are dropped and the floor stays.
    ForgetWithoutFloor,
    /// Tombstones are not stored.
    TombstonesNotStored,
    /// A bookmark overtakes events.
    BookmarkPastEvents,
    /// A difference is fed as events.
    DiffAsEvents,
    /// A list's difference is applied event by event.
    StepNotAtomic,
    /// A coordinator's catch-up, the last state of each key, is applied event by event.
    CatchUpNotAtomic,
    /// The old source is left before the new one has confirmed the position.
    BreakBeforeMake,
    /// Changes that `C` covers are applied again.
    ApplyCovered,
    /// Generations are not compared.
    IgnoreGeneration,
    /// The coordinator's stream continues after the hub has begun another generation with a list of the cloud.
    StreamOfAnyGeneration,
    /// The coordinator announces the generation of a list after it has begun another one.
    GenerationReadApart,
    /// After a break the cloud is followed without a check of its history.
    NoTimelineProof,
    /// A new generation is served before it is durable.
    GenerationNotDurable,
    /// A client of the old generation is resumed by its number.
    NoResync,
    /// The same, once `C` has passed the highest RV served.
    ResyncOnlyWhileBehind,
    /// After a crash `C` of the commit counts as the highest RV served.
    HighFromCommit,
    /// A copy serves RVs above the mark of its last commit.
    ServeBeyondMark,
    /// `C` is committed before the data.
    PositionBeforeData,
}

/// The model.
#[derive(Clone, Debug)]
pub struct Replica {
    /// Bounds of the exploration.
    pub bounds: Bounds,
    /// The rule that is left out.
    pub mutation: Option<Mutation>,
    /// Counts the faults.
    pub struck: Arc<Struck>,
}

/// Possible actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// An object is created or changed in the cloud.
    Put(usize),
    /// An object is deleted in the cloud.
    Delete(usize),
    /// The slower server catches up by one change.
    LaggingMoves,
    /// The cloud compacts its history.
    Compact,
    /// The cloud is restored to its state at an RV.
    RollBack(u8),
    /// A feed call with events of a timeline, up to an RV.
    FeedEvents(u8, u8),
    /// A feed call with the state of a timeline at an RV.
    FeedSnapshot(u8, u8),
    /// Another leader is elected; only a mutant reacts to it.
    LeaderChanges,
    /// The hub applies the next event of its cloud watch.
    WatchCloud(Server),
    /// The hub lists the cloud.
    ListCloud(Server),
    /// The hub has the first page of a list; only a mutant serves it.
    FirstPage,
    /// The hub applies so many deliveries of its coordinator watch.
    Follow(usize),
    /// The hub lists the coordinator.
    ListCoordinator,
    /// A copy is committed.
    Commit(Which),
    /// kill -9.
    Crash(Which),
    /// kill -9, with the loss of the disk.
    LoseDisk(Which),
    /// A copy drops its tombstones.
    Forget(Which),
    /// The client lists.
    List,
    /// The client resumes at its RV.
    Resume,
    /// The client reads so many deliveries.
    Read(usize),
    /// The client's stream is cut.
    Cut,
}

/// Distance of a mark from `C`.
const MARK_AHEAD: u8 = 1;

// === impl Replica ===

impl Replica {
    fn is(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    fn fault(&self, state: &mut State, action: Action) {
        match action {
            Action::Compact => {
                state.spent.compactions += 1;
                state.cloud.forgotten = state.cloud.head();
            }
            Action::RollBack(rv) => {
                state.spent.rollbacks += 1;
                state.cloud.roll_back(rv);
            }
            Action::LeaderChanges => {
                state.spent.leaders += 1;
                let held = &mut state.coordinator.memory;
                held.replace(&Default::default(), held.position);
            }
            Action::Crash(which) => {
                match which {
                    Which::Coordinator => state.spent.coordinator_crashes += 1,
                    Which::Hub => state.spent.hub_crashes += 1,
                }
                self.crash(state, which);
            }
            Action::LoseDisk(which) => {
                state.spent.disks += 1;
                state.node(which).disk = copy::Copy::default();
                self.crash(state, which);
            }
            Action::Forget(which) => {
                state.spent.forgotten += 1;
                let raise_floor = !self.is(Mutation::ForgetWithoutFloor);
                state.node(which).memory.forget(raise_floor);
                state.reader.excused |= which == Which::Hub && raise_floor;
            }
            Action::Cut => {
                state.spent.cuts += 1;
                rules::excuse_cut_difference(state, Which::Hub);
                state.reader.link = Link::Away;
            }
            _ => {}
        }
    }
}

impl Model for Replica {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            cloud: Cloud::new(),
            coordinator: Node::default(),
            hub: Node::default(),
            reader: Reader::new(),
            spent: Spent::default(),
            broken: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        self.cloud_actions(state, actions);
        if self.bounds.coordinator {
            self.coordinator_actions(state, actions);
        }
        self.hub_actions(state, actions);
        self.reader_actions(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Put(key) => state.cloud.put(key),
            Action::Delete(key) => state.cloud.delete(key),
            Action::LaggingMoves => state.cloud.lagging += 1,
            Action::FeedEvents(timeline, up_to) => self.feed_events(&mut state, timeline, up_to),
            Action::FeedSnapshot(timeline, at) => self.feed_snapshot(&mut state, timeline, at),
            Action::WatchCloud(server) => self.hub_watches_cloud(&mut state, server),
            Action::ListCloud(server) => self.hub_lists_cloud(&mut state, server),
            Action::FirstPage => self.hub_lists_first_page(&mut state),
            Action::Follow(count) => self.hub_follows(&mut state, count),
            Action::ListCoordinator => self.hub_lists_coordinator(&mut state),
            Action::Commit(which) => self.commit(&mut state, which),
            Action::List => self.reader_lists(&mut state),
            Action::Resume => self.reader_resumes(&mut state),
            Action::Read(count) => self.reader_reads(&mut state, count),
            fault => self.fault(&mut state, fault),
        }
        self.tidy(&mut state);
        if state == *last {
            return None;
        }
        if let Some(fault) = fault_of(action) {
            self.struck.count(fault);
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        self.all_properties()
    }
}

impl Replica {
    /// Removes state that has no effect any more.
    fn tidy(&self, state: &mut State) {
        let (spent, bounds) = (state.spent, self.bounds);
        let may_lose_disk = spent.disks < bounds.disks;
        if spent.coordinator_crashes >= bounds.coordinator_crashes && !may_lose_disk {
            state.coordinator.disk = copy::Copy::default();
        }
        if spent.hub_crashes >= bounds.hub_crashes && !may_lose_disk {
            state.hub.disk = copy::Copy::default();
        }
        for which in [Which::Coordinator, Which::Hub] {
            let needs_mark = self.needs_mark(state, which);
            let held = &mut state.node(which).memory;
            held.mark = if needs_mark { held.mark } else { 0 };
            held.served_to = if held.served_to > held.position {
                held.served_to
            } else {
                0
            };
        }
        if state.reader.link == Link::Fresh {
            // It will drop everything it has.
            let (timeline, link) = (state.reader.timeline, state.reader.link);
            state.reader = Reader {
                timeline,
                link,
                ..Reader::new()
            };
        }
        if !bounds.lagging {
            state.cloud.lagging = 0;
        }
        if !bounds.coordinator {
            state.coordinator = Node::default();
        }
    }
}

/// The fault that an action represents.
fn fault_of(action: Action) -> Option<Fault> {
    match action {
        Action::Compact => Some(Fault::CloudCompacted),
        Action::RollBack(_) => Some(Fault::CloudRolledBack),
        Action::WatchCloud(Server::Lagging) | Action::ListCloud(Server::Lagging) => Some(Fault::CloudLagging),
        Action::Crash(Which::Coordinator) => Some(Fault::CoordinatorKilled),
        Action::Crash(Which::Hub) => Some(Fault::HubKilled),
        Action::LoseDisk(Which::Hub) => Some(Fault::HubDiskLost),
        Action::LoseDisk(Which::Coordinator) => Some(Fault::StoreLost),
        Action::Forget(_) => Some(Fault::HistoryForgotten),
        Action::Cut | Action::Follow(1) | Action::Read(1) => Some(Fault::StreamCut),
        _ => None,
    }
}
