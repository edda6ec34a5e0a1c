//! Rank of a candidate: the order in which candidates try to take a free lease. Pure.

use std::collections::BTreeSet;

/// Returns the rank of `node` among `members`; the first one is 0. The last leader is not counted: it released the
/// lease and lets the others go first, or it let the lease expire and is gone. So no candidate waits for it.
///
/// `last_leader` is a holder's identity, `<node>_<process>`; empty if none has been seen.
#[must_use]
pub fn place(members: &BTreeSet<String>, node: &str, last_leader: &str) -> u32 {
    let led = last_leader.rsplit_once('_').map_or("", |(node, _)| node);
    let mut others = members.iter().filter(|name| **name == node || **name != led);
    let place = others.position(|name| name == node).unwrap_or(members.len());
    u32::try_from(place).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_for_the_one_that_led_last() {
        let members = BTreeSet::from(["a", "b", "c"].map(str::to_owned));
        let places = |led: &str| ["a", "b", "c"].map(|node| place(&members, node, led));
        assert_eq!(places(""), [0, 1, 2]);
        assert_eq!(places("a_1f"), [0, 0, 1], "it keeps its own place");
        assert_eq!(places("b_1f"), [0, 1, 1]);
        assert_eq!(places("c_1f"), [0, 1, 2]);
        assert_eq!(places("elsewhere_1f"), [0, 1, 2]);
        assert_eq!(
            place(&members, "stranger", "a_1f"),
            3,
            "a node that is no member comes last"
        );
    }
}
