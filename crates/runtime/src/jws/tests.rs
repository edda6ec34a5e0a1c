//! Keys made by openssl, used for nothing else. openssl also made the RSA signature and the key ids.

use super::*;
use crate::pki::CertificateAuthority;

const RSA: &str = include_str!("keys/rsa.pem");
const RSA_PUBLIC: &str = include_str!("keys/rsa-public.pem");
const P256: &str = include_str!("keys/p256.pem");
const P256_PUBLIC: &str = include_str!("keys/p256-public.pem");
const P384: &str = include_str!("keys/p384.pem");
const P384_PUBLIC: &str = include_str!("keys/p384-public.pem");
const P521: &str = include_str!("keys/p521.pem");
const RSA_ID: &str = "_ePiuyXpNVsyiCJm7mW-bPmBgcEQJZBGvHpy7gcPZZY";
const P256_ID: &str = "EQ3ShSrU-F-tpqa7sMVyVvjfwyhDLcZvUfZ20AlqIVs";
const P384_ID: &str = "uiu1rQkeK5dIsIY-9HJ-d36_niS65125yYPwUPBChpw";
const RSA_HELLO: &str = "f7u6rjC3lkkT2Fm007yZMStKZ55yichSc-y2ukhzv3ful_eB5CQ1-Us4Ci0bDtyg9eRuzt7Aw2CIHVhMnV9EfdYxid9uhbZxpDFrmOBDJP2ylIKVh30FWNT4ZC8ajBNbzII43X-GdIXRKHY7NFuIqpHGD7grFurvTea_T3VQFIrB3s4ZQPV6aR7mDxPwHO_o98JxUr4JXPBsvqr6Iz2bZNFDhIpFPyby17XxAnphVC5GP0SjLR95OGn6KhpDfUmG2sfdr80IDpvTyY0XL9vC05wF2qGNUOEmRtFFU1WpBW20vrKQOxO0WjUdmBNqAImuyCJ3IA0F9710hqaAiTkmLA";

fn source(pem: &str) -> PemSource {
    PemSource::inline("test", pem)
}

#[test]
fn private_and_public_files_are_the_same_key() {
    for (private, public, id, algorithm) in [
        (RSA, RSA_PUBLIC, RSA_ID, "RS256"),
        (P256, P256_PUBLIC, P256_ID, "ES256"),
        (P384, P384_PUBLIC, P384_ID, "ES384"),
    ] {
        let key = SigningKey::load(&source(private)).unwrap();
        assert_eq!((key.verifying().id(), key.algorithm()), (id, algorithm));
        for pem in [private, public] {
            assert_eq!(VerifyingKey::load_all(&source(pem)).unwrap(), [key.verifying().clone()]);
        }
        let signature = key.sign(b"hello").unwrap();
        assert!(key.verifying().verify(algorithm, b"hello", &signature));
        assert!(!key.verifying().verify(algorithm, b"hellp", &signature));
    }
}

#[test]
fn rsa_signatures_are_those_of_others() {
    let signature = URL_SAFE_NO_PAD.decode(RSA_HELLO).unwrap();
    assert_eq!(
        SigningKey::load(&source(RSA)).unwrap().sign(b"hello").unwrap(),
        signature
    );
}

#[test]
fn key_verifies_only_algorithms_of_its_own() {
    let key = SigningKey::load(&source(P256)).unwrap();
    let signature = key.sign(b"hello").unwrap();
    for algorithm in ["none", "", "HS256", "RS256", "ES384", "PS256", "es256"] {
        assert!(!key.verifying().verify(algorithm, b"hello", &signature), "{algorithm}");
    }
    assert!(!key.verifying().verify("ES256", b"hello", b"") && !key.verifying().verify("ES256", b"hello", &[0; 64]));
}

#[test]
fn bundles_and_certificates_give_every_key() {
    let ca = CertificateAuthority::generate("ca").unwrap();
    let bundle = format!("{RSA_PUBLIC}{}{P384}", ca.cert_pem());
    assert_eq!(VerifyingKey::load_all(&source(&bundle)).unwrap().len(), 3);
}

#[test]
fn what_is_no_usable_key_is_refused_by_name() {
    for pem in ["", "nonsense", P521] {
        let public = VerifyingKey::load_all(&source(pem)).unwrap_err().to_string();
        let private = SigningKey::load(&source(pem)).unwrap_err().to_string();
        assert!(
            public.starts_with("test: no key") && private.starts_with("test: no key"),
            "{public}"
        );
    }
    assert!(SigningKey::load(&source(RSA_PUBLIC)).is_err());
}
