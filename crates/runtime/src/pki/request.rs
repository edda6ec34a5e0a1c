//! Certificate requests (PKCS #10): the key stays with the client, another authority signs.

use rcgen::{
    CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType, KeyPair, PublicKeyData as _,
};

use super::{CertificateAuthority, PkiError, alternative_name, organizations};
use crate::tls::PemPair;

/// Key of a certificate that another authority signs: ECDSA P-256.
pub struct RequestKey(KeyPair);

// === impl RequestKey ===

impl RequestKey {
    /// Creates a key.
    ///
    /// # Errors
    /// [`PkiError::Signing`] if the system has no randomness.
    pub fn generate() -> Result<Self, PkiError> {
        Ok(Self(KeyPair::generate()?))
    }

    /// Reads a key from PEM.
    ///
    /// # Errors
    /// [`PkiError::Signing`] if the text is not a private key.
    pub fn load(pem: &str) -> Result<Self, PkiError> {
        Ok(Self(KeyPair::from_pem(pem)?))
    }

    /// The key in PEM (PKCS #8), for a file readable by its owner only.
    #[must_use]
    pub fn pem(&self) -> String {
        self.0.serialize_pem()
    }

    /// Its public half, as DER of a SubjectPublicKeyInfo.
    #[must_use]
    pub fn public_key(&self) -> Vec<u8> {
        self.0.subject_public_key_info()
    }

    /// The certificate request in PEM, signed with this key. `sans` are IP addresses or DNS names.
    ///
    /// # Errors
    /// [`PkiError::TooManyOrganizations`] above 16, [`PkiError::Name`] for a name that is neither.
    pub fn request(
        &self,
        common_name: &str,
        organizations: &[impl AsRef<str>],
        sans: &[impl AsRef<str>],
    ) -> Result<String, PkiError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        organizations::put(&mut params.distinguished_name, organizations)?;
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.subject_alt_names = sans
            .iter()
            .map(|san| alternative_name(san.as_ref()))
            .collect::<Result<_, _>>()?;
        let request = params.serialize_request(&organizations::Signer(&self.0))?;
        organizations::finish("CERTIFICATE REQUEST", request.der(), organizations.len())
    }
}

impl std::fmt::Debug for RequestKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RequestKey(hidden)")
    }
}

// === impl CertificateAuthority ===

impl CertificateAuthority {
    /// Signs a client certificate for the public key and the names of a request. Subject and groups are the given ones,
    /// because a signer decides about them; those of the request are not read.
    ///
    /// # Errors
    /// [`PkiError::Signing`] if the request is not one, or its signature is wrong.
    pub fn sign_client(
        &self,
        request_pem: &str,
        common_name: &str,
        organizations: &[impl AsRef<str>],
    ) -> Result<String, PkiError> {
        let request = CertificateSigningRequestParams::from_pem(request_pem)?;
        let mut params = self.client_params(common_name, organizations)?;
        params.subject_alt_names = request.params.subject_alt_names;
        self.sign(params, organizations.len(), &request.public_key)
    }

    /// Signs with a new key, and returns both.
    pub(super) fn issue(&self, params: CertificateParams, organizations: usize) -> Result<PemPair, PkiError> {
        let key = KeyPair::generate()?;
        Ok(PemPair {
            cert_pem: self.sign(params, organizations, &key)?,
            key_pem: key.serialize_pem(),
        })
    }
}

#[cfg(test)]
mod tests {
    use x509_parser::certification_request::X509CertificationRequest;
    use x509_parser::prelude::FromDer as _;

    use super::*;
    use crate::tls::{CertificateInfo, PemSource, check_pair};

    #[test]
    fn request_names_the_node_and_both_groups_and_its_certificate_fits_the_key() {
        let key = RequestKey::generate().unwrap();
        let groups = ["openyurt:yurthub", "system:nodes"];
        let pem = key.request("system:node:n1", &groups, &["127.0.0.1"]).unwrap();
        let (_, block) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap();
        assert_eq!(block.label, "CERTIFICATE REQUEST");
        let (_, request) = X509CertificationRequest::from_der(&block.contents).unwrap();
        let info = &request.certification_request_info;
        let found: Vec<&str> = info.subject.iter_organization().map(|o| o.as_str().unwrap()).collect();
        assert_eq!(found, groups);
        assert_eq!(info.subject_pki.raw, key.public_key());

        let authority = CertificateAuthority::generate("ca").unwrap();
        let cert_pem = authority.sign_client(&pem, "system:node:n1", &groups).unwrap();
        let signed = CertificateInfo::leaf(&PemSource::inline("signed", cert_pem.as_str())).unwrap();
        assert_eq!(
            (signed.identity.node_name(), signed.public_key),
            (Some("n1"), key.public_key())
        );
        let key_pem = RequestKey::load(&key.pem()).unwrap().pem();
        check_pair(&PemPair { cert_pem, key_pem }).unwrap();
        assert!(!format!("{key:?}").contains("BEGIN"));
    }
}
