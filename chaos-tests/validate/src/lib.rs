//! What a pool under faults may show and what it must not.
//!
//! Checkers only: they are told what happened, by a simulation or by a run with real processes, and know nothing of how it
//! came about. [`history`]: what clients were told. [`rollback`]: the same after the cloud came back from a
//! backup. [`leadership`]: who led, and whose writes were taken.

pub mod history;
pub mod leadership;
pub mod rollback;
#[cfg(test)]
mod told;
