//! Relay: a node that is cut off from the cloud reaches it through the hub of another node of its pool.
//!
//! The accepting side ([`advertise`], [`serve`]) takes connections of members only. It serves one kind of request:
//! `CONNECT` to a cloud server of its own hub's configuration. [`admission`] (pure) limits peers, targets and
//! concurrency of tunnels; [`tunnel`] copies bytes at a bounded rate ([`token_bucket`], pure). The dialling side
//! ([`client`]) finds peers in node leases of the pool and tries them in the order of [`route`] (pure). Inside the
//! tunnel the node speaks TLS with the cloud itself, with its own certificate. A peer can refuse or cut the tunnel; it
//! can neither read nor inject data.

pub mod address;
pub mod admission;
pub mod advertise;
pub mod client;
pub mod route;
pub mod serve;
pub mod token_bucket;
pub mod tunnel;

/// Annotation on a pool lease: `ip:port` at which this node's hub accepts tunnels. Present only while the node itself
/// reaches the cloud.
pub const ADDRESS_ANNOTATION: &str = "openyurt.io/relay-address";

/// Annotation on a pool lease: the cloud servers that the hub at [`ADDRESS_ANNOTATION`] connects to, `host:port`,
/// separated by commas.
pub const SERVERS_ANNOTATION: &str = "openyurt.io/relay-servers";

/// Relay offer that a hub publishes in its pool lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Listening address, `ip:port`.
    pub address: String,
    /// Value of [`SERVERS_ANNOTATION`].
    pub servers: String,
}
