//! Facts of a certificate that decide about its use: subject, validity, public key. Nothing is verified.

use std::net::IpAddr;

use ring::digest::{SHA256, digest};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::{PeerIdentity, PemSource, TlsError};
use crate::clock::UnixTime;

/// Contents of one certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateInfo {
    /// User and groups.
    pub identity: PeerIdentity,
    /// First second of its validity.
    pub not_before: UnixTime,
    /// Last second of its validity.
    pub not_after: UnixTime,
    /// Public key, as DER of a SubjectPublicKeyInfo.
    pub public_key: Vec<u8>,
    /// DNS names and IP addresses that it is valid for (subjectAltName, RFC 5280 4.2.1.6), as text.
    pub names: Vec<String>,
}

// === impl CertificateInfo ===

impl CertificateInfo {
    /// Reads the first certificate of `source`, which is the client's or server's own.
    ///
    /// # Errors
    /// As [`PemSource::certificates`], or [`TlsError::Pem`] if it is not an X.509 certificate.
    pub fn leaf(source: &PemSource) -> Result<Self, TlsError> {
        let certificates = source.certificates()?;
        let read = certificates.first().and_then(|leaf| Self::from_der(leaf));
        read.ok_or_else(|| source.problem("not an X.509 certificate".to_owned()))
    }

    fn from_der(der: &rustls_pki_types::CertificateDer<'_>) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let at = |time: x509_parser::time::ASN1Time| UnixTime {
            secs: time.timestamp(),
            nanos: 0,
        };
        let alternatives = certificate.subject_alternative_name().ok().flatten();
        let names = alternatives.iter().flat_map(|all| &all.value.general_names);
        Some(Self {
            names: names.filter_map(name).collect(),
            identity: PeerIdentity::from_chain(std::slice::from_ref(der))?,
            not_before: at(certificate.validity().not_before),
            not_after: at(certificate.validity().not_after),
            public_key: certificate.public_key().raw.to_vec(),
        })
    }
}

/// Text of a DNS name or an IP address; `None` for other kinds of names.
fn name(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => {
            let four = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
            let address = four.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from));
            address.ok().map(|address| address.to_string())
        }
        _ => None,
    }
}

/// Certificates of `source` whose public key has one of the `pins`, in PEM; empty if there is none. A pin is
/// `sha256:` and the hexadecimal hash of the SubjectPublicKeyInfo, as `kubeadm token create` prints it.
///
/// # Errors
/// As [`PemSource::certificates`].
pub fn pinned(source: &PemSource, pins: &[String]) -> Result<String, TlsError> {
    let certificates = source.certificates()?;
    let fits = |der: &&rustls_pki_types::CertificateDer<'_>| {
        let info = CertificateInfo::from_der(der);
        info.is_some_and(|info| {
            let pin = public_key_pin(&info.public_key);
            pins.iter().any(|given| given.eq_ignore_ascii_case(&pin))
        })
    };
    let pem = certificates
        .iter()
        .filter(fits)
        .map(|der| super::to_pem("CERTIFICATE", der));
    Ok(pem.collect())
}

/// Certificates of `source` that `bundle` lacks, in PEM; empty if it has all.
///
/// # Errors
/// As [`PemSource::certificates`].
pub fn missing_in(bundle: &PemSource, source: &PemSource) -> Result<String, TlsError> {
    let (held, offered) = (bundle.certificates()?, source.certificates()?);
    let missing = offered.iter().filter(|der| !held.contains(der));
    Ok(missing.map(|der| super::to_pem("CERTIFICATE", der)).collect())
}

/// The pin of this public key (DER of a SubjectPublicKeyInfo).
#[must_use]
pub fn public_key_pin(public_key: &[u8]) -> String {
    let hash = digest(&SHA256, public_key);
    let hex: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pki::CertificateAuthority;

    #[test]
    fn leaf_tells_its_subject_and_validity() {
        let authority = CertificateAuthority::generate("ca").unwrap();
        let pair = authority.issue_client("system:node:n1", &["system:nodes"]).unwrap();
        let source = PemSource::inline("pair", format!("{}{}", pair.cert_pem, authority.cert_pem()));
        let info = CertificateInfo::leaf(&source).unwrap();
        assert_eq!(info.identity.node_name(), Some("n1"));
        assert_eq!(info.not_after.since(info.not_before).as_secs(), 365 * 24 * 3600 + 3600);
        assert!(CertificateInfo::leaf(&PemSource::inline("x", pair.key_pem)).is_err());
    }

    #[test]
    fn only_pinned_authorities_are_kept() {
        let [good, bad] = ["good", "bad"].map(|name| CertificateAuthority::generate(name).unwrap());
        let both = PemSource::inline("both", format!("{}{}", bad.cert_pem(), good.cert_pem()));
        let own = PemSource::inline("good", good.cert_pem());
        let pin = public_key_pin(&CertificateInfo::leaf(&own).unwrap().public_key);
        let kept = pinned(&both, &[pin.to_uppercase().replace("SHA256", "sha256")]).unwrap();
        let kept = PemSource::inline("kept", kept).certificates().unwrap();
        assert_eq!(kept, own.certificates().unwrap());
        assert_eq!(pinned(&both, &["sha256:00".to_owned()]).unwrap(), "");
    }
}
