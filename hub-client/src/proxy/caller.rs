//! Identity of a caller: a component of this node that may use the node's identity, or a caller with its own
//! credentials.

mod node;
#[cfg(test)]
mod tests;
pub mod token;

use std::borrow::Cow;
use std::net::IpAddr;

use http::header::{AUTHORIZATION, USER_AGENT};
use http::{HeaderMap, Uri};
use yurt_apimachinery::Status;
use yurt_runtime::http::server::{KnownCaller, Peer, Rank};

use crate::cache::agents::Agents;
use crate::client_name::is_component;
use crate::config::NodeIdentity;
use crate::offline::tokens::claims;
use node::NodeRule;
use token::NodeToken;

/// Maximum size of a bearer token, bytes; projected tokens have about 1 KiB, those with many groups a few KiB.
const TOKEN_MAX: usize = 16 * 1024;

/// Identifies callers.
#[derive(Clone, Debug)]
pub struct Callers {
    node: NodeRule,
}

/// Caller of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// First part of the User-Agent, lower case, validated; empty if there is none. Selects filters and caching, unless
    /// ConfigMap `yurt-hub-cfg` names the service account; never rights.
    pub component: String,
    /// Credential that determines the rights.
    pub credential: Credential,
    /// Address and uid of the caller.
    pub origin: Origin,
}

/// Origin of a caller. Unlike tokens, the caller cannot make it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    /// IP address; 127.0.0.1 for a process of this machine, which may use any loopback address.
    pub address: IpAddr,
    /// Uid, for a process of this machine.
    pub uid: Option<u32>,
}

/// Credential of a caller.
#[derive(Clone, PartialEq, Eq)]
pub enum Credential {
    /// That of the node: a configured component in the node's own network namespace, without another credential.
    Node,
    /// A bearer token.
    Token(String),
    /// A client certificate of the cluster CA (HTTPS port).
    Certificate {
        /// Common name (CN).
        user: String,
        /// All organizations (O).
        groups: Vec<String>,
    },
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Node => f.write_str("Node"),
            Self::Token(_) => f.write_str("Token"),
            Self::Certificate { user, .. } => write!(f, "Certificate({user})"),
        }
    }
}

// === impl Callers ===

impl Callers {
    /// Creates the rules. `settings` defines the callers that act as `node`; `token` is the kubelet's.
    #[must_use]
    pub fn new(node: &str, settings: NodeIdentity, token: NodeToken) -> Self {
        Self {
            node: NodeRule::new(node, settings, token),
        }
    }

    /// Identifies the caller of a request.
    ///
    /// # Errors
    /// 401 for a caller without credentials that may not use the node's identity, and for more than one Authorization
    /// header. 421 if a component of the node requests another host.
    pub fn identify(&self, headers: &HeaderMap, uri: &Uri, peer: &Peer) -> Result<Caller, Status> {
        let component = component(headers);
        let as_node = |has_secret| {
            let checked = self.node.check(&component, has_secret, headers, uri, peer);
            checked.map(|()| Credential::Node)
        };
        let credential = match (bearer(headers)?, &peer.identity) {
            // kubeadm's kubelet rotates this certificate, and then sends no token. Only root can read its key.
            (_, Some(identity)) if self.node.is_certificate(identity) && as_node(true).is_ok() => Credential::Node,
            // Same as kube-apiserver: a valid certificate takes precedence over a token.
            (_, Some(identity)) if !identity.common_name.is_empty() => Credential::Certificate {
                user: identity.common_name.clone(),
                groups: identity.organizations.clone(),
            },
            // The kubelet's token never counts as another caller's credential: a request that fails the node's other
            // rules must not reach the cloud with it.
            (Some(token), _) if self.node.is_token(token) => as_node(true)?,
            (Some(token), _) => Credential::Token(token.to_owned()),
            (None, _) => as_node(false)?,
        };
        Ok(Caller {
            component,
            credential,
            origin: Origin::of(peer),
        })
    }
}

// === impl Origin ===

impl Origin {
    fn of(peer: &Peer) -> Self {
        Self {
            address: peer.counted_address(),
            uid: peer.uid,
        }
    }
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.uid {
            Some(uid) => write!(f, "uid {uid}"),
            None => self.address.fmt(f),
        }
    }
}

// === impl Caller ===

impl Caller {
    /// True if this is `component` acting as the node.
    #[must_use]
    pub fn is_node_component(&self, component: &str) -> bool {
        self.credential == Credential::Node && self.component == component
    }

    /// Returns the service account that its token claims; `None` for any other caller. The cloud verifies the claim
    /// before it answers the first read with this token.
    #[must_use]
    pub fn account(&self) -> Option<String> {
        match &self.credential {
            Credential::Token(token) => claims::account_of(token),
            Credential::Node | Credential::Certificate { .. } => None,
        }
    }

    /// Returns the name under which this caller's reads are cached: its service account if `cache_agents` names that,
    /// else its component.
    #[must_use]
    pub fn cached_as(&self, agents: &Agents) -> Cow<'_, str> {
        let account = agents.names_accounts().then(|| self.account()).flatten();
        let named = account.filter(|account| agents.names(account));
        named.map_or(Cow::Borrowed(&self.component), Cow::Owned)
    }

    /// Returns the owner of the connection's place; `None` if the connection's certificate names it. The node may take
    /// all places. Pods are counted by address, because each has its own, and processes of this machine by uid.
    #[must_use]
    pub fn known(&self) -> Option<KnownCaller> {
        let (name, rank) = match self.credential {
            Credential::Node => ("the node".to_owned(), Rank::Administrator),
            Credential::Token(_) => (self.origin.to_string(), Rank::Member),
            Credential::Certificate { .. } => return None,
        };
        Some(KnownCaller { name, rank })
    }
}

fn component(headers: &HeaderMap) -> String {
    let agent = headers
        .get(USER_AGENT)
        .and_then(|agent| agent.to_str().ok())
        .unwrap_or_default();
    let name = agent.split('/').next().unwrap_or_default().trim().to_lowercase();
    if is_component(&name) { name } else { String::new() }
}

/// Returns the bearer token. A second Authorization header is refused, and a second word: the next server could read
/// another token.
fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Status> {
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let (Some(first), None) = (all.next(), all.next()) else {
        return if headers.contains_key(AUTHORIZATION) {
            Err(Status::unauthorized_because("more than one Authorization header"))
        } else {
            Ok(None)
        };
    };
    let parts = first.to_str().ok().and_then(|value| value.trim().split_once(' '));
    let token = parts.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let token = token.map(|(_, token)| token.trim()).filter(|token| !token.is_empty());
    if token.is_some_and(|token| token.len() > TOKEN_MAX) {
        let why = format!("a bearer token has at most {TOKEN_MAX} bytes");
        return Err(Status::unauthorized_because(&why));
    }
    if token.is_some_and(|token| token.contains(char::is_whitespace)) {
        return Err(Status::unauthorized_because("a bearer token is one word"));
    }
    Ok(token)
}
