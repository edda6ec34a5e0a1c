//! Commands of the binary that explain the hub's behaviour without running it.

pub mod filters;
