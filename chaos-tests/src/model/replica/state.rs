//! One instant: the cloud, the coordinator's and a hub's copy with their disks, a client of the hub.

use super::cloud::{Cloud, Objects};
use super::copy::Copy;

/// A copy in memory and on the disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Node {
    /// The served copy.
    pub memory: Copy,
    /// The last commit.
    pub disk: Copy,
}

/// Connection of a client with its hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Link {
    /// The client must list: it never did, or it got 410.
    Fresh,
    /// The client will resume at its position.
    Away,
    /// A stream is open, of this generation.
    Streaming(u8),
}

/// A client of the hub, like client-go's informers: it has an RV and the objects delivered to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reader {
    /// Its connection.
    pub link: Link,
    /// Objects delivered to it.
    pub known: Objects,
    /// Its last RV.
    pub position: u8,
    /// Position at which its stream began to catch up; its last RV once it has.
    pub resumed_at: u8,
    /// Observer's knowledge: the timeline of its last delivery.
    pub timeline: u8,
    /// Observer's knowledge: its next resume may get 410 for a known reason.
    pub excused: bool,
    /// True if it listed at least once.
    pub listed: bool,
}

/// A rule that was broken on the path to this state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Broken {
    /// `C` went back within a generation, other than by a crash.
    PositionWentBack,
    /// A client got an RV below its own within a generation.
    ReaderWentBack,
    /// A client got a state that the cloud never had.
    Forged,
    /// A client got a deletion of an object that was never deleted.
    FalseDeletion,
    /// A client got 410 without a reason.
    Relist,
}

/// Number of environment actions so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Spent {
    /// Crashes of the coordinator.
    pub coordinator_crashes: u8,
    /// Crashes of the hub.
    pub hub_crashes: u8,
    /// Lost disks.
    pub disks: u8,
    /// Rollbacks.
    pub rollbacks: u8,
    /// Compactions of the cloud.
    pub compactions: u8,
    /// Number of times that tombstones were dropped.
    pub forgotten: u8,
    /// Cuts of the client's stream.
    pub cuts: u8,
    /// Changes of leader; only a mutant reacts to them.
    pub leaders: u8,
}

/// One instant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The cloud.
    pub cloud: Cloud,
    /// The coordinator, fed by any leader.
    pub coordinator: Node,
    /// The hub.
    pub hub: Node,
    /// Its client.
    pub reader: Reader,
    /// Faults so far.
    pub spent: Spent,
    /// First rule broken.
    pub broken: Option<Broken>,
}

// === impl Reader ===

impl Reader {
    /// A client at its start.
    pub fn new() -> Self {
        Self {
            link: Link::Fresh,
            known: Objects::default(),
            position: 0,
            resumed_at: 0,
            timeline: 0,
            excused: true,
            listed: false,
        }
    }
}

impl Default for Reader {
    fn default() -> Self {
        Self::new()
    }
}

// === impl State ===

impl State {
    /// Records a broken rule.
    pub fn breaks(&mut self, rule: Broken) {
        self.broken.get_or_insert(rule);
    }

    /// The node of the coordinator or of the hub.
    pub fn node(&mut self, which: Which) -> &mut Node {
        match which {
            Which::Coordinator => &mut self.coordinator,
            Which::Hub => &mut self.hub,
        }
    }
}

/// Owner of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Which {
    /// The coordinator's.
    Coordinator,
    /// The hub's.
    Hub,
}
