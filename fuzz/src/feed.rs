//! Calls of the feed, from a leader or from a caller that pretends to be one.

/// Bodies of the feed's calls, read and applied as the coordinator does.
pub(crate) fn batch(data: &[u8]) {
    yurt_coordinator::fuzzing::feed_call(data);
}
