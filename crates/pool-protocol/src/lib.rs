//! Rules on which the programs of a pool have to agree. Pure: the hub and the coordinator do the I/O.
//!
//! In reading order:
//!
//! * [`election`]: the one hub that may act as leader.
//! * [`resume`]: the way in which a leader's feed continues at the coordinator.
//! * [`source`] and [`cloud_fallback`]: where a hub's replicas come from; [`history`]: whether the cloud still has their
//!   history; [`partial_list`]: a first list over a thin link.
//! * [`heartbeat`]: the lease renewals that leave a hub; [`members`]: the nodes of the pool.

pub mod cloud_fallback;
pub mod election;
pub mod heartbeat;
pub mod history;
pub mod members;
pub mod partial_list;
pub mod resume;
pub mod source;
