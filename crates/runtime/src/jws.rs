//! Signatures of JSON Web Tokens: keys from PEM, and the algorithms that Kubernetes uses for service account tokens.
//!
//! RS256, RS384, RS512, ES256 and ES384. A key verifies only algorithms of its own family, regardless of a token's
//! header, and `none` is not an algorithm. Key ids are those of kube-apiserver: the hash of the public key.
//!
//! ```
//! use yurt_runtime::jws::SigningKey;
//! use yurt_runtime::pki::CertificateAuthority;
//! use yurt_runtime::tls::PemSource;
//!
//! let pair = CertificateAuthority::generate("ca").unwrap().issue_client("a", &["b"]).unwrap();
//! let key = SigningKey::load(&PemSource::inline("an example", pair.key_pem)).unwrap();
//! let signature = key.sign(b"text").unwrap();
//! assert!(key.verifying().verify(key.algorithm(), b"text", &signature));
//! assert!(!key.verifying().verify(key.algorithm(), b"other", &signature));
//! ```

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{self as ring_signature, EcdsaKeyPair, KeyPair as _, RsaKeyPair, UnparsedPublicKey};
use rustls_pki_types::pem::{PemObject as _, SectionKind};
use x509_parser::prelude::{FromDer as _, SubjectPublicKeyInfo, X509Certificate};

use crate::tls::{PemSource, TlsError};

/// A public key that verifies tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyingKey {
    id: String,
    family: Family,
    /// Form that ring expects: the PKCS#1 key of RSA, the point of a curve.
    key: Vec<u8>,
}

/// A private key that signs tokens.
#[derive(Debug)]
pub struct SigningKey {
    pair: Pair,
    verifying: VerifyingKey,
    random: SystemRandom,
}

/// The signature could not be made.
#[derive(Debug, thiserror::Error)]
#[error("signing failed")]
pub struct SignError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Rsa,
    P256,
    P384,
}

#[derive(Debug)]
enum Pair {
    Rsa(Box<RsaKeyPair>),
    Ec(Box<EcdsaKeyPair>),
}

// Object identifiers, DER-encoded with tag and length.
const RSA_ENCRYPTION: &[u8] = &[6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1];
const EC_PUBLIC_KEY: &[u8] = &[6, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1];
const CURVE_P256: &[u8] = &[6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7];
const CURVE_P384: &[u8] = &[6, 5, 0x2b, 0x81, 4, 0, 0x22];
const NULL: &[u8] = &[5, 0];
const SEQUENCE: u8 = 0x30;
const BIT_STRING: u8 = 3;
const OCTET_STRING: u8 = 4;

const NO_KEY: &str = "no key in it; expected PUBLIC KEY, CERTIFICATE or a private key (RSA, or EC on P-256 or P-384)";

// === impl VerifyingKey ===

impl VerifyingKey {
    /// Every key of a PEM text: public ones, those of certificates, and the public halves of private ones.
    ///
    /// # Errors
    /// [`TlsError::Pem`] when there is none, or one that cannot be used.
    pub fn load_all(source: &PemSource) -> Result<Vec<Self>, TlsError> {
        let mut keys = Vec::new();
        for (kind, der) in blocks(source)? {
            match kind {
                SectionKind::PublicKey => keys.push(Self::from_spki(&der)),
                SectionKind::Certificate => keys.push(
                    X509Certificate::from_der(&der)
                        .ok()
                        .and_then(|(_, certificate)| Self::from_spki(certificate.public_key().raw)),
                ),
                SectionKind::RsaPrivateKey | SectionKind::EcPrivateKey | SectionKind::PrivateKey => {
                    keys.push(pair(kind, &der).map(|pair| pair.verifying()));
                }
                _ => {}
            }
        }
        let keys: Option<Vec<Self>> = keys.into_iter().collect();
        match keys {
            Some(keys) if !keys.is_empty() => Ok(keys),
            _ => Err(no_key(source)),
        }
    }

    /// The `kid` of tokens signed with this key.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// True if `signature` over `message` was made with this key, by the algorithm that the token names.
    #[must_use]
    pub fn verify(&self, algorithm: &str, message: &[u8], signature: &[u8]) -> bool {
        let algorithm: &dyn ring_signature::VerificationAlgorithm = match (self.family, algorithm) {
            (Family::Rsa, "RS256") => &ring_signature::RSA_PKCS1_2048_8192_SHA256,
            (Family::Rsa, "RS384") => &ring_signature::RSA_PKCS1_2048_8192_SHA384,
            (Family::Rsa, "RS512") => &ring_signature::RSA_PKCS1_2048_8192_SHA512,
            (Family::P256, "ES256") => &ring_signature::ECDSA_P256_SHA256_FIXED,
            (Family::P384, "ES384") => &ring_signature::ECDSA_P384_SHA384_FIXED,
            _ => return false,
        };
        UnparsedPublicKey::new(algorithm, &self.key)
            .verify(message, signature)
            .is_ok()
    }

    fn from_spki(spki: &[u8]) -> Option<Self> {
        let (_, info) = SubjectPublicKeyInfo::from_der(spki).ok()?;
        let key = info.subject_public_key.data.to_vec();
        [Family::Rsa, Family::P256, Family::P384]
            .into_iter()
            .map(|family| Self::new(family, key.clone()))
            .find(|candidate| candidate.spki() == spki)
    }

    fn new(family: Family, key: Vec<u8>) -> Self {
        let mut new = Self {
            id: String::new(),
            family,
            key,
        };
        let hash = ring::digest::digest(&ring::digest::SHA256, &new.spki());
        new.id = URL_SAFE_NO_PAD.encode(hash);
        new
    }

    /// The key with its algorithm, as X.509 writes it.
    fn spki(&self) -> Vec<u8> {
        let mut bits = vec![0];
        bits.extend(&self.key);
        sequence(&[&self.family.identifier(), &tagged(BIT_STRING, &bits)])
    }
}

// === impl SigningKey ===

impl SigningKey {
    /// The first private key of a PEM text.
    ///
    /// # Errors
    /// [`TlsError::Pem`] when there is none that can be used.
    pub fn load(source: &PemSource) -> Result<Self, TlsError> {
        let pair = blocks(source)?.iter().find_map(|(kind, der)| pair(*kind, der));
        let pair = pair.ok_or_else(|| no_key(source))?;
        Ok(Self {
            verifying: pair.verifying(),
            pair,
            random: SystemRandom::new(),
        })
    }

    /// The `alg` of its signatures.
    #[must_use]
    pub fn algorithm(&self) -> &'static str {
        match self.verifying.family {
            Family::Rsa => "RS256",
            Family::P256 => "ES256",
            Family::P384 => "ES384",
        }
    }

    /// The public half.
    #[must_use]
    pub fn verifying(&self) -> &VerifyingKey {
        &self.verifying
    }

    /// Signs `message`.
    ///
    /// # Errors
    /// [`SignError`] when the system has no randomness.
    pub fn sign(&self, message: &[u8]) -> Result<Vec<u8>, SignError> {
        match &self.pair {
            Pair::Ec(pair) => {
                let signature = pair.sign(&self.random, message).map_err(|_| SignError)?;
                Ok(signature.as_ref().to_vec())
            }
            Pair::Rsa(pair) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(&ring_signature::RSA_PKCS1_SHA256, &self.random, message, &mut signature)
                    .map_err(|_| SignError)?;
                Ok(signature)
            }
        }
    }
}

// === impl Pair ===

impl Pair {
    fn verifying(&self) -> VerifyingKey {
        match self {
            Self::Rsa(pair) => VerifyingKey::new(Family::Rsa, pair.public_key().as_ref().to_vec()),
            Self::Ec(pair) => {
                let point = pair.public_key().as_ref().to_vec();
                // An uncompressed point: one byte and two coordinates.
                let family = if point.len() == 65 { Family::P256 } else { Family::P384 };
                VerifyingKey::new(family, point)
            }
        }
    }
}

// === impl Family ===

impl Family {
    fn identifier(self) -> Vec<u8> {
        match self {
            Self::Rsa => sequence(&[RSA_ENCRYPTION, NULL]),
            Self::P256 => sequence(&[EC_PUBLIC_KEY, CURVE_P256]),
            Self::P384 => sequence(&[EC_PUBLIC_KEY, CURVE_P384]),
        }
    }
}

fn blocks(source: &PemSource) -> Result<Vec<(SectionKind, Vec<u8>)>, TlsError> {
    let text = source.read()?;
    let blocks = <(SectionKind, Vec<u8>)>::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    blocks.map_err(|error| TlsError::Pem {
        origin: source.to_string(),
        problem: format!("not valid PEM: {error}"),
    })
}

fn no_key(source: &PemSource) -> TlsError {
    TlsError::Pem {
        origin: source.to_string(),
        problem: NO_KEY.to_owned(),
    }
}

fn pair(kind: SectionKind, der: &[u8]) -> Option<Pair> {
    match kind {
        SectionKind::RsaPrivateKey => RsaKeyPair::from_der(der).ok().map(|pair| Pair::Rsa(Box::new(pair))),
        SectionKind::PrivateKey => match RsaKeyPair::from_pkcs8(der) {
            Ok(pair) => Some(Pair::Rsa(Box::new(pair))),
            Err(_) => curve_pair(|_| der.to_vec()),
        },
        // ring reads PKCS#8 only: the same key in another envelope.
        SectionKind::EcPrivateKey => {
            curve_pair(|family| sequence(&[&[2, 1, 0], &family.identifier(), &tagged(OCTET_STRING, der)]))
        }
        _ => None,
    }
}

fn curve_pair(pkcs8: impl Fn(Family) -> Vec<u8>) -> Option<Pair> {
    let random = SystemRandom::new();
    let curves = [
        (Family::P256, &ring_signature::ECDSA_P256_SHA256_FIXED_SIGNING),
        (Family::P384, &ring_signature::ECDSA_P384_SHA384_FIXED_SIGNING),
    ];
    curves.into_iter().find_map(|(family, algorithm)| {
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, &pkcs8(family), &random);
        pair.ok().map(|pair| Pair::Ec(Box::new(pair)))
    })
}

fn sequence(parts: &[&[u8]]) -> Vec<u8> {
    tagged(SEQUENCE, &parts.concat())
}

/// DER: tag, length, content.
fn tagged(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let mut out = vec![tag];
    match u8::try_from(length) {
        Ok(short) if short < 0x80 => out.push(short),
        _ => {
            let bytes: Vec<u8> = length.to_be_bytes().into_iter().skip_while(|byte| *byte == 0).collect();
            // At most eight bytes of length.
            out.push(0x80 | u8::try_from(bytes.len()).unwrap_or(8));
            out.extend(bytes);
        }
    }
    out.extend(content);
    out
}

#[cfg(test)]
mod tests;
