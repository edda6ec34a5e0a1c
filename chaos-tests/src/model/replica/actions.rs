//! Actions that are possible in a state, within the bounds of the exploration.

use super::state::{Link, Node, Spent, State, Which};
use super::{Action, Mutation, Replica, Server};

/// Deliveries per step: one, or all.
const COUNTS: [usize; 2] = [1, usize::MAX];

// === impl Replica ===

impl Replica {
    pub(super) fn cloud_actions(&self, state: &State, actions: &mut Vec<Action>) {
        let (cloud, spent, bounds) = (&state.cloud, state.spent, self.bounds);
        if cloud.head() < bounds.changes {
            let objects = cloud.at(cloud.timeline(), cloud.head());
            for (key, object) in objects.iter().enumerate() {
                actions.push(Action::Put(key));
                actions.extend(object.map(|_| Action::Delete(key)));
            }
        }
        if bounds.lagging && cloud.lagging < cloud.head() {
            actions.push(Action::LaggingMoves);
        }
        if spent.compactions < bounds.compactions && cloud.forgotten < cloud.head() {
            actions.push(Action::Compact);
        }
        if spent.rollbacks < bounds.rollbacks {
            actions.extend((1..cloud.head()).map(Action::RollBack));
        }
    }

    pub(super) fn coordinator_actions(&self, state: &State, actions: &mut Vec<Action>) {
        let (held, spent, bounds) = (&state.coordinator.memory, state.spent, self.bounds);
        for timeline in 0..=state.cloud.timeline() {
            let head = state.cloud.log(timeline).len() as u8;
            let first = held.position + 1;
            if held.complete && timeline == held.generation {
                actions.extend((first..=head).map(|up_to| Action::FeedEvents(timeline, up_to)));
            } else if held.complete && self.is(Mutation::IgnoreGeneration) && first <= head {
                actions.push(Action::FeedEvents(timeline, head));
            }
            if !held.complete || bounds.differences || timeline != held.generation {
                actions.extend((1..=head).map(|at| Action::FeedSnapshot(timeline, at)));
            }
        }
        if self.is(Mutation::WipeOnLeaderChange) && spent.leaders < bounds.leaders && held.complete {
            actions.push(Action::LeaderChanges);
        }
        self.node_actions(&state.coordinator, Which::Coordinator, state.spent, actions);
        if held.complete {
            actions.extend(COUNTS.map(Action::Follow));
        }
        actions.push(Action::ListCoordinator);
    }

    fn node_actions(&self, node: &Node, which: Which, spent: Spent, actions: &mut Vec<Action>) {
        let crashes = match which {
            Which::Coordinator => spent.coordinator_crashes < self.bounds.coordinator_crashes,
            Which::Hub => spent.hub_crashes < self.bounds.hub_crashes,
        };
        let may_crash = crashes || spent.disks < self.bounds.disks;
        // A commit matters only to a node that may still crash.
        if may_crash && node.disk != node.memory && node.memory.complete {
            actions.push(Action::Commit(which));
        }
        if crashes && node.memory != node.disk {
            actions.push(Action::Crash(which));
        }
        if spent.disks < self.bounds.disks && node.memory.complete {
            actions.push(Action::LoseDisk(which));
        }
        let remembers = !(node.memory.tombstones.is_empty() && node.memory.ranges.is_empty());
        if spent.forgotten < self.bounds.forgotten && remembers {
            actions.push(Action::Forget(which));
        }
    }

    pub(super) fn hub_actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.node_actions(&state.hub, Which::Hub, state.spent, actions);
        if self.bounds.direct {
            let servers: &[Server] = match self.bounds.lagging {
                true => &[Server::Leading, Server::Lagging],
                false => &[Server::Leading],
            };
            for server in servers {
                actions.push(Action::WatchCloud(*server));
                if self.wants_list(state) {
                    actions.push(Action::ListCloud(*server));
                }
            }
        }
        if self.is(Mutation::FirstPagePublished) && !state.hub.memory.complete {
            actions.push(Action::FirstPage);
        }
    }

    /// True if the hub has no data, got 410, or its check of the timeline failed.
    fn wants_list(&self, state: &State) -> bool {
        let held = &state.hub.memory;
        let rolled_back = held.timeline != state.cloud.timeline();
        !held.complete || held.position < state.cloud.forgotten || rolled_back
    }

    pub(super) fn reader_actions(&self, state: &State, actions: &mut Vec<Action>) {
        match state.reader.link {
            Link::Fresh => actions.push(Action::List),
            Link::Away => actions.push(Action::Resume),
            Link::Streaming(_) => {
                actions.extend(COUNTS.map(Action::Read));
                if state.spent.cuts < self.bounds.cuts {
                    actions.push(Action::Cut);
                }
            }
        }
    }
}
