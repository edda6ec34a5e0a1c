//! Issuer of certificates: the coordinator's own CA on a first start without configuration, and those of the tests.
//!
//! Keys are ECDSA P-256. A CA is valid for 10 years, issued certificates for 1 year. Validity begins one hour ago,
//! because the clock of a fresh edge node may be a little behind.

use std::net::IpAddr;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData, SanType,
};

use crate::clock::{Clock, UnixTime};
use crate::tls::{PemPair, check_pair};

mod organizations;
mod request;
mod secret_file;
#[cfg(test)]
mod tests;

pub use request::RequestKey;
pub use secret_file::{make_folder, write_public, write_secret};

/// A certificate authority with its key.
pub struct CertificateAuthority {
    pair: PemPair,
    key: KeyPair,
    clock: Clock,
    leaf_validity: Option<Duration>,
}

/// Reason why no certificate could be issued. A retry with the same arguments does not help.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// The CA's certificate or key cannot be read.
    #[error("certificate authority: {0}")]
    Authority(String),
    /// A name that is invalid in a certificate.
    #[error("{name:?} cannot be a name in a certificate: {why}")]
    Name {
        /// The rejected name.
        name: String,
        /// Reason for the rejection.
        why: String,
    },
    /// More organizations than a certificate made here can carry.
    #[error("a certificate cannot have {count} organizations, at most {}", organizations::MAX)]
    TooManyOrganizations {
        /// Number of requested organizations.
        count: usize,
    },
    /// Key generation or signing failed.
    #[error("signing: {0}")]
    Signing(#[from] rcgen::Error),
}

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Validity of a generated CA: longer than the life of an edge site's hardware.
pub const CA_VALIDITY: Duration = Duration::from_secs(3653 * DAY.as_secs());
/// Validity of an issued certificate unless [`CertificateAuthority::with_leaf_validity`] says otherwise.
pub const LEAF_VALIDITY: Duration = Duration::from_secs(365 * DAY.as_secs());
/// Validity starts this long before now.
const BACKDATE: Duration = Duration::from_secs(3600);

// === impl CertificateAuthority ===

impl CertificateAuthority {
    /// A new self-signed authority, valid for [`CA_VALIDITY`].
    ///
    /// # Errors
    /// [`PkiError::Signing`] when the system has no randomness.
    pub fn generate(common_name: &str) -> Result<Self, PkiError> {
        Self::generate_for(common_name, Some(CA_VALIDITY))
    }

    /// As [`Self::generate`], but valid at any time, like the certificates it issues. It is for a node whose clock may
    /// be wrong, with a key stored next to the data that it protects.
    ///
    /// # Errors
    /// [`PkiError::Signing`] when the system has no randomness.
    pub fn generate_without_end(common_name: &str) -> Result<Self, PkiError> {
        Ok(Self::generate_for(common_name, None)?.without_end())
    }

    fn generate_for(common_name: &str, validity: Option<Duration>) -> Result<Self, PkiError> {
        let clock = Clock::system();
        let key = KeyPair::generate()?;
        let mut params = params(common_name, &clock, validity);
        // A path of length 0: it signs leaves, not further authorities.
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        let pair = PemPair {
            cert_pem: params.self_signed(&key)?.pem(),
            key_pem: key.serialize_pem(),
        };
        Ok(CertificateAuthority {
            pair,
            key,
            clock,
            leaf_validity: Some(LEAF_VALIDITY),
        })
    }

    /// An authority stored by an earlier run, or the cluster's.
    ///
    /// # Errors
    /// [`PkiError::Authority`] when one of the two is not PEM or they do not belong together.
    pub fn load(cert_pem: &str, key_pem: &str) -> Result<Self, PkiError> {
        let key = KeyPair::from_pem(key_pem).map_err(|e| PkiError::Authority(format!("private key: {e}")))?;
        let issuer =
            Issuer::from_ca_cert_pem(cert_pem, &key).map_err(|e| PkiError::Authority(format!("certificate: {e}")))?;
        drop(issuer);
        let pair = PemPair {
            cert_pem: cert_pem.to_owned(),
            key_pem: key_pem.to_owned(),
        };
        if let Err(error) = check_pair(&pair) {
            return Err(PkiError::Authority(error.to_string()));
        }
        Ok(CertificateAuthority {
            pair,
            key,
            clock: Clock::system(),
            leaf_validity: Some(LEAF_VALIDITY),
        })
    }

    /// Changes the validity of certificates issued from now on.
    #[must_use]
    pub fn with_leaf_validity(mut self, validity: Duration) -> Self {
        self.leaf_validity = Some(validity);
        self
    }

    /// Certificates issued from now on are valid at any time.
    #[must_use]
    pub fn without_end(mut self) -> Self {
        self.leaf_validity = None;
        self
    }

    /// Changes the clock that validity is counted from.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// The authority's certificate, which clients and servers trust.
    #[must_use]
    pub fn cert_pem(&self) -> &str {
        &self.pair.cert_pem
    }

    /// Certificate and key, to be kept with [`write_public`] and [`write_secret`].
    #[must_use]
    pub fn pair(&self) -> &PemPair {
        &self.pair
    }

    /// A serving certificate for `sans`, each an IP address or a DNS name (a leading `*.` is allowed).
    ///
    /// # Errors
    /// [`PkiError::Name`] names the subject alternative name that is neither.
    pub fn issue_server(&self, common_name: &str, sans: &[impl AsRef<str>]) -> Result<PemPair, PkiError> {
        let mut params = params(common_name, &self.clock, self.leaf_validity);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.subject_alt_names = sans
            .iter()
            .map(|san| alternative_name(san.as_ref()))
            .collect::<Result<_, _>>()?;
        self.issue(params, 0)
    }

    /// A client certificate: Kubernetes reads the user from `common_name` and the groups from `organizations`.
    ///
    /// # Errors
    /// [`PkiError::TooManyOrganizations`] above 16.
    pub fn issue_client(&self, common_name: &str, organizations: &[impl AsRef<str>]) -> Result<PemPair, PkiError> {
        let params = self.client_params(common_name, organizations)?;
        self.issue(params, organizations.len())
    }

    fn client_params(
        &self,
        common_name: &str,
        organizations: &[impl AsRef<str>],
    ) -> Result<CertificateParams, PkiError> {
        let mut params = params(common_name, &self.clock, self.leaf_validity);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        organizations::put(&mut params.distinguished_name, organizations)?;
        Ok(params)
    }

    /// Signs a certificate for this public key, in PEM.
    fn sign(
        &self,
        mut params: CertificateParams,
        organizations: usize,
        key: &impl PublicKeyData,
    ) -> Result<String, PkiError> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let issuer = Issuer::from_ca_cert_pem(&self.pair.cert_pem, organizations::Signer(&self.key))?;
        let certificate = params.signed_by(key, &issuer)?;
        organizations::finish("CERTIFICATE", certificate.der(), organizations)
    }
}

impl std::fmt::Debug for CertificateAuthority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CertificateAuthority")
            .field("pair", &self.pair)
            .finish_non_exhaustive()
    }
}

fn params(common_name: &str, clock: &Clock, validity: Option<Duration>) -> CertificateParams {
    let mut params = CertificateParams::default();
    let (now, epoch) = (clock.unix(), rcgen::date_time_ymd(1970, 1, 1));
    (params.not_before, params.not_after) = match validity {
        Some(validity) => (
            epoch + (now - BACKDATE).since(UnixTime::default()),
            epoch + (now + validity).since(UnixTime::default()),
        ),
        // RFC 5280, 4.1.2.5: no well-defined end.
        None => (epoch, rcgen::date_time_ymd(9999, 12, 31)),
    };
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params
}

fn alternative_name(name: &str) -> Result<SanType, PkiError> {
    let refuse = |why: String| PkiError::Name {
        name: name.to_owned(),
        why,
    };
    if let Ok(address) = name.parse::<IpAddr>() {
        return Ok(SanType::IpAddress(address));
    }
    rustls_pki_types::DnsName::try_from(name.strip_prefix("*.").unwrap_or(name)).map_err(|e| refuse(e.to_string()))?;
    name.try_into()
        .map(SanType::DnsName)
        .map_err(|e: rcgen::Error| refuse(e.to_string()))
}
