//! Certificates with several organizations (O), which Kubernetes reads as several groups.
//!
//! rcgen keeps one value per attribute type. So each organization first gets a placeholder type of its own, of the same
//! encoded length as O. The placeholders are replaced in the signed bytes ([`Signer`]) and in the finished certificate
//! ([`finish`]) alike.

use rcgen::{DistinguishedName, DnType, KeyPair, PublicKeyData, SignatureAlgorithm, SigningKey};

use super::PkiError;
use crate::tls::to_pem;

/// Signs the certificate in its form after [`finish`].
pub(super) struct Signer<'a>(pub(super) &'a KeyPair);

/// Number of placeholder types: those that one byte can name above every attribute assigned by X.520.
pub(super) const MAX: usize = 16;

/// 2.5.4.112 is the first placeholder; 2.5.4.10 is O.
const FIRST_PLACEHOLDER: u8 = 112;
const ORGANIZATION: u8 = 10;

/// DER of the object identifier 2.5.4.x without its last byte.
const X520: [u8; 4] = [0x06, 0x03, 0x55, 0x04];

/// Adds the organizations under their placeholders.
pub(super) fn put(name: &mut DistinguishedName, organizations: &[impl AsRef<str>]) -> Result<(), PkiError> {
    if organizations.len() > MAX {
        return Err(PkiError::TooManyOrganizations {
            count: organizations.len(),
        });
    }
    for (placeholder, organization) in (u64::from(FIRST_PLACEHOLDER)..).zip(organizations) {
        name.push(DnType::CustomDnType(vec![2, 5, 4, placeholder]), organization.as_ref());
    }
    Ok(())
}

/// The certificate or request in PEM, with its placeholders replaced; `label` is that of its PEM block.
pub(super) fn finish(label: &str, der: &[u8], organizations: usize) -> Result<String, PkiError> {
    let (der, replaced) = replace(der);
    if replaced != organizations {
        // A key or serial number that happens to contain a placeholder: one in 10^10, and a retry helps.
        return Err(PkiError::Signing(rcgen::Error::CouldNotParseCertificate));
    }
    Ok(to_pem(label, &der))
}

fn replace(der: &[u8]) -> (Vec<u8>, usize) {
    let mut der = der.to_vec();
    let mut replaced = 0;
    for at in 0..der.len().saturating_sub(X520.len()) {
        let last = at + X520.len();
        if der[at..last] == X520 && usize::from(der[last].wrapping_sub(FIRST_PLACEHOLDER)) < MAX {
            der[last] = ORGANIZATION;
            replaced += 1;
        }
    }
    (der, replaced)
}

// === impl Signer ===

impl SigningKey for Signer<'_> {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        self.0.sign(&replace(message).0)
    }
}

impl PublicKeyData for Signer<'_> {
    fn der_bytes(&self) -> &[u8] {
        self.0.der_bytes()
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        PublicKeyData::algorithm(self.0)
    }
}
