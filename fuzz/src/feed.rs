//! Calls of the feed, from a leader or from a caller that pretends to be one.

/// Parses and applies bodies of the feed's calls as the coordinator does.
pub(crate) fn batch(data: &[u8]) {
    yurt_coordinator::fuzzing::feed_call(data);
}
