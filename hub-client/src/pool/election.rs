//! Election of the one hub of a pool that feeds the coordinator.
//!
//! The machine in `yurt_pool_protocol::election` decides and does no I/O. [`driver`] performs the requests, keeps the
//! lease watch open and wakes the machine when its timer is due.

pub mod driver;
