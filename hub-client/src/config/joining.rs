//! Flags of the node's certificate: who obtains it, and with which credential a new node joins the cluster.

use std::path::{Path, PathBuf};

use clap::{ArgAction, Args, ValueEnum};
use yurt_runtime::flags::{GoDuration, Optional, parse_go_bool};

use super::join::{CLIENT_SIGNER, Join, JoinToken, KUBELET_SIGNER, OWN_KUBECONFIG, Trust};
use super::{FlagError, bad};

/// Kubeconfig that kubeadm writes for the kubelet.
pub(crate) const KUBELET_CONF: &str = "/etc/kubernetes/kubelet.conf";
/// Characters of a SHA-256 in hexadecimal digits.
const HASH_LEN: usize = 64;

/// The flags as given on the command line.
#[derive(Clone, Debug, Args)]
pub(super) struct JoiningFlags {
    /// Owner of the node's client certificate. kubeletcertificate: the kubelet, in --kubeconfig. token: this hub, which
    /// requests it at its first start and renews it [default: token with --join-token or --bootstrap-file, else
    /// kubeletcertificate].
    #[arg(long, value_enum)]
    bootstrap_mode: Option<Mode>,
    /// Bootstrap token (kubeadm token create) to request the first certificate with, or another one after its end.
    /// Remove it once the node has joined. Needs --discovery-token-ca-cert-hash.
    #[arg(long, default_value = "", hide_default_value = true)]
    join_token: String,
    /// Kubeconfig with the cluster's CA and a token or certificate, used like --join-token.
    #[arg(long, default_value = "", hide_default_value = true)]
    bootstrap_file: Optional<PathBuf>,
    /// Hashes of the public key of the cluster's CA, sha256:HEX, separated by commas. `kubeadm token create
    /// --print-join-command` prints it.
    #[arg(long, value_delimiter = ',')]
    discovery_token_ca_cert_hash: Vec<String>,
    /// Accept any CA that is signed with --join-token. Other holders of the token can then pose as the cloud.
    #[arg(long, default_value = "false", value_parser = parse_go_bool, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set)]
    discovery_token_unsafe_skip_ca_verification: bool,
    /// Maximum time for which a first start tries a token that the servers do not know: they learn of a new one some
    /// seconds after its creation. Shorten it if a wrong token should end the start earlier.
    #[arg(long, default_value = "5m")]
    discovery_timeout: GoDuration,
    /// Organizations of the certificate in addition to openyurt:yurthub and system:nodes, separated by commas.
    #[arg(long, value_delimiter = ',')]
    hub_cert_organizations: Vec<String>,
    /// Signer of the certificate. yurt-manager approves requests for kube-apiserver-client; kube-controller-manager
    /// those for kube-apiserver-client-kubelet, in clusters without yurt-manager.
    #[arg(long, value_parser = [CLIENT_SIGNER, KUBELET_SIGNER], default_value = CLIENT_SIGNER)]
    hub_cert_signer: String,
    /// Kubeconfig with the cluster's CA and the node's client certificate, in mode kubeletcertificate
    /// [default: /etc/kubernetes/kubelet.conf].
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
}

/// Owner of the node's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// This hub.
    Token,
    /// The kubelet.
    Kubeletcertificate,
}

// === impl JoiningFlags ===

impl JoiningFlags {
    /// Checks the flags. Returns the path of the kubeconfig with the certificate, and the means of joining if the hub
    /// owns it.
    ///
    /// # Errors
    /// [`FlagError`] names the flag, and the one that it contradicts.
    pub(super) fn check(self, root: &Path) -> Result<(PathBuf, Option<Join>), FlagError> {
        let credential = match (self.join_token.is_empty(), &self.bootstrap_file.0) {
            (false, Some(_)) => {
                return Err(bad("join-token", "contradicts --bootstrap-file; give one of them"));
            }
            (false, None) => Some("join-token"),
            (true, Some(_)) => Some("bootstrap-file"),
            (true, None) => None,
        };
        match (self.bootstrap_mode, credential) {
            (Some(Mode::Kubeletcertificate), Some(flag)) => {
                let problem = "has no use with --bootstrap-mode=kubeletcertificate; omit one of them";
                return Err(bad(flag, problem));
            }
            (Some(Mode::Kubeletcertificate), None) | (None, None) => {
                self.check_no_join()?;
                return Ok((self.kubeconfig.unwrap_or_else(|| KUBELET_CONF.into()), None));
            }
            (Some(Mode::Token), _) | (None, Some(_)) => {}
        }
        if self.kubeconfig.is_some() {
            let problem = "has no use when the hub requests its own certificate; omit it, or use \
                           --bootstrap-mode=kubeletcertificate";
            return Err(bad("kubeconfig", problem));
        }
        let join = self.join()?;
        Ok((root.join(OWN_KUBECONFIG), Some(join)))
    }

    /// Refuses flags that have an effect only if the hub requests its own certificate.
    fn check_no_join(&self) -> Result<(), FlagError> {
        let is_given = |values: &[String]| values.iter().any(|value| !value.trim().is_empty());
        for (flag, is_given) in [
            (
                "discovery-token-ca-cert-hash",
                is_given(&self.discovery_token_ca_cert_hash),
            ),
            (
                "discovery-token-unsafe-skip-ca-verification",
                self.discovery_token_unsafe_skip_ca_verification,
            ),
            ("hub-cert-organizations", is_given(&self.hub_cert_organizations)),
        ] {
            if is_given {
                let problem =
                    "has no use when the certificate is the kubelet's; add --bootstrap-mode=token, or omit it";
                return Err(bad(flag, problem));
            }
        }
        Ok(())
    }

    fn join(self) -> Result<Join, FlagError> {
        let token = match self.join_token.as_str() {
            "" => None,
            text => Some(JoinToken::parse(text).map_err(|problem| bad("join-token", problem))?),
        };
        let hashes: Vec<String> = self
            .discovery_token_ca_cert_hash
            .iter()
            .map(|hash| hash.trim().to_owned())
            .filter(|hash| !hash.is_empty())
            .collect();
        if let Some(wrong) = hashes.iter().find(|hash| !is_hash(hash)) {
            let problem = format!("{wrong:?} must be sha256: and {HASH_LEN} hexadecimal digits");
            return Err(bad("discovery-token-ca-cert-hash", problem));
        }
        let trust = match (hashes.is_empty(), self.discovery_token_unsafe_skip_ca_verification) {
            (false, _) => Trust::Pins(hashes),
            (true, true) => Trust::TokenAlone,
            (true, false) if token.is_some() => {
                let problem = "must be set with --join-token (`kubeadm token create --print-join-command` prints it), or \
                               --discovery-token-unsafe-skip-ca-verification=true";
                return Err(bad("discovery-token-ca-cert-hash", problem));
            }
            // A token received later is verified against no CA unless one is stored.
            (true, false) => Trust::Pins(Vec::new()),
        };
        let organizations: Vec<String> = self
            .hub_cert_organizations
            .iter()
            .map(|o| o.trim().to_owned())
            .filter(|o| !o.is_empty())
            .collect();
        if self.hub_cert_signer == KUBELET_SIGNER && !organizations.is_empty() {
            let problem =
                format!("cannot be set with --hub-cert-signer={KUBELET_SIGNER}, which signs system:nodes only");
            return Err(bad("hub-cert-organizations", problem));
        }
        Ok(Join {
            token,
            file: self.bootstrap_file.0,
            trust,
            discovery: self.discovery_timeout.into(),
            signer: self.hub_cert_signer,
            organizations,
        })
    }
}

fn is_hash(text: &str) -> bool {
    let digits = text.strip_prefix("sha256:");
    digits.is_some_and(|digits| digits.len() == HASH_LEN && digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        joining: JoiningFlags,
    }

    const TOKEN: &str = "--join-token=abcdef.0123456789abcdef";

    fn check(args: &[&str]) -> Result<(PathBuf, Option<Join>), String> {
        let flags = Flags::try_parse_from(["yurthub"].iter().chain(args)).map_err(|error| error.to_string())?;
        flags
            .joining
            .check(Path::new("/root"))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn owner_of_the_certificate_follows_from_what_is_given() {
        let of_kubelet = |args: &[&str]| check(args).unwrap().1.is_none();
        assert!(of_kubelet(&[]) && of_kubelet(&["--bootstrap-mode=kubeletcertificate"]));
        assert_eq!(check(&[]).unwrap().0, Path::new("/etc/kubernetes/kubelet.conf"));
        for args in [&["--bootstrap-file=/b"][..], &["--bootstrap-mode=token"]] {
            let (kubeconfig, join) = check(args).unwrap();
            assert_eq!(kubeconfig, Path::new("/root/yurthub.conf"));
            assert!(join.is_some(), "{args:?}");
        }
        let pin = format!("--discovery-token-ca-cert-hash=sha256:{}", "0a".repeat(32));
        let join = check(&[TOKEN, &pin]).unwrap().1.unwrap();
        assert_eq!(join.trust, Trust::Pins(vec![format!("sha256:{}", "0a".repeat(32))]));
        let join = check(&[TOKEN, "--discovery-token-unsafe-skip-ca-verification=true"])
            .unwrap()
            .1
            .unwrap();
        assert_eq!(join.trust, Trust::TokenAlone);
    }

    #[test]
    fn contradictions_name_the_flag_and_the_fix() {
        let cases: [(&[&str], &str, &str); 10] = [
            (&[TOKEN], "--discovery-token-ca-cert-hash:", "unsafe-skip"),
            (&["--join-token=x"], "--join-token:", "kubeadm token create"),
            (&[TOKEN, "--bootstrap-file=/b"], "--join-token:", "--bootstrap-file"),
            (&["--bootstrap-mode=kubeletcertificate", TOKEN], "--join-token:", "omit"),
            (&["--bootstrap-mode=token", "--kubeconfig=/k"], "--kubeconfig:", "omit"),
            (
                &["--bootstrap-file=/b", "--discovery-token-ca-cert-hash=sha1:00"],
                "--discovery-token-ca-cert-hash:",
                "64 hexadecimal",
            ),
            (
                &[
                    "--bootstrap-file=/b",
                    "--hub-cert-organizations=a",
                    "--hub-cert-signer=kubernetes.io/kube-apiserver-client-kubelet",
                ],
                "--hub-cert-organizations:",
                "--hub-cert-signer",
            ),
            (
                &["--discovery-token-ca-cert-hash=rubbish"],
                "--discovery-token-ca-cert-hash:",
                "--bootstrap-mode=token",
            ),
            (
                &["--bootstrap-mode=kubeletcertificate", "--hub-cert-organizations=a"],
                "--hub-cert-organizations:",
                "--bootstrap-mode=token",
            ),
            (
                &["--discovery-token-unsafe-skip-ca-verification"],
                "--discovery-token-unsafe-skip-ca-verification:",
                "--bootstrap-mode=token",
            ),
        ];
        for (args, flag, fix) in cases {
            let error = check(args).expect_err("must be refused");
            assert!(error.starts_with(flag) && error.contains(fix), "{args:?}: {error}");
        }
    }
}
