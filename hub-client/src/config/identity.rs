//! Flags of the node's identity: they select the requests without credentials of their own that act as the node.

use std::net::IpAddr;

use clap::{Args, ValueEnum};
use http::uri::Authority;

use super::{FlagError, bad};

/// The flags as given on the command line.
#[derive(Clone, Debug, Args)]
pub(super) struct IdentityFlags {
    /// Components (first part of the User-Agent) that act as the node: their requests without credentials, from this
    /// node's own network namespace, use the node's identity.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "kubelet,kube-proxy,coredns,flanneld,yurthub,raven-agent-ds"
    )]
    node_identity_components: Vec<String>,
    /// Uids whose processes may use the node's identity, separated by commas; the kernel reports the uid of a
    /// connection. Add the uid of a component that does not run as root. "any" trusts every process in the node's
    /// network namespace, as upstream's YurtHub does.
    #[arg(long, default_value = "0")]
    node_identity_uids: String,
    /// Proof that a request may use the node's identity. socket: component, network namespace and uid. token: these,
    /// and the bearer token in kubelet.token under --root-dir, which the hub creates at its first start, or at the
    /// HTTPS port the client certificate of this node. To use token, first name that file as tokenFile in the
    /// kubeconfigs of kubelet and kube-proxy. It excludes root processes that forward other clients' requests, as
    /// kubectl port-forward to a hostNetwork pod does.
    #[arg(long, value_enum, default_value = "socket")]
    node_identity: Proof,
    /// Additional names, separated by commas, by which this node's components address the hub. A request that uses the
    /// node's identity for another Host gets 421, because a web page may have mapped its own name to this address.
    /// Loopback, the node's name and the addresses of the hub are always accepted.
    #[arg(long, value_delimiter = ',', default_value = "", hide_default_value = true)]
    node_identity_hosts: Vec<String>,
}

/// Proof that a request may use the node's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Proof {
    /// Component, network namespace and uid.
    Socket,
    /// Component, network namespace, uid, and the token of the hub.
    Token,
}

/// Rules for requests that act as the node.
#[derive(Clone, Debug)]
pub struct NodeIdentity {
    /// Components, lower case.
    pub components: Vec<String>,
    /// Allowed uids; any if `None`.
    pub uids: Option<Vec<u32>>,
    /// Proof of the identity.
    pub proof: Proof,
    /// Allowed hosts in addition to loopback and the address of the connection, lower case.
    pub hosts: Vec<String>,
}

// === impl IdentityFlags ===

impl IdentityFlags {
    /// Checks the flags; `own` are the names and addresses of this node and of its hub.
    ///
    /// # Errors
    /// [`FlagError`] names the flag and the value.
    pub(super) fn check(self, own: Vec<String>) -> Result<NodeIdentity, FlagError> {
        let lower = |names: Vec<String>| {
            let names = names.into_iter().map(|name| name.trim().to_lowercase());
            names.filter(|name| !name.is_empty()).collect::<Vec<_>>()
        };
        let named = lower(self.node_identity_hosts);
        if let Some(wrong) = named.iter().find(|name| !is_host(name)) {
            let problem = format!("{wrong:?} is not a host name or address; write it without scheme and port");
            return Err(bad("node-identity-hosts", problem));
        }
        Ok(NodeIdentity {
            components: lower(self.node_identity_components),
            uids: uids(&self.node_identity_uids)?,
            proof: self.node_identity,
            hosts: lower(own).into_iter().chain(named).collect(),
        })
    }
}

fn is_host(name: &str) -> bool {
    let is_name = || {
        name.parse::<Authority>()
            .is_ok_and(|authority| authority.host() == name)
    };
    name.parse::<IpAddr>().is_ok() || is_name()
}

fn uids(text: &str) -> Result<Option<Vec<u32>>, FlagError> {
    if text == "any" {
        return Ok(None);
    }
    let uid = |uid: &str| {
        let problem = || {
            bad(
                "node-identity-uids",
                format!("{uid:?} is not a uid; write numbers, or any"),
            )
        };
        uid.trim().parse().map_err(|_| problem())
    };
    text.split(',').map(uid).collect::<Result<_, _>>().map(Some)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        identity: IdentityFlags,
    }

    fn check(args: &[&str]) -> Result<NodeIdentity, String> {
        let flags = Flags::try_parse_from(["yurthub"].iter().chain(args)).map_err(|error| error.to_string())?;
        let own = vec!["Edge-1".to_owned(), "169.254.2.1".to_owned()];
        flags.identity.check(own).map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_are_root_by_its_socket() {
        let identity = check(&[]).unwrap();
        assert_eq!((identity.uids, identity.proof), (Some(vec![0]), Proof::Socket));
        assert_eq!(identity.hosts, ["edge-1", "169.254.2.1"]);
        assert!(identity.components.contains(&"kubelet".to_owned()));
    }

    #[test]
    fn lists_are_read_and_what_is_none_is_named() {
        let identity = check(&[
            "--node-identity-uids=0, 65532",
            "--node-identity-hosts=Hub.local, fd00::1",
        ]);
        let identity = identity.unwrap();
        assert_eq!(identity.uids, Some(vec![0, 65532]));
        assert_eq!(identity.hosts[2..], ["hub.local", "fd00::1"]);
        assert_eq!(check(&["--node-identity-uids=any"]).unwrap().uids, None);
        for (flag, expected) in [
            ("--node-identity-uids=root", "\"root\" is not a uid"),
            ("--node-identity-uids=", "\"\" is not a uid"),
            ("--node-identity-hosts=http://hub", "without scheme and port"),
            ("--node-identity-hosts=hub:80", "without scheme and port"),
            ("--node-identity=none", "token"),
        ] {
            let error = check(&[flag]).unwrap_err();
            assert!(error.contains(expected), "{flag}: {error}");
        }
    }
}
