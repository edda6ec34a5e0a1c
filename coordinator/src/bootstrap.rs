//! First start: generates a certificate authority, a serving certificate and an administrator's kubeconfig, where none
//! are given.
//!
//! Everything is kept below the data folder and reused at the next start. The CA and the serving certificate have no
//! end, because the clock of the first start may be wrong. The administrator's certificate leaves the node with its
//! kubeconfig: it is valid for a year, and a start issues it again when a tenth of that is left.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use yurt_runtime::Clock;
use yurt_runtime::kubeconfig::write_admin;
use yurt_runtime::pki::{CertificateAuthority, LEAF_VALIDITY, PkiError, write_public, write_secret};
use yurt_runtime::tls::{CertificateInfo, PemIdentity, PemPair, PemSource, ServerTls, TlsError, load_pair};

use crate::StartError;
use crate::config::Config;

/// Paths of this server's certificates, and of the generated files.
pub(crate) struct Credentials {
    /// TLS of the server.
    pub(crate) tls: ServerTls,
    /// Kubeconfig of an administrator, if the client CA is generated.
    pub(crate) admin_kubeconfig: Option<PathBuf>,
    /// Certificate of the generated CA, if any file here was issued by it.
    pub(crate) ca: Option<PathBuf>,
}

/// Default names under which hubs may reach the coordinator, in addition to its addresses.
const NAMES: [&str; 4] = [
    "localhost",
    "yurt-coordinator-apiserver",
    "yurt-coordinator-apiserver.kube-system",
    "yurt-coordinator-apiserver.kube-system.svc",
];

/// Checks the given certificate files, and waits for a pair that is being replaced. Writes nothing.
///
/// # Errors
/// The flag, the file, and the fault.
pub(crate) async fn check_given(config: &Config) -> Result<(), StartError> {
    if let (Some(cert), Some(key)) = (&config.tls_cert_file, &config.tls_private_key_file) {
        let identity = PemIdentity::files(cert, key);
        load_pair(|| identity.load(), TlsError::is_mismatch)
            .await
            .map_err(|error| StartError::new(format!("--tls-cert-file/--tls-private-key-file: {error}")))?;
    }
    if let Some(ca) = &config.client_ca_file {
        PemSource::from(ca.clone())
            .roots()
            .map_err(|error| StartError::new(format!("--client-ca-file: {error}")))?;
    }
    Ok(())
}

/// The certificates to serve with: the given ones, else those of an earlier start, else new ones.
///
/// # Errors
/// The file that cannot be read, written or used.
pub(crate) fn prepare(config: &Config, listening: SocketAddr) -> Result<Credentials, StartError> {
    let pki = Folder(config.data_dir.join("pki"));
    let given = config.tls_cert_file.as_ref().zip(config.tls_private_key_file.as_ref());
    if let (Some((cert, key)), Some(ca)) = (given, &config.client_ca_file) {
        let tls = ServerTls {
            identity: PemIdentity::files(cert, key),
            client_ca: Some(ca.clone().into()),
        };
        return Ok(Credentials {
            tls,
            admin_kubeconfig: None,
            ca: None,
        });
    }
    std::fs::create_dir_all(&pki.0).map_err(|error| StartError::file(&pki.0, "create", &error))?;
    let authority = pki.authority()?.without_end();
    let identity = match given {
        Some((cert, key)) => PemIdentity::files(cert, key),
        None => {
            pki.serving_certificate(&authority, listening.ip())?;
            PemIdentity::files(pki.path("server.crt"), pki.path("server.key"))
        }
    };
    let ca_file = pki.path("ca.crt");
    let Some(client_ca) = &config.client_ca_file else {
        let authority = authority.with_leaf_validity(LEAF_VALIDITY);
        let admin = pki.pair("admin", || authority.issue_client("admin", &["system:masters"]))?;
        let kubeconfig = config.data_dir.join("admin.kubeconfig");
        write_admin(&kubeconfig, &server_url(listening), authority.cert_pem(), &admin)
            .map_err(|error| StartError::new(error.to_string()))?;
        let tls = ServerTls {
            identity,
            client_ca: Some(ca_file.clone().into()),
        };
        return Ok(Credentials {
            tls,
            admin_kubeconfig: Some(kubeconfig),
            ca: Some(ca_file),
        });
    };
    let tls = ServerTls {
        identity,
        client_ca: Some(client_ca.clone().into()),
    };
    Ok(Credentials {
        tls,
        admin_kubeconfig: None,
        ca: given.is_none().then_some(ca_file),
    })
}

/// Server URL in the administrator's kubeconfig.
fn server_url(listening: SocketAddr) -> String {
    let ip = match listening.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    format!("https://{}", SocketAddr::new(ip, listening.port()))
}

fn alternative_names(bound: IpAddr) -> Vec<String> {
    let mut names = vec!["127.0.0.1".to_owned(), "::1".to_owned()];
    names.extend(NAMES.map(str::to_owned));
    if !bound.is_unspecified() {
        names.push(bound.to_string());
    }
    let hostname = rustix::system::uname().nodename().to_string_lossy().to_lowercase();
    if yurt_apimachinery::meta::dns_subdomain_errors(&hostname).is_empty() {
        names.push(hostname);
    }
    names.sort_unstable();
    names.dedup();
    names
}

/// The folder of generated certificates.
struct Folder(PathBuf);

// === impl Folder ===

impl Folder {
    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn authority(&self) -> Result<CertificateAuthority, StartError> {
        let existing = self.existing("ca")?;
        if existing.as_ref().is_some_and(is_over) {
            let path = self.path("ca.crt").display().to_string();
            tracing::warn!(
                path,
                "Replaced the generated CA, which is expired; give its clients the new one"
            );
        }
        if let Some(pair) = existing.filter(|pair| !is_over(pair)) {
            let loaded = CertificateAuthority::load(&pair.cert_pem, &pair.key_pem);
            return loaded.map_err(|error| {
                StartError::new(format!(
                    "{}: {error}; remove {} to start over",
                    self.path("ca.crt").display(),
                    self.0.display()
                ))
            });
        }
        let authority =
            CertificateAuthority::generate_without_end("yurt-coordinator-ca").map_err(|error| pki_error(&error))?;
        // Certificates of an earlier CA are useless now.
        for stale in ["server.crt", "admin.crt"] {
            remove(&self.path(stale))?;
        }
        self.write("ca", authority.pair())?;
        Ok(authority)
    }

    /// The serving certificate, issued again when the CA or the bind address has changed since the last start, or when
    /// it is over soon.
    fn serving_certificate(&self, authority: &CertificateAuthority, bound: IpAddr) -> Result<(), StartError> {
        let names = alternative_names(bound);
        let listed = self.path("server.names");
        let wanted = names.join("\n");
        let is_current = std::fs::read_to_string(&listed).is_ok_and(|had| had == wanted);
        if is_current && self.existing("server")?.is_some_and(|pair| !is_due(&pair)) {
            return Ok(());
        }
        let pair = authority
            .issue_server("yurt-coordinator", &names)
            .map_err(|error| pki_error(&error))?;
        self.write("server", &pair)?;
        write_public(&listed, &wanted).map_err(|error| StartError::new(error.to_string()))
    }

    /// The pair called `name`, generated when it is missing or over soon.
    fn pair(&self, name: &str, make: impl FnOnce() -> Result<PemPair, PkiError>) -> Result<PemPair, StartError> {
        if let Some(pair) = self.existing(name)?.filter(|pair| !is_due(pair)) {
            return Ok(pair);
        }
        let pair = make().map_err(|error| pki_error(&error))?;
        self.write(name, &pair)?;
        Ok(pair)
    }

    fn existing(&self, name: &str) -> Result<Option<PemPair>, StartError> {
        let (cert, key) = (self.path(&format!("{name}.crt")), self.path(&format!("{name}.key")));
        match (read(&cert)?, read(&key)?) {
            (Some(cert_pem), Some(key_pem)) => Ok(Some(PemPair { cert_pem, key_pem })),
            _ => Ok(None),
        }
    }

    /// Writes the key first: a certificate without its key would look complete to a person.
    fn write(&self, name: &str, pair: &PemPair) -> Result<(), StartError> {
        write_secret(&self.path(&format!("{name}.key")), &pair.key_pem)
            .and_then(|()| write_public(&self.path(&format!("{name}.crt")), &pair.cert_pem))
            .map_err(|error| StartError::new(error.to_string()))
    }
}

/// True in the last tenth of a certificate's life and after it, and for one that cannot be read.
fn is_due(pair: &PemPair) -> bool {
    let life = |info: &CertificateInfo| info.not_after.secs.saturating_sub(info.not_before.secs);
    info(pair).is_none_or(|info| Clock::system().unix().secs > info.not_after.secs.saturating_sub(life(&info) / 10))
}

/// True after the end of a certificate. One that cannot be read is not over: its fault is reported.
fn is_over(pair: &PemPair) -> bool {
    info(pair).is_some_and(|info| Clock::system().unix() > info.not_after)
}

fn info(pair: &PemPair) -> Option<CertificateInfo> {
    CertificateInfo::leaf(&PemSource::inline("a generated certificate", pair.cert_pem.clone())).ok()
}

fn read(path: &Path) -> Result<Option<String>, StartError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StartError::file(path, "read", &error)),
    }
}

fn remove(path: &Path) -> Result<(), StartError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(StartError::file(path, "remove", &error)),
        _ => Ok(()),
    }
}

fn pki_error(error: &PkiError) -> StartError {
    StartError::new(format!("cannot generate certificates: {error}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser as _;
    use yurt_runtime::UnixTime;
    use yurt_runtime::kubeconfig::Kubeconfig;
    use yurt_test_support::TestDir;

    use super::*;

    #[test]
    fn unspecified_address_is_reached_over_loopback() {
        assert_eq!(server_url("0.0.0.0:7".parse().unwrap()), "https://127.0.0.1:7");
        assert_eq!(server_url("[::]:7".parse().unwrap()), "https://[::1]:7");
        assert_eq!(server_url("10.0.0.1:7".parse().unwrap()), "https://10.0.0.1:7");
        let names = alternative_names("10.0.0.1".parse().unwrap());
        for name in [
            "127.0.0.1",
            "::1",
            "localhost",
            "10.0.0.1",
            "yurt-coordinator-apiserver.kube-system.svc",
        ] {
            assert!(names.iter().any(|known| known == name), "{name}");
        }
    }

    /// Year 8307, Unix seconds.
    const FAR: i64 = 200_000_000_000;

    /// The server's certificate, that of the administrator, and the CA.
    fn prepared(folder: &TestDir) -> [CertificateInfo; 3] {
        let data = format!("--data-dir={}", folder.path().display());
        let config = Config::try_parse_from(["yurt-coordinator", &data]).unwrap();
        prepare(&config, "127.0.0.1:7".parse().unwrap()).unwrap();
        ["server", "admin", "ca"].map(|name| info(folder, name))
    }

    fn info(folder: &TestDir, name: &str) -> CertificateInfo {
        let file = folder.path().join(format!("pki/{name}.crt"));
        PemIdentity::files(&file, file.with_extension("key")).load().unwrap();
        CertificateInfo::leaf(&file.into()).unwrap()
    }

    #[test]
    fn certificates_that_are_over_or_almost_so_are_issued_again_at_a_start() {
        let folder = TestDir::new();
        let first = prepared(&folder);
        assert_eq!(prepared(&folder), first, "they are current");
        let pki = Folder(folder.path().join("pki"));
        let long_ago = Clock::fake().0;
        let now = Clock::system().unix();
        let over = |authority: CertificateAuthority| authority.with_clock(long_ago.clone());
        // Issued an hour ago.
        let ends_soon = |authority: CertificateAuthority| authority.with_leaf_validity(Duration::from_secs(60));
        for aged in [
            &over as &dyn Fn(CertificateAuthority) -> CertificateAuthority,
            &ends_soon,
        ] {
            let authority = aged(pki.authority().unwrap());
            let names = alternative_names("127.0.0.1".parse().unwrap());
            pki.write("server", &authority.issue_server("yurt-coordinator", &names).unwrap())
                .unwrap();
            let admin = authority.issue_client("admin", &["system:masters"]).unwrap();
            pki.write("admin", &admin).unwrap();
            let day = UnixTime {
                secs: now.secs + 24 * 3600,
                ..now
            };
            assert!(info(&folder, "server").not_after < day && info(&folder, "admin").not_after < day);
            let again = prepared(&folder);
            assert!(again[..2].iter().all(|info| info.not_after > day), "{again:?}");
            assert_eq!(again[2], first[2], "hubs and kubeconfigs name the CA");
            let kubeconfig = Kubeconfig::load(&folder.path().join("admin.kubeconfig")).unwrap();
            let presented = kubeconfig.client_tls().unwrap().identity.unwrap().load().unwrap();
            let stored = PemSource::from(pki.path("admin.crt")).certificates().unwrap();
            assert_eq!(presented.cert, stored);
        }
    }

    #[test]
    fn first_start_with_a_clock_far_behind_makes_what_is_valid_later() {
        let [server, _, authority] = prepared(&TestDir::new());
        for info in [server, authority] {
            assert!(info.not_before.secs == 0 && info.not_after.secs > FAR, "{info:?}");
        }
    }
}
