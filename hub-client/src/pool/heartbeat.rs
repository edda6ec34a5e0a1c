//! Node heartbeats: the hub's own, and those the leader carries to the cloud for nodes that are cut off.
//!
//! A node that is cut off speaks for itself through a relay where that works ([`relaying`]); the leader speaks for it
//! ([`forward`]) where it does not.

pub mod forward;
mod kept;
pub mod own;
pub mod plan;
pub mod relaying;
mod renewal;
