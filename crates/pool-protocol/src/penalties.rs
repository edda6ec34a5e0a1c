//! Times for which a node is excluded from something: longer with each repetition, forgotten after a day without.
//!
//! Pure: no I/O, no clock.

use std::collections::BTreeMap;
use std::time::Duration;

use yurt_apimachinery::time::BootTime;

/// Time of the first, second, third penalty, and of every further one.
pub const TIMES: [Duration; 4] = [
    Duration::from_secs(10 * 60),
    Duration::from_secs(3600),
    Duration::from_secs(6 * 3600),
    Duration::from_secs(24 * 3600),
];
/// Time after the end of a penalty until it is forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(24 * 3600);
/// Maximum number of nodes that are remembered; the one whose penalty ends first is dropped.
const NODES_MAX: usize = 1024;

/// Penalties by node.
#[derive(Debug, Default)]
pub struct Penalties(BTreeMap<String, Penalty>);

/// Last penalty of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Penalty {
    /// End of the penalty.
    pub until: BootTime,
    /// Number of penalties so far.
    pub count: usize,
}

// === impl Penalties ===

impl Penalties {
    /// Begins a penalty of `node`. Returns its time. During a penalty a further one changes nothing.
    pub fn add(&mut self, node: &str, now: BootTime) -> Duration {
        if let Some(left) = self.left(node, now) {
            return left;
        }
        self.0.retain(|_, penalty| now < penalty.until + FORGOTTEN_AFTER);
        let count = self.0.get(node).map_or(0, |penalty| penalty.count) + 1;
        let time = TIMES[(count - 1).min(TIMES.len() - 1)];
        if self.0.len() >= NODES_MAX && !self.0.contains_key(node) {
            let first = self.0.iter().min_by_key(|(_, penalty)| penalty.until);
            let first = first.map(|(node, _)| node.clone());
            first.and_then(|node| self.0.remove(&node));
        }
        let until = now + time;
        self.0.insert(node.to_owned(), Penalty { until, count });
        time
    }

    /// Time that is left of the penalty of `node`; `None` if there is none now.
    pub fn left(&self, node: &str, now: BootTime) -> Option<Duration> {
        let penalty = self.0.get(node).filter(|penalty| now < penalty.until)?;
        Some(penalty.until.since(now))
    }

    /// Nodes with a penalty now.
    pub fn present(&self, now: BootTime) -> impl Iterator<Item = (&str, Penalty)> {
        let present = self.0.iter().filter(move |(_, penalty)| now < penalty.until);
        present.map(|(node, penalty)| (node.as_str(), *penalty))
    }

    /// Forgets the penalties of `node`, or of all nodes. Returns true if there was one.
    pub fn lift(&mut self, node: Option<&str>) -> bool {
        match node {
            Some(node) => self.0.remove(node).is_some(),
            None => !std::mem::take(&mut self.0).is_empty(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> BootTime {
        BootTime::from_boot(Duration::from_secs(secs))
    }

    #[test]
    fn penalties_grow_and_are_forgotten_after_a_day_without() {
        let mut penalties = Penalties::default();
        let mut now = at(1);
        for expected in TIMES.iter().chain([&TIMES[3]]) {
            assert_eq!(penalties.add("n1", now), *expected);
            let half = now + *expected / 2;
            assert_eq!(penalties.left("n1", half), Some(*expected / 2));
            assert_eq!(penalties.add("n1", half), *expected / 2, "it is not counted twice");
            now += *expected;
            assert_eq!(penalties.left("n1", now), None);
        }
        assert_eq!(penalties.left("n2", at(1)), None);
        assert_eq!(penalties.add("n1", now + FORGOTTEN_AFTER), TIMES[0]);
    }

    #[test]
    fn penalties_are_lifted_for_one_or_all() {
        let mut penalties = Penalties::default();
        penalties.add("n1", at(1));
        penalties.add("n2", at(1));
        assert!(penalties.lift(Some("n1")) && !penalties.lift(Some("n1")));
        let left: Vec<_> = penalties.present(at(2)).map(|(node, _)| node).collect();
        assert_eq!(left, ["n2"]);
        assert!(penalties.lift(None) && penalties.left("n2", at(2)).is_none());
        assert_eq!(penalties.add("n1", at(3)), TIMES[0], "what was lifted does not count");
    }

    #[test]
    fn remembered_nodes_are_bounded() {
        let mut penalties = Penalties::default();
        for number in 0..=NODES_MAX as u64 {
            penalties.add(&format!("n{number}"), at(0) + Duration::from_millis(number));
        }
        assert_eq!(penalties.0.len(), NODES_MAX);
        let now = at(60);
        assert!(penalties.left("n0", now).is_none() && penalties.left("n1", now).is_some());
    }
}
