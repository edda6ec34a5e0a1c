//! The proxy's ports: plain, HTTPS, and both again on the dummy interface.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use yurt_runtime::http::server::{Inherited, Limits, Server};
use yurt_runtime::pki::{CertificateAuthority, PkiError, write_public, write_secret};
use yurt_runtime::tls::{PemIdentity, ReloadingServerTls, ServerTls};
use yurt_runtime::{TaskGroup, files};

use crate::StartError;
use crate::config::Config;
use crate::node_network::Place;
use crate::upstream::Upstreams;

/// Serving certificate and key of the HTTPS port, under the root directory.
const SECURE_PEM: &str = "pki/yurthub-server-current.pem";
/// The hub's own CA, under the root directory.
pub(crate) const OWN_CA: &str = "pki/yurthub-ca.crt";
/// Its key, readable by root alone.
const OWN_CA_KEY: &str = "pki/yurthub-ca.key";

/// Ports of a hub. Each has its own share of the open files, so that connections to one leave room for the others.
const PORTS: usize = 6;

/// Limits of each port.
pub(crate) fn limits() -> Limits {
    Limits::default().within(files::for_servers() / PORTS)
}

/// Turns a bound port into the HTTPS one. Without a certificate of the cluster's CA it serves one of the hub's own CA. Pods do
/// not trust that one; the node's components do if their kubeconfigs name it.
///
/// # Errors
/// The certificate or the directory of the CA cannot be used. The CA is written here, so only a start that has passed every
/// other check may call this.
pub(crate) fn encrypted(config: &Config, upstreams: &Upstreams, server: Server) -> Result<Server, StartError> {
    let pem = config.root_dir.join(SECURE_PEM);
    let identity = if pem.exists() {
        PemIdentity::one_file(pem)
    } else {
        self_signed(config)?
    };
    let tls = ServerTls {
        identity,
        client_ca: Some(upstreams.client_ca.clone()),
    };
    Ok(server.with_tls(ReloadingServerTls::new(tls)?))
}

/// Binds the proxy's ports on its own address: the plain one, and the one for [`encrypted`].
pub(crate) async fn main(config: &Config, inherited: &mut Inherited) -> Result<(Server, Server), StartError> {
    let (plain, encrypted) = (
        "--bind-proxy-address, --proxy-port",
        "--bind-proxy-address, --proxy-secure-port",
    );
    Ok((
        Server::bind_or_take(config.proxy_addr, plain, inherited).await?,
        Server::bind_or_take(config.secure_addr, encrypted, inherited).await?,
    ))
}

/// Binds the proxy's ports on the node's address for pods. If it cannot be created there are none, and pods get the other
/// address. `tasks` keep the address.
pub(crate) async fn for_pods(
    config: &mut Config,
    upstreams: &Upstreams,
    inherited: &mut Inherited,
    tasks: &TaskGroup,
) -> Result<Vec<Server>, StartError> {
    let Some(network) = config.network.clone() else {
        return Ok(Vec::new());
    };
    let (address, wanted) = (network.address, network.clone());
    let ensured = tokio::task::spawn_blocking(move || wanted.ensure()).await;
    match ensured
        .map_err(|error| error.to_string())
        .and_then(|ensured| ensured.map_err(|error| error.to_string()))
    {
        Ok(Place::Dummy) => {}
        Ok(Place::Loopback(why)) => {
            tracing::warn!(why, %address, "No dummy interface; the address for pods is on lo");
        }
        Err(why) => {
            tracing::warn!(
                why,
                "Failed to create the address for pods; serving on --bind-proxy-address only"
            );
            config.hub_host = config.proxy_addr.ip();
            return Ok(Vec::new());
        }
    }
    let plain = SocketAddr::new(address, config.proxy_addr.port());
    let secure_addr = SocketAddr::new(address, config.secure_addr.port());
    let plain = Server::bind_or_take(plain, "--dummy-if-ip, --proxy-port", inherited).await?;
    let secure = Server::bind_or_take(secure_addr, "--dummy-if-ip, --proxy-secure-port", inherited).await?;
    network.keep(tasks);
    Ok(vec![plain, encrypted(config, upstreams, secure)?])
}

/// Issues a certificate of the hub's own CA. The CA is kept, because kubeconfigs of this node name it.
fn self_signed(config: &Config) -> Result<PemIdentity, StartError> {
    let fail = |error: PkiError| StartError::Internal(format!("failed to create a serving certificate: {error}"));
    let authority = own_authority(&config.root_dir)?;
    let names = [
        "127.0.0.1".to_owned(),
        "localhost".to_owned(),
        config.hub_host.to_string(),
        config.node.clone(),
    ];
    let pair = authority.issue_server(&config.node, &names).map_err(fail)?;
    Ok(PemIdentity::inline("the hub's own serving certificate", &pair))
}

/// Returns the CA of earlier starts, or a new one if it is missing or other users can read its key.
fn own_authority(root: &Path) -> Result<CertificateAuthority, StartError> {
    let (cert, key) = (root.join(OWN_CA), root.join(OWN_CA_KEY));
    let fail = |path: &Path, error: io::Error| StartError::Folder {
        flag: "root-dir",
        path: path.display().to_string(),
        error,
    };
    if let (Ok(cert_pem), Ok(key_pem)) = (std::fs::read_to_string(&cert), std::fs::read_to_string(&key)) {
        let mode = std::fs::metadata(&key)
            .map_err(|error| fail(&key, error))?
            .permissions()
            .mode();
        let why = match CertificateAuthority::load(&cert_pem, &key_pem) {
            Ok(authority) if mode & 0o077 == 0 => return Ok(authority.without_end()),
            Ok(_) => format!("mode {:o} lets other users read the key", mode & 0o777),
            Err(error) => error.to_string(),
        };
        let path = key.display();
        tracing::warn!(%path, why, "Replaced the hub's own CA; restart its clients");
    }
    let made = CertificateAuthority::generate_without_end("yurthub");
    let authority = made.map_err(|error| StartError::Internal(format!("failed to create a CA: {error}")))?;
    if let Some(folder) = cert.parent() {
        std::fs::create_dir_all(folder).map_err(|error| fail(folder, error))?;
    }
    write_secret(&key, &authority.pair().key_pem).map_err(|error| fail(&key, error))?;
    write_public(&cert, authority.cert_pem()).map_err(|error| fail(&cert, error))?;
    Ok(authority)
}
