//! Checkers of a pool under faults.
//!
//! The crate only checks the events that a simulation or a run with real processes recorded. It is independent of their
//! cause. [`history`]: events of clients. [`views`]: those of clients with filters. [`rollback`]: the same after the
//! cloud was restored from a backup. [`leadership`]: leaders, and the writes that were accepted from them.

pub mod history;
pub mod leadership;
pub mod rollback;
#[cfg(test)]
mod told;
pub mod views;
