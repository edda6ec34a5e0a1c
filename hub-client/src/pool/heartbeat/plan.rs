//! Decides which lease renewals leave this hub; pure, the drivers send them.
//!
//! [`own`] follows this node's kubelet: every beat goes to the cloud and to the coordinator. [`forward`] is the
//! leader's part: beats of nodes that are cut off, seen on the coordinator, go to the cloud. Neither ever invents a
//! beat: what is in the cloud has a kubelet renewal behind it that is younger than one lease duration.

pub mod forward;
pub mod own;

/// On a pool lease: the node cannot reach the cloud, the leader speaks for it. On a cloud lease: it was spoken for.
pub const DELEGATE_HEARTBEAT_ANNOTATION: &str = "openyurt.io/delegate-heartbeat";

/// On a pool lease: renewTime of the last beat that reached the cloud through a relay. While it is younger than
/// [`forward::RELAYED_FRESH`] the leader does not speak for the node.
pub const RELAYED_ANNOTATION: &str = "openyurt.io/relayed";

/// The value that counts; any other is as good as no annotation.
pub const DELEGATE_HEARTBEAT_VALUE: &str = "true";

/// A point in wall-clock time as Leases hold it: microseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnixMicros(pub i64);
