//! Rules under which a request without another caller's credential acts as the node. Pure.
//!
//! All conditions must hold. The request comes from the node's own network namespace, names a configured component and
//! is meant for the hub. Its socket belongs to a configured uid. If a secret of root is required, the request carries
//! the kubelet's token or its connection the node's client certificate.

use std::net::IpAddr;

use http::header::HOST;
use http::uri::Authority;
use http::{HeaderMap, Uri};
use yurt_apimachinery::Status;
use yurt_runtime::http::server::Peer;
use yurt_runtime::tls::PeerIdentity;

use super::token::NodeToken;
use crate::config::{NodeIdentity, Proof};

/// Rules for the use of the node's identity.
#[derive(Clone, Debug)]
pub(super) struct NodeRule {
    /// Name of this Node.
    node: String,
    settings: NodeIdentity,
    token: NodeToken,
}

// === impl NodeRule ===

impl NodeRule {
    pub(super) fn new(node: &str, settings: NodeIdentity, token: NodeToken) -> Self {
        let node = node.to_owned();
        Self { node, settings, token }
    }

    /// True if this verified client certificate is the own node's.
    pub(super) fn is_certificate(&self, identity: &PeerIdentity) -> bool {
        identity.node_name() == Some(&self.node)
    }

    /// True if this bearer token is the kubelet's. It is only for this hub and never sent to the cloud.
    pub(super) fn is_token(&self, token: &str) -> bool {
        self.token.is(token)
    }

    /// Checks a request of `component`; `has_secret` is true if it carries the kubelet's token, or its connection the
    /// node's certificate.
    ///
    /// # Errors
    /// 401: with the reason and the flag for a request that looks like a component of the node, otherwise without
    /// details. 421 for a request that was meant for another host.
    pub(super) fn check(
        &self,
        component: &str,
        has_secret: bool,
        headers: &HeaderMap,
        uri: &Uri,
        peer: &Peer,
    ) -> Result<(), Status> {
        let is_named = self.settings.components.iter().any(|name| name == component);
        if peer.is_refused || !peer.is_local() || !is_named {
            return Err(Status::unauthorized());
        }
        if let Some(uids) = &self.settings.uids
            && !peer.uid.is_some_and(|uid| uids.contains(&uid))
        {
            let whose = match peer.uid {
                Some(uid) => format!("belongs to uid {uid}"),
                None => "belongs to no process in the hub's network namespace".to_owned(),
            };
            return Err(Status::unauthorized_because(&format!(
                "only processes of a uid in --node-identity-uids use the node's identity, and this connection {whose}"
            )));
        }
        if self.settings.proof == Proof::Token && !has_secret {
            return Err(Status::unauthorized_because(
                "--node-identity=token requires the token in kubelet.token below --root-dir (set that file as tokenFile), or \
                 the node's client certificate",
            ));
        }
        self.check_host(headers, uri, peer)
    }

    /// Checks that the request names at least one host, and that every one is this host.
    fn check_host(&self, headers: &HeaderMap, uri: &Uri, peer: &Peer) -> Result<(), Status> {
        let named = headers
            .get_all(HOST)
            .iter()
            .map(|host| host.to_str().unwrap_or_default());
        let mut hosts = uri
            .authority()
            .map(Authority::as_str)
            .into_iter()
            .chain(named)
            .peekable();
        let wrong = match hosts.peek() {
            None => Some(""),
            Some(_) => hosts.find(|host| !self.is_own(host, peer)),
        };
        match wrong {
            None => Ok(()),
            Some(host) => Err(Status::misdirected(format!(
                "host {host:?} is not this node: use a loopback address, the node's name, or a name in --node-identity-hosts"
            ))),
        }
    }

    fn is_own(&self, authority: &str, peer: &Peer) -> bool {
        let Ok(authority) = authority.parse::<Authority>() else {
            return false;
        };
        // No client of the hub writes user information before the host.
        if authority.as_str().contains('@') {
            return false;
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        if let Ok(address) = host.parse::<IpAddr>() {
            let address = address.to_canonical();
            let is_named = |name: &String| name.parse().is_ok_and(|named: IpAddr| named.to_canonical() == address);
            return address.is_loopback()
                || address == peer.local_addr.ip().to_canonical()
                || self.settings.hosts.iter().any(is_named);
        }
        let host = host.strip_suffix('.').unwrap_or(host).to_lowercase();
        host == "localhost" || self.settings.hosts.contains(&host)
    }
}
