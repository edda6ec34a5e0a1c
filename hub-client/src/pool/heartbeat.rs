//! Node heartbeats: this hub's own, and those the leader forwards to the cloud for nodes that are cut off.
//!
//! A cut-off node sends its own heartbeats through a relay ([`relaying`]). Where no relay works, the leader forwards
//! them ([`forward`]).

pub mod forward;
mod lease_cache;
pub mod node_lease;
pub mod relaying;
mod renewal;

use std::time::Duration;

/// Duration of a node's lease; the kubelet's default. An older beat proves nothing.
const LEASE: Duration = Duration::from_secs(40);
