//! Identity in a certificate: Kubernetes reads the user from CN and the groups from every O.

use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer as _, X509Certificate, X509Name};

use super::{PemSource, TlsError};

/// Subject of a certificate. From a connection, its chain was verified.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PeerIdentity {
    /// CN: the user; the last one of several, as in kube-apiserver. Empty when the subject has none.
    pub common_name: String,
    /// Every O, in the order of the certificate: the groups.
    pub organizations: Vec<String>,
    /// The user's uid, from Kubernetes' own attribute of the subject. Empty when it has none.
    pub uid: String,
    /// SHA-256 of the certificate, in lower-case hexadecimal digits. Computed once, because every request uses it.
    pub sha256: String,
}

/// Attribute of a subject that contains a uid.
const UID: &str = "1.3.6.1.4.1.57683.2";

/// Prefix of the user in a node's certificate.
const NODE_USER: &str = "system:node:";
/// The group of all nodes.
const NODES: &str = "system:nodes";

// === impl PeerIdentity ===

impl PeerIdentity {
    /// Name of the node; `None` for any other identity. As in kube-apiserver's node authorizer, user and group decide.
    #[must_use]
    pub fn node_name(&self) -> Option<&str> {
        let name = self.common_name.strip_prefix(NODE_USER)?;
        (!name.is_empty() && self.organizations.iter().any(|group| group == NODES)).then_some(name)
    }

    /// Reads the leaf of a certificate chain; `None` when there is no certificate or it cannot be parsed.
    #[must_use]
    pub fn from_chain(chain: &[CertificateDer<'_>]) -> Option<Self> {
        let leaf = chain.first()?;
        let (_, certificate) = X509Certificate::from_der(leaf).ok()?;
        let mut identity = Self::from_subject(certificate.subject());
        let hash = ring::digest::digest(&ring::digest::SHA256, leaf);
        identity.sha256 = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        Some(identity)
    }

    /// Reads the first certificate of a PEM text, without verifying anything.
    ///
    /// # Errors
    /// [`TlsError::Pem`] when there is none.
    pub fn from_pem(pem: &str) -> Result<Self, TlsError> {
        let source = PemSource::inline("the certificate", pem);
        let chain = source.certificates()?;
        Self::from_chain(&chain).ok_or_else(|| TlsError::Pem {
            origin: source.to_string(),
            problem: "not an X.509 certificate".to_owned(),
        })
    }

    fn from_subject(subject: &X509Name<'_>) -> Self {
        // A value that is not text names no identity.
        let common_name = subject
            .iter_common_name()
            .filter_map(|cn| cn.as_str().ok())
            .last()
            .unwrap_or_default()
            .to_owned();
        let organizations = subject
            .iter_organization()
            .filter_map(|o| o.as_str().ok())
            .map(str::to_owned)
            .collect();
        let uid = subject
            .iter_attributes()
            .filter(|attribute| attribute.attr_type().to_id_string() == UID)
            .find_map(|attribute| attribute.as_str().ok());
        PeerIdentity {
            common_name,
            organizations,
            uid: uid.unwrap_or_default().to_owned(),
            sha256: String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    /// 2.5.4.112 is unassigned, and 2.5.4.3 is CN: rcgen writes each type of attribute once.
    const SPARE: [u8; 5] = [0x06, 0x03, 0x55, 0x04, 112];
    const COMMON_NAME: [u8; 5] = [0x06, 0x03, 0x55, 0x04, 3];

    /// `crypto/x509` of Go keeps the last one, and kube-apiserver uses it.
    #[test]
    fn last_of_several_common_names_is_the_user() {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "system:node:n1");
        params
            .distinguished_name
            .push(DnType::CustomDnType(vec![2, 5, 4, 112]), "jane");
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let mut der = certificate.der().to_vec();
        for at in 0..der.len() - SPARE.len() {
            if der[at..].starts_with(&SPARE) {
                der[at..at + SPARE.len()].copy_from_slice(&COMMON_NAME);
            }
        }
        let identity = PeerIdentity::from_chain(&[der.into()]).unwrap();
        assert_eq!(identity.common_name, "jane");
    }
}
