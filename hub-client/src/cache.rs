//! The node's cache: every list and watch of a cacheable component is a replica of exactly that selection at the cloud. It
//! is followed, stored and served as pool data is.
//!
//! [`components`] and [`agents`] say which components are cacheable. [`key`] names a selection, and `references` says what
//! pods may need; both are pure. [`store`] has the replicas, [`entry`] is one of them with the credentials that may read
//! it, and `follow` keeps it up to date.
//! [`crate::proxy::cached`] decides which requests are answered from it.

pub mod agents;
pub mod components;
pub mod entry;
pub(crate) mod follow;
pub mod key;
mod references;
pub mod store;
