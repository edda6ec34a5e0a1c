//! The CertificateSigningRequest of this node: its object, and the state in the server's answer. Pure.
//!
//! The name is a digest of the public key and the request's content. So a hub that restarts finds its request again,
//! and cannot mistake another's for its own.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ring::digest::{Context, SHA256};
use serde_json::{Value, json};

pub use crate::config::{CLIENT_SIGNER, KUBELET_SIGNER};

/// Collection of the requests.
pub const PATH: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
/// Group of upstream's hubs. Its approver requires it.
const HUBS: &str = "openyurt:yurthub";
/// Group of all nodes.
const NODES: &str = "system:nodes";
/// Usages of a client certificate.
const CLIENT_USAGES: [&str; 3] = ["digital signature", "key encipherment", "client auth"];
/// Usages of a serving certificate.
const SERVER_USAGES: [&str; 3] = ["digital signature", "key encipherment", "server auth"];
/// Signer of serving certificates of nodes.
pub const SERVING_SIGNER: &str = "kubernetes.io/kubelet-serving";

/// Content of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Name of the node.
    pub node: String,
    /// Groups of the certificate.
    pub organizations: Vec<String>,
    /// Signer.
    pub signer: String,
    /// Names and addresses of a serving certificate; empty for a client's.
    pub names: Vec<String>,
}

/// State of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CsrState {
    /// Neither approved nor signed.
    Pending,
    /// Approved, not signed yet.
    Approved,
    /// Signed: the certificate in PEM.
    Issued(String),
    /// Denied by an approver: its reason and message.
    Denied(String),
    /// The signer failed: its reason and message.
    Failed(String),
}

// === impl Profile ===

impl Profile {
    /// The request of `node`'s hub; `additional` are further organizations.
    #[must_use]
    pub fn new(node: &str, signer: &str, additional: &[String]) -> Self {
        // The signer of kubelets accepts one organization only.
        let own: &[&str] = if signer == KUBELET_SIGNER {
            &[NODES]
        } else {
            &[HUBS, NODES]
        };
        Self {
            node: node.to_owned(),
            organizations: own
                .iter()
                .map(|o| (*o).to_owned())
                .chain(additional.iter().cloned())
                .collect(),
            signer: signer.to_owned(),
            names: Vec::new(),
        }
    }

    /// The request for a serving certificate of `node`'s hub, as OpenYurt's approver requires it.
    #[must_use]
    pub fn serving(node: &str, names: &[String]) -> Self {
        Self {
            node: node.to_owned(),
            organizations: vec![NODES.to_owned()],
            signer: SERVING_SIGNER.to_owned(),
            names: names.to_vec(),
        }
    }

    /// CN of the certificate.
    #[must_use]
    pub fn common_name(&self) -> String {
        format!("system:node:{}", self.node)
    }

    /// Name of the request for this public key.
    #[must_use]
    pub fn name(&self, public_key: &[u8]) -> String {
        let mut hash = Context::new(&SHA256);
        let common_name = self.common_name();
        let parts = [public_key, self.signer.as_bytes(), common_name.as_bytes()];
        let more = self.organizations.iter().chain(&self.names).map(String::as_bytes);
        for part in parts.into_iter().chain(more) {
            hash.update(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            hash.update(part);
        }
        let hex: String = hash
            .finish()
            .as_ref()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        format!("yurthub-csr-{}", &hex[..40])
    }

    /// The object to create; `pem` is the PKCS #10 request.
    #[must_use]
    pub fn object(&self, name: &str, pem: &str) -> Value {
        let usages = if self.names.is_empty() {
            CLIENT_USAGES
        } else {
            SERVER_USAGES
        };
        json!({
            "apiVersion": "certificates.k8s.io/v1",
            "kind": "CertificateSigningRequest",
            "metadata": {"name": name},
            "spec": {"request": BASE64.encode(pem), "signerName": self.signer, "usages": usages},
        })
    }
}

// === impl CsrState ===

impl CsrState {
    /// Reads the state of a CertificateSigningRequest in JSON.
    ///
    /// # Errors
    /// The fault of the text.
    pub fn read(body: &[u8]) -> Result<Self, String> {
        let object: Value = serde_json::from_slice(body).map_err(|error| format!("not JSON: {error}"))?;
        let status = &object["status"];
        let conditions = status["conditions"].as_array().map_or(&[][..], Vec::as_slice);
        let found = |kind: &str| {
            let found = conditions
                .iter()
                .find(|one| one["type"] == kind && one["status"] != "False");
            found.map(|one| {
                let text = |field: &str| one[field].as_str().unwrap_or_default().to_owned();
                [text("reason"), text("message")]
                    .iter()
                    .filter(|text| !text.is_empty())
                    .cloned()
                    .collect::<Vec<_>>()
            })
        };
        // As in client-go, a denial or a failure decides before a certificate does.
        if let Some(why) = found("Denied") {
            return Ok(Self::Denied(why.join(": ")));
        }
        if let Some(why) = found("Failed") {
            return Ok(Self::Failed(why.join(": ")));
        }
        match status["certificate"].as_str() {
            Some(text) if !text.is_empty() => {
                let pem = BASE64
                    .decode(text)
                    .map_err(|error| format!("status.certificate: {error}"))?;
                let pem = String::from_utf8(pem).map_err(|_| "status.certificate is not PEM".to_owned())?;
                Ok(Self::Issued(pem))
            }
            _ if found("Approved").is_some() => Ok(Self::Approved),
            _ => Ok(Self::Pending),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn state(status: Value) -> CsrState {
        CsrState::read(json!({ "status": status }).to_string().as_bytes()).unwrap()
    }

    #[test]
    fn every_state_is_read_and_a_denial_wins() {
        let condition = |kind: &str| json!({"type": kind, "status": "True", "reason": "R", "message": "m"});
        let certificate = BASE64.encode("PEM");
        assert_eq!(state(json!({})), CsrState::Pending);
        assert_eq!(
            state(json!({"conditions": [condition("Approved")]})),
            CsrState::Approved
        );
        let issued = json!({"conditions": [condition("Approved")], "certificate": certificate});
        assert_eq!(state(issued), CsrState::Issued("PEM".to_owned()));
        let both = json!({"conditions": [condition("Approved"), condition("Denied")], "certificate": certificate});
        assert_eq!(state(both), CsrState::Denied("R: m".to_owned()));
        assert_eq!(
            state(json!({"conditions": [condition("Failed")]})),
            CsrState::Failed("R: m".to_owned())
        );
        assert!(CsrState::read(b"<html>").is_err());
    }

    #[test]
    fn name_depends_on_everything_requested() {
        let base = Profile::new("n1", CLIENT_SIGNER, &[]);
        let others = [
            (Profile::new("n2", CLIENT_SIGNER, &[]), b"key".as_slice()),
            (Profile::new("n1", KUBELET_SIGNER, &[]), b"key"),
            (Profile::new("n1", CLIENT_SIGNER, &["tenant".to_owned()]), b"key"),
            (base.clone(), b"other key"),
            (Profile::serving("n1", &["10.96.0.1".to_owned()]), b"key"),
            (Profile::serving("n1", &["10.96.0.2".to_owned()]), b"key"),
        ];
        for (other, key) in others {
            assert_ne!(base.name(b"key"), other.name(key), "{other:?}");
        }
        assert_eq!(base.name(b"key"), Profile::new("n1", CLIENT_SIGNER, &[]).name(b"key"));
        assert!(base.name(b"key").len() <= 63);
    }

    #[test]
    fn request_is_upstreams() {
        let profile = Profile::new("n1", CLIENT_SIGNER, &[]);
        assert_eq!(profile.common_name(), "system:node:n1");
        assert_eq!(profile.organizations, ["openyurt:yurthub", "system:nodes"]);
        let object = profile.object("name", "PEM");
        assert_eq!(object["spec"]["signerName"], "kubernetes.io/kube-apiserver-client");
        assert_eq!(object["spec"]["request"], BASE64.encode("PEM"));
        assert_eq!(object["spec"]["usages"], json!(CLIENT_USAGES));
        assert_eq!(Profile::new("n1", KUBELET_SIGNER, &[]).organizations, ["system:nodes"]);
        let serving = Profile::serving("n1", &["169.254.2.1".to_owned()]);
        let object = serving.object("name", "PEM");
        assert_eq!(object["spec"]["signerName"], "kubernetes.io/kubelet-serving");
        assert_eq!(object["spec"]["usages"], json!(SERVER_USAGES));
        assert_eq!(
            (serving.common_name(), serving.organizations),
            ("system:node:n1".to_owned(), vec![NODES.to_owned()])
        );
    }

    proptest! {
        #[test]
        fn no_answer_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200), text in ".{0,80}") {
            let _ = CsrState::read(&bytes);
            let _ = CsrState::read(json!({"status": {"certificate": text, "conditions": text}}).to_string().as_bytes());
        }
    }
}
