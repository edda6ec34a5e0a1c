//! Forged pool data: the rules, pure.
//!
//! The coordinator cannot read the cloud, so it counts the findings of the members ([`reports`]). A confirmed
//! collection is voided: the leader lists it in the cloud and feeds it from nothing. From then on it is known who fed
//! it. Where that is a single node, it has forged the data itself, and is barred from the election lease
//! (`yurt_pool_protocol::penalties`). `pool_api/reports.rs` carries out the decisions.

pub(crate) mod reports;
