//! Names that more than one program of a pool writes or reads: paths, headers, namespaces.

/// Path of the feed at the coordinator.
pub const FEED_PATH: &str = "/yurt/v1/feed";
/// Path below [`FEED_PATH`] to which the leader posts the set of collections.
pub const SCOPE_CALL: &str = "scope";
/// Path of the members' names.
pub const MEMBERS_PATH: &str = "/yurt/v1/members";
/// Path to which members post their reports and votes.
pub const REPORTS_PATH: &str = "/yurt/v1/reports";
/// Path of the nodes that may not hold the election lease; `DELETE` of the path, or of a name below it, lifts the bar.
pub const BARS_PATH: &str = "/yurt/v1/bars";

/// Header of the election lease, to its holder only: the epoch that the feed has to carry.
pub const EPOCH_HEADER: &str = "yurt-epoch";
/// Header of the election lease, to its holder only: the id of the coordinator's store.
pub const STORE_HEADER: &str = "yurt-store";
/// Header of pool data: the generation of its RVs.
pub const GENERATION_HEADER: &str = "yurt-generation";
/// Header of pool data that is complete, but may lack changes.
pub const STALE_HEADER: &str = "yurt-stale";
/// Header of a watch by a hub: the coordinator announces differences and bookmarks often.
pub const REPLICA_HEADER: &str = "yurt-replica";

/// Namespace of heartbeats: every node writes its own lease, and there is no takeover.
pub const NODE_LEASES: &str = "kube-node-lease";
/// Namespace of the election lease.
pub const ELECTION_NAMESPACE: &str = "kube-system";
/// Name of the election lease.
pub const ELECTION_LEASE: &str = "yurthub";
/// Key of the election lease.
pub const ELECTION_KEY: &str = "kube-system/yurthub";
/// Name of the lease, in [`ELECTION_NAMESPACE`], with which a leader states that the pool's data is complete and fresh.
pub const INFORMER_SYNC_LEASE: &str = "leader-informer-sync";
/// Key of that lease.
pub const INFORMER_SYNC_KEY: &str = "kube-system/leader-informer-sync";
/// Maximum size of a lease that a hub reads or sends, bytes.
pub const LEASE_BYTES_MAX: usize = 1 << 20;
