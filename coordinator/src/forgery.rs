//! Forged pool data: the rules, pure.
//!
//! The coordinator cannot read the cloud, so it counts the findings of the members ([`reports`]). A confirmed collection is
//! voided: the leader lists it in the cloud and feeds it from nothing. From then on it is known who fed it. Where that is a
//! single node, it has forged the data itself, and is barred from the election lease ([`penalties`]). `pool_api/reports.rs`
//! carries out the decisions.

pub(crate) mod penalties;
pub(crate) mod reports;

/// Path to which members post their reports and votes.
pub(crate) const REPORTS_PATH: &str = "/yurt/v1/reports";
/// Path of the nodes that may not hold the election lease; `DELETE` of the path, or of a name below it, lifts the bar.
pub(crate) const BARS_PATH: &str = "/yurt/v1/bars";
