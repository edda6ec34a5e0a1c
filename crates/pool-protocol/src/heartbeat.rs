//! Decides which lease renewals leave this hub. Pure; the drivers send them.
//!
//! [`own`] follows this node's kubelet: every beat goes to the cloud and to the coordinator. [`forward`] belongs to the
//! leader: it forwards beats of cut-off nodes from the coordinator to the cloud. Neither invents a beat: every
//! heartbeat in the cloud has a kubelet renewal behind it that is younger than one lease duration.

use yurt_apimachinery::time::MicroTime;

pub mod forward;
pub mod own;

/// Annotation. On a pool lease: the node cannot reach the cloud, and the leader forwards its beats. On a cloud lease:
/// the leader wrote the last beat.
pub const DELEGATE_HEARTBEAT_ANNOTATION: &str = "openyurt.io/delegate-heartbeat";

/// Annotation on a pool lease: renewTime of the last beat that reached the cloud through a relay. The leader does not
/// forward the node's beats while it is younger than [`forward::RELAYED_FRESH`].
pub const RELAYED_ANNOTATION: &str = "openyurt.io/relayed";

/// The only effective value of [`DELEGATE_HEARTBEAT_ANNOTATION`]. Any other value counts as no annotation.
pub const DELEGATE_HEARTBEAT_VALUE: &str = "true";

/// A point in wall-clock time as Leases hold it: microseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnixMicros(pub i64);

impl From<MicroTime> for UnixMicros {
    fn from(time: MicroTime) -> Self {
        let (secs, nanos) = time.unix();
        Self(secs * 1_000_000 + i64::from(nanos / 1000))
    }
}
