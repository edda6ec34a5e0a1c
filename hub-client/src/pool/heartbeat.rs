//! Node heartbeats: the hub's own, and those the leader carries to the cloud for nodes that are cut off.

pub mod forward;
pub mod own;
pub mod plan;
