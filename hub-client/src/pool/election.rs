//! Election of the one hub of a pool that feeds the coordinator.
//!
//! [`machine`] decides and does no I/O. [`driver`] performs the requests, keeps the lease watch open and wakes the
//! machine when its timer is due. [`rank`] orders the candidates.

pub mod driver;
pub mod machine;
pub mod rank;

pub use machine::{Machine, Output};
