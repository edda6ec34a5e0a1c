//! Reads who a certificate is for: Kubernetes takes the user from CN and the groups from every O.

use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer as _, X509Certificate, X509Name};

use super::{PemSource, TlsError};

/// Subject of a certificate whose chain was verified (when it comes from a connection).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PeerIdentity {
    /// CN: the user. Empty when the subject has none.
    pub common_name: String,
    /// Every O, in the order of the certificate: the groups.
    pub organizations: Vec<String>,
}

// === impl PeerIdentity ===

impl PeerIdentity {
    /// Reads the leaf of a certificate chain; `None` when there is no certificate or it cannot be parsed.
    #[must_use]
    pub fn from_chain(chain: &[CertificateDer<'_>]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(chain.first()?).ok()?;
        Some(Self::from_subject(certificate.subject()))
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
        // A value that is not text names nobody.
        let common_name = subject
            .iter_common_name()
            .find_map(|cn| cn.as_str().ok())
            .unwrap_or_default()
            .to_owned();
        let organizations = subject
            .iter_organization()
            .filter_map(|o| o.as_str().ok())
            .map(str::to_owned)
            .collect();
        PeerIdentity {
            common_name,
            organizations,
        }
    }
}
