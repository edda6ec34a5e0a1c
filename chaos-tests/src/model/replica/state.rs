//! One instant: the cloud, the coordinator's and a hub's copy with their disks, a client of the hub.

use super::cloud::{Cloud, Objects};
use super::copy::Copy;

/// A copy in memory and on the disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Node {
    /// What is served.
    pub memory: Copy,
    /// What the last commit holds.
    pub disk: Copy,
}

/// How a client stands with its hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Link {
    /// It has to list: it never did, or it got 410.
    Fresh,
    /// It will resume where it stopped.
    Away,
    /// A stream is open, of this generation.
    Streaming(u8),
}

/// A client of the hub, as client-go's informers are: all it knows is an RV and what it was told.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reader {
    /// How it stands.
    pub link: Link,
    /// What it was told.
    pub known: Objects,
    /// Its last RV.
    pub position: u8,
    /// Where its stream began to catch up; its last RV once it has.
    pub resumed_at: u8,
    /// Observer's knowledge: the timeline of what it was told last.
    pub timeline: u8,
    /// Observer's knowledge: there is a reason why it may get 410 at its next resume.
    pub excused: bool,
    /// It listed at least once.
    pub listed: bool,
}

/// A rule that was broken on the way to this state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Broken {
    /// `C` went back within a generation, other than by a crash.
    PositionWentBack,
    /// A client was told an RV below its own within a generation.
    ReaderWentBack,
    /// A client was told a state that the cloud never had.
    Forged,
    /// A client heard that something is gone that was never deleted.
    FalseDeletion,
    /// A client got 410 without a reason.
    Relist,
}

/// How often what the environment does has happened.
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
    /// Times that deletions were forgotten.
    pub forgotten: u8,
    /// Cuts of the client's stream.
    pub cuts: u8,
    /// Changes of leader; only a mutant notices them.
    pub leaders: u8,
}

/// One instant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The cloud.
    pub cloud: Cloud,
    /// The coordinator, filled by whoever leads.
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
    /// A client that starts.
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
    /// Notes a broken rule.
    pub fn breaks(&mut self, rule: Broken) {
        self.broken.get_or_insert(rule);
    }

    /// Makes what the coordinator (or the hub) has now its last commit.
    pub fn node(&mut self, which: Which) -> &mut Node {
        match which {
            Which::Coordinator => &mut self.coordinator,
            Which::Hub => &mut self.hub,
        }
    }
}

/// Whose copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Which {
    /// The coordinator's.
    Coordinator,
    /// The hub's.
    Hub,
}
