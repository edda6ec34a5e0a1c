//! Rules on which the programs of a pool have to agree. Pure: the hub and the coordinator do the I/O.
//!
//! In reading order:
//!
//! * [`election`]: the candidate's side of the election lease, one hub at most may act as leader; [`guard`]: the
//!   coordinator's side, [`penalties`]: nodes that are excluded; [`fence`]: proof of leadership in each call.
//! * [`feed`]: the leader's calls, the coordinator's answers, and the rules by which calls are applied; [`resume`]: how
//!   a leader continues from the coordinator's state.
//! * [`source`] and [`cloud_fallback`]: where a hub's replicas come from; [`history`]: whether the cloud still has
//!   their history; [`partial_list`]: a first list over a thin link.
//! * [`heartbeat`]: the lease renewals that leave a hub; [`members`]: the nodes of the pool; [`pool_scope`]: the
//!   resources that it shares.
//! * [`names`]: paths, headers, namespaces.

pub mod cloud_fallback;
pub mod election;
pub mod feed;
pub mod fence;
pub mod guard;
pub mod heartbeat;
pub mod history;
pub mod members;
pub mod names;
pub mod partial_list;
pub mod penalties;
pub mod pool_scope;
pub mod resume;
pub mod source;
