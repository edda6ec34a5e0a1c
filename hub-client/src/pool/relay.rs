//! The relay: a node that is cut off from the cloud reaches it through the hub of another node of its pool.
//!
//! The accepting side ([`offer`], [`serve`]) takes connections of members only and answers one kind of request, `CONNECT` to a cloud
//! server that its own hub is configured with. [`gate`] (pure) decides who may go where and how many at a time, [`tunnel`]
//! copies bytes at a bounded pace ([`pace`], pure). The dialling side ([`client`]) finds peers in node leases of the pool
//! and tries them in the order of [`route`] (pure). Inside the tunnel the node speaks TLS with the cloud itself, with its
//! own certificate: a peer can refuse or cut, and can neither read nor say anything.

pub mod address;
pub mod client;
pub mod gate;
pub mod offer;
pub mod pace;
pub mod route;
pub mod serve;
pub mod tunnel;

/// On a pool lease: where this node's hub accepts tunnels, `ip:port`. Only while the node itself reaches the cloud.
pub const ADDRESS_ANNOTATION: &str = "openyurt.io/relay-address";

/// On a pool lease: the cloud servers that the hub at [`ADDRESS_ANNOTATION`] connects to, `host:port`, separated by commas.
pub const SERVERS_ANNOTATION: &str = "openyurt.io/relay-servers";

/// What a hub that relays says in its pool lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// `ip:port`.
    pub address: String,
    /// The value of [`SERVERS_ANNOTATION`].
    pub servers: String,
}
