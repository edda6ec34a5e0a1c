//! Means of joining a cluster: the bootstrap token, and the verification of the CA that it leads to.

use std::path::PathBuf;
use std::time::Duration;

/// Signer of client certificates; upstream's approver approves its requests of hubs.
pub const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";
/// Signer of kubelets' client certificates; kube-controller-manager approves its requests of nodes.
pub const KUBELET_SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// Kubeconfig with the hub's own certificate, below the root directory.
pub const OWN_KUBECONFIG: &str = "yurthub.conf";
/// Length of a token's public part.
const ID_LEN: usize = 6;
/// Length of its secret part.
const SECRET_LEN: usize = 16;
/// Means of joining a cluster.
#[derive(Clone, Debug)]
pub struct Join {
    /// Join token of the command line.
    pub token: Option<JoinToken>,
    /// Bootstrap kubeconfig of the command line.
    pub file: Option<PathBuf>,
    /// Verification of the CA that a token leads to.
    pub trust: Trust,
    /// Maximum time until the servers know a new token.
    pub discovery: Duration,
    /// Signer of the certificate.
    pub signer: String,
    /// Organizations in addition to those of every node.
    pub organizations: Vec<String>,
}

/// Bootstrap token of the cluster, `id.secret`.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    id: String,
    secret: String,
}

/// Verification of the cluster's CA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Hashes of public keys (`sha256:…`). The CA must have one of them.
    Pins(Vec<String>),
    /// Everything that is signed with the token; other holders of the token can forge it.
    TokenAlone,
}

// === impl JoinToken ===

impl JoinToken {
    /// Reads a token.
    ///
    /// # Errors
    /// The text that describes a valid token.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let problem = "must be a bootstrap token, 6 and 16 characters a-z0-9 with a dot between; create one with \
                       `kubeadm token create`";
        let (id, secret) = text.trim().split_once('.').ok_or(problem)?;
        let is_plain = |part: &str, len| {
            part.len() == len
                && part
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        };
        match is_plain(id, ID_LEN) && is_plain(secret, SECRET_LEN) {
            true => Ok(Self {
                id: id.to_owned(),
                secret: secret.to_owned(),
            }),
            false => Err(problem),
        }
    }

    /// The token as a bearer token.
    pub(crate) fn bearer(&self) -> String {
        format!("{}.{}", self.id, self.secret)
    }

    /// Its secret part.
    pub(crate) fn secret(&self) -> &str {
        &self.secret
    }

    /// Its public part, for messages.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }
}

impl std::fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "JoinToken({}.hidden)", self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(text: &str) -> JoinToken {
        JoinToken::parse(text).unwrap()
    }

    #[test]
    fn token_is_hidden_and_its_form_is_checked() {
        assert!(!format!("{:?}", token("abcdef.0123456789abcdef")).contains("0123456789abcdef"));
        for wrong in [
            "",
            "abcdef",
            "abcdef.0123",
            "ABCDEF.0123456789abcdef",
            "abcdef.0123456789abcde/",
        ] {
            assert!(
                JoinToken::parse(wrong).unwrap_err().contains("kubeadm token create"),
                "{wrong}"
            );
        }
        assert_eq!(token(" abcdef.0123456789abcdef\n").bearer(), "abcdef.0123456789abcdef");
    }
}
