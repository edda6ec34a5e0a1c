//! What a leader, or whoever pretends to be one, may send.

/// Bodies of the feed's calls, read and applied as the coordinator does.
pub(crate) fn batch(data: &[u8]) {
    yurt_coordinator::fuzzing::feed_call(data);
}
