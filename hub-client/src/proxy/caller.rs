//! Who is asking: a component of this node that may use the node's identity, or somebody with credentials of their own.

use http::HeaderMap;
use http::header::{AUTHORIZATION, USER_AGENT};
use yurt_apimachinery::Status;
use yurt_runtime::http::server::Peer;

/// Longest component name taken from a User-Agent.
const COMPONENT_MAX: usize = 63;

/// The components that may use the node's identity.
#[derive(Clone, Debug)]
pub struct Callers {
    components: Vec<String>,
}

/// Who is asking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// First part of the User-Agent, lower case, validated; empty when it has none. Chooses filters, never rights.
    pub component: String,
    /// By what right.
    pub credential: Credential,
}

/// What a caller brings.
#[derive(Clone, PartialEq, Eq)]
pub enum Credential {
    /// Nothing: a configured component in the node's own network namespace, which acts as the node.
    Node,
    /// A bearer token.
    Token(String),
    /// A client certificate of the cluster CA (HTTPS port).
    Certificate {
        /// CN.
        user: String,
        /// All O.
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
    /// `components` in lower case.
    #[must_use]
    pub fn new(components: Vec<String>) -> Self {
        Self { components }
    }

    /// Identifies the caller of a request.
    ///
    /// # Errors
    /// 401 for a caller without credentials that may not borrow the node's.
    pub fn identify(&self, headers: &HeaderMap, peer: &Peer) -> Result<Caller, Status> {
        let component = component(headers);
        let credential = match (bearer(headers), &peer.identity) {
            // As at kube-apiserver: a valid certificate wins over a token.
            (_, Some(identity)) if !identity.common_name.is_empty() => Credential::Certificate {
                user: identity.common_name.clone(),
                groups: identity.organizations.clone(),
            },
            (Some(token), _) => Credential::Token(token.to_owned()),
            (None, _) if !peer.is_refused && is_local(peer) && self.components.contains(&component) => Credential::Node,
            (None, _) => return Err(Status::unauthorized()),
        };
        Ok(Caller { component, credential })
    }
}

// === impl Caller ===

impl Caller {
    /// Whether this is `component` acting as the node.
    #[must_use]
    pub fn is_node_component(&self, component: &str) -> bool {
        self.credential == Credential::Node && self.component == component
    }
}

/// Whether the connection comes from the node's own network namespace: from loopback, or from the very address it was
/// made to, which no other host and no pod can do.
fn is_local(peer: &Peer) -> bool {
    peer.addr.ip().to_canonical().is_loopback() || peer.addr.ip() == peer.local_addr.ip()
}

fn component(headers: &HeaderMap) -> String {
    let agent = headers
        .get(USER_AGENT)
        .and_then(|agent| agent.to_str().ok())
        .unwrap_or_default();
    let name = agent.split('/').next().unwrap_or_default().trim().to_lowercase();
    let valid = name.len() <= COMPONENT_MAX && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    if valid { name } else { String::new() }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use yurt_runtime::tls::PeerIdentity;

    use super::*;

    fn peer(from: &str) -> Peer {
        let (addr, local_addr) = (
            from.parse().expect("address"),
            "127.0.0.1:10261".parse().expect("address"),
        );
        Peer {
            addr,
            local_addr,
            identity: None,
            is_refused: false,
            tls: false,
        }
    }

    fn headers(agent: &str, authorization: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(USER_AGENT, agent.parse().expect("header"));
        if !authorization.is_empty() {
            headers.insert(AUTHORIZATION, authorization.parse().expect("header"));
        }
        headers
    }

    fn identify(agent: &str, authorization: &str, peer: &Peer) -> Result<Caller, Status> {
        Callers::new(vec!["kubelet".into(), "kube-proxy".into()]).identify(&headers(agent, authorization), peer)
    }

    #[test]
    fn configured_component_on_loopback_is_the_node() {
        let caller = identify("Kubelet/v1.36 (linux/amd64)", "", &peer("127.0.0.1:5000")).expect("identified");
        assert_eq!(
            (caller.component.as_str(), caller.credential),
            ("kubelet", Credential::Node)
        );
    }

    #[test]
    fn stranger_without_credentials_is_refused() {
        assert!(identify("curl/8", "", &peer("127.0.0.1:5000")).is_err());
        assert!(
            identify("kubelet/v1", "", &peer("10.1.2.3:5000")).is_err(),
            "a pod may call itself kubelet"
        );
        assert!(identify("../kubelet", "", &peer("127.0.0.1:5000")).is_err());
    }

    #[test]
    fn own_token_wins_over_the_nodes_identity() {
        let caller = identify("kubelet/v1", "bearer abc", &peer("127.0.0.1:5000")).expect("identified");
        assert_eq!(caller.credential, Credential::Token("abc".into()));
        assert!(!caller.is_node_component("kubelet"));
    }

    /// Conformance: 6.01
    #[test]
    fn certificate_that_is_not_good_is_nobodys_and_a_token_beside_it_counts() {
        let peer = Peer {
            is_refused: true,
            tls: true,
            ..peer("127.0.0.1:5000")
        };
        let refused = identify("kubelet/v1", "", &peer).expect_err("not even the node");
        assert_eq!(refused.code(), 401);
        let caller = identify("kubelet/v1", "Bearer abc", &peer).expect("identified");
        assert_eq!(caller.credential, Credential::Token("abc".into()));
    }

    #[test]
    fn certificate_is_the_caller() {
        let identity = PeerIdentity {
            common_name: "jane".into(),
            organizations: vec!["dev".into()],
            ..PeerIdentity::default()
        };
        let peer = Peer {
            identity: Some(Arc::new(identity)),
            tls: true,
            ..peer("10.1.2.3:5000")
        };
        let caller = identify("kubectl/v1", "", &peer).expect("identified");
        assert_eq!(
            caller.credential,
            Credential::Certificate {
                user: "jane".into(),
                groups: vec!["dev".into()]
            }
        );
    }
}
