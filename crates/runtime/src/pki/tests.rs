//! Issued certificates contain the requested names, and survive being stored.

use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::tls::PeerIdentity;

#[test]
fn client_certificate_carries_its_user_and_all_groups() {
    let ca = CertificateAuthority::generate("test-ca").unwrap();
    let groups = ["system:nodes", "pool:hangzhou", "third"];
    let pair = ca.issue_client("system:node:n1", &groups).unwrap();
    let identity = PeerIdentity::from_pem(&pair.cert_pem).unwrap();
    assert_eq!(identity.common_name, "system:node:n1");
    assert_eq!(identity.organizations, groups);
}

#[test]
fn as_many_organizations_as_promised_and_no_more() {
    let ca = CertificateAuthority::generate("test-ca").unwrap();
    let groups: Vec<String> = (0..=organizations::MAX).map(|n| format!("group-{n}")).collect();
    let pair = ca.issue_client("u", &groups[1..]).unwrap();
    assert_eq!(
        PeerIdentity::from_pem(&pair.cert_pem).unwrap().organizations,
        &groups[1..]
    );
    assert!(matches!(
        ca.issue_client("u", &groups),
        Err(PkiError::TooManyOrganizations { count: 17 })
    ));
}

#[test]
fn kept_authority_issues_again() {
    let ca = CertificateAuthority::generate("test-ca").unwrap();
    let again = CertificateAuthority::load(&ca.pair().cert_pem, &ca.pair().key_pem).unwrap();
    again
        .issue_server("coordinator", &["localhost", "127.0.0.1", "*.pool.local", "::1"])
        .unwrap();
}

#[test]
fn key_of_another_authority_is_refused() {
    let (ca, other) = (
        CertificateAuthority::generate("a").unwrap(),
        CertificateAuthority::generate("b").unwrap(),
    );
    let error = CertificateAuthority::load(ca.cert_pem(), &other.pair().key_pem).unwrap_err();
    assert!(error.to_string().contains("does not belong"), "{error}");
}

#[test]
fn bad_alternative_name_is_named() {
    let ca = CertificateAuthority::generate("test-ca").unwrap();
    let error = ca.issue_server("c", &["ok.local", "not a name"]).unwrap_err();
    assert!(error.to_string().contains("\"not a name\""), "{error}");
}

#[test]
fn secret_is_private_and_replaced_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ca.key");
    write_secret(&path, "one").unwrap();
    write_secret(&path, "two").unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "two");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        1,
        "no temporary file is left"
    );
    let error = write_secret(&folder.path().join("none/ca.key"), "x").unwrap_err();
    assert!(error.to_string().contains("none/ca.key"), "{error}");
}
