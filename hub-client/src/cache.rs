//! The node's cache: every list and watch of a cacheable component is a replica of exactly that selection at the cloud.
//! It is followed, stored and served as pool data is.
//!
//! [`components`] and [`agents`] say which components are cacheable. [`key`] names a selection, `references` says what
//! pods may need, and [`limits`] bounds the number of selections; all three are pure. [`store`] has the replicas,
//! [`entry`] is one of them with the credentials that may read it, and `follow` keeps it up to date. While the node is
//! cut off, [`relayed_node`] does that for the own Node. `described` has the kinds that are not built in.
//! [`crate::proxy::cached`] decides which requests are answered from it.

pub mod agents;
pub mod components;
mod described;
pub mod entry;
pub(crate) mod follow;
pub mod key;
pub mod limits;
mod references;
pub mod relayed_node;
pub mod store;
