//! Both forms of a kubeconfig, and rejected contents.

use super::*;
use crate::pki::CertificateAuthority;
use crate::tls::ReloadingClientTls;

fn load(text: &str) -> Result<Kubeconfig, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config");
    std::fs::write(&path, text).unwrap();
    Kubeconfig::load(&path).map_err(|e| e.to_string())
}

/// Kubeconfig as kubelet writes it after it has rotated its certificate.
const KUBELET: &str = "
apiVersion: v1
clusters:
- cluster:
    certificate-authority: pki/ca.crt
    server: https://10.0.0.1:6443
  name: default-cluster
contexts:
- context:
    cluster: default-cluster
    namespace: default
    user: default-auth
  name: default-context
current-context: default-context
kind: Config
preferences: {}
users:
- name: default-auth
  user:
    client-certificate: /var/lib/kubelet/pki/kubelet-client-current.pem
    client-key: /var/lib/kubelet/pki/kubelet-client-current.pem
";

#[test]
fn paths_are_relative_to_the_kubeconfig() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config");
    std::fs::write(&path, KUBELET).unwrap();
    let config = Kubeconfig::load(&path).unwrap();
    assert_eq!(config.server, "https://10.0.0.1:6443");
    assert_eq!(config.ca, Some(PemSource::File(folder.path().join("pki/ca.crt"))));
    assert_eq!(
        config.identity,
        Some(PemIdentity::one_file("/var/lib/kubelet/pki/kubelet-client-current.pem"))
    );
    let error = config.client_tls().unwrap().config().unwrap_err().to_string();
    assert!(error.contains("pki/ca.crt"), "{error}");
}

#[test]
fn admin_kubeconfig_is_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("admin.conf");
    let ca = CertificateAuthority::generate("ca").unwrap();
    let pair = ca.issue_client("admin", &["system:masters"]).unwrap();
    write_admin(&path, "https://127.0.0.1:10270", ca.cert_pem(), &pair).unwrap();
    let config = Kubeconfig::load(&path).unwrap();
    assert_eq!(config.server, "https://127.0.0.1:10270");
    assert_eq!(config.identity.as_ref().unwrap().read_pair().unwrap(), pair);
    config.client_tls().unwrap().config().unwrap();
}

#[test]
fn embedded_certificates_are_read_again_from_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubelet.conf");
    let ca = CertificateAuthority::generate("ca").unwrap();
    let write = |ca: &CertificateAuthority| {
        let pair = ca.issue_client("system:node:n1", &["system:nodes"]).unwrap();
        write_admin(&path, "https://127.0.0.1:6443", ca.cert_pem(), &pair).unwrap();
        pair
    };
    write(&ca);
    let config = Kubeconfig::load(&path).unwrap();
    let (tls, _) = ReloadingClientTls::new(config.client_tls().unwrap()).unwrap();
    assert!(tls.poll_files().unwrap().is_none());
    let renewed = write(&ca);
    assert!(tls.poll_files().unwrap().is_some() && tls.poll_files().unwrap().is_none());
    let identity = config.identity.unwrap();
    assert_eq!(identity.read_pair().unwrap(), renewed);
    let other = CertificateAuthority::generate("other").unwrap();
    write(&other);
    assert_eq!(config.ca.unwrap().read().unwrap(), other.cert_pem().as_bytes());
    std::fs::write(&path, "kind: Config").unwrap();
    let error = tls.poll_files().unwrap_err().to_string();
    assert!(
        error.contains("kubelet.conf") && error.contains("no current-context"),
        "{error}"
    );
}

#[test]
fn token_file_wins_over_token() {
    let with = |user: &str| {
        KUBELET.split("    client-certificate:").next().unwrap().to_owned() + &format!("    {user}\n    token: abc\n")
    };
    assert_eq!(
        load(&with("unknown: 1")).unwrap().token,
        Some(Token::Inline("abc".to_owned()))
    );
    let Some(Token::File(file)) = load(&with("tokenFile: t/token")).unwrap().token else {
        panic!("a file")
    };
    assert!(file.is_absolute() && file.ends_with("t/token"));
}

#[test]
fn refusals_say_why() {
    let insecure = KUBELET.replace("certificate-authority: pki/ca.crt", "insecure-skip-tls-verify: true");
    let cases = [
        (insecure.as_str(), "insecure-skip-tls-verify is refused"),
        (
            &KUBELET.replace("current-context: default-context", "current-context: other"),
            "\"other\" is not in contexts",
        ),
        (
            &KUBELET.replace("user: default-auth", "user: nobody"),
            "\"nobody\" is not in users",
        ),
        (
            &KUBELET.replace("    client-key: /var", "    # /var"),
            "client-certificate without client-key",
        ),
        (
            &KUBELET.replace("client-key: /var", "client-key-data: \"*\" # /var"),
            "client-key-data is not base64",
        ),
        (
            &KUBELET.replace("    client-key:", "    exec: {}\n    client-key:"),
            "exec or auth-provider",
        ),
        ("clusters: 5", "not a kubeconfig"),
        ("kind: Config", "no current-context"),
    ];
    for (text, why) in cases {
        let error = load(text).unwrap_err();
        assert!(error.contains(why) && error.starts_with("kubeconfig /"), "{error}");
    }
    let missing = Kubeconfig::load(Path::new("/none/config")).unwrap_err().to_string();
    assert!(
        missing.contains("/none/config") && missing.contains("No such file"),
        "{missing}"
    );
}
