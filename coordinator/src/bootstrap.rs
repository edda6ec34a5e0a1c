//! First start: generates a certificate authority, a serving certificate and an administrator's kubeconfig, where none
//! are given.
//!
//! Everything is kept below the data folder and reused at the next start.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use yurt_runtime::kubeconfig::write_admin;
use yurt_runtime::pki::{CertificateAuthority, PkiError, write_public, write_secret};
use yurt_runtime::tls::{PemIdentity, PemPair, PemSource, ServerTls, TlsError, load_pair};

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
    let authority = pki.authority()?;
    let identity = match given {
        Some((cert, key)) => PemIdentity::files(cert, key),
        None => {
            pki.serving_certificate(&authority, listening.ip())?;
            PemIdentity::files(pki.path("server.crt"), pki.path("server.key"))
        }
    };
    let ca_file = pki.path("ca.crt");
    let Some(client_ca) = &config.client_ca_file else {
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
        if let Some(pair) = self.existing("ca")? {
            let loaded = CertificateAuthority::load(&pair.cert_pem, &pair.key_pem);
            return loaded.map_err(|error| {
                StartError::new(format!(
                    "{}: {error}; remove {} to start over",
                    self.path("ca.crt").display(),
                    self.0.display()
                ))
            });
        }
        let authority = CertificateAuthority::generate("yurt-coordinator-ca").map_err(|error| pki_error(&error))?;
        // Certificates of an earlier CA are useless now.
        for stale in ["server.crt", "admin.crt"] {
            remove(&self.path(stale))?;
        }
        self.write("ca", authority.pair())?;
        Ok(authority)
    }

    /// The serving certificate, issued again when the CA or the bind address has changed since the last start.
    fn serving_certificate(&self, authority: &CertificateAuthority, bound: IpAddr) -> Result<(), StartError> {
        let names = alternative_names(bound);
        let listed = self.path("server.names");
        let wanted = names.join("\n");
        let is_current = std::fs::read_to_string(&listed).is_ok_and(|had| had == wanted);
        if is_current && self.existing("server")?.is_some() {
            return Ok(());
        }
        let pair = authority
            .issue_server("yurt-coordinator", &names)
            .map_err(|error| pki_error(&error))?;
        self.write("server", &pair)?;
        write_public(&listed, &wanted).map_err(|error| StartError::new(error.to_string()))
    }

    /// The pair called `name`, generated when it is missing.
    fn pair(&self, name: &str, make: impl FnOnce() -> Result<PemPair, PkiError>) -> Result<PemPair, StartError> {
        if let Some(pair) = self.existing(name)? {
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
}
