//! The proxy's ports beside the plain one: HTTPS for pods, and both again on the dummy interface.

use std::net::SocketAddr;

use yurt_runtime::http::server::Server;
use yurt_runtime::pki::{CertificateAuthority, PkiError};
use yurt_runtime::tls::{PemIdentity, ReloadingServerTls, ServerTls};

use crate::StartError;
use crate::config::Config;
use crate::upstream::Upstreams;

/// Serving certificate and key of the HTTPS port, under the root folder.
const SECURE_PEM: &str = "pki/yurthub-server-current.pem";

/// The HTTPS port for pods. Without a certificate of the cluster's CA it serves one of its own making, which pods do not
/// trust: good for trying it out, and the port is taken.
pub(crate) async fn secure(config: &Config, upstreams: &Upstreams, addr: SocketAddr) -> Result<Server, StartError> {
    let pem = config.root_dir.join(SECURE_PEM);
    let identity = if pem.exists() {
        PemIdentity::one_file(pem)
    } else {
        self_signed(config)?
    };
    let tls = ServerTls {
        identity,
        client_ca: Some(upstreams.cluster_ca.clone()),
    };
    let tls = ReloadingServerTls::new(tls)?;
    Ok(Server::bind(addr, "--bind-proxy-address, --proxy-secure-port")
        .await?
        .with_tls(tls))
}

/// The proxy's ports on the dummy interface; none, and pods are led to the other address, where it cannot be made.
pub(crate) async fn dummy(config: &mut Config, upstreams: &Upstreams) -> Result<Vec<Server>, StartError> {
    let Some((name, address)) = config.dummy.clone() else {
        return Ok(Vec::new());
    };
    let ready = tokio::task::spawn_blocking(move || crate::dummy::ensure(&name, address)).await;
    if let Err(why) = ready.unwrap_or_else(|error| Err(error.to_string())) {
        tracing::warn!(why, "The hub is served on --bind-proxy-address only");
        config.hub_host = config.proxy_addr.ip();
        return Ok(Vec::new());
    }
    let plain = SocketAddr::new(address, config.proxy_addr.port());
    let secure_addr = SocketAddr::new(address, config.secure_addr.port());
    let plain = Server::bind(plain, "--dummy-if-ip, --proxy-port").await?;
    Ok(vec![plain, secure(config, upstreams, secure_addr).await?])
}

fn self_signed(config: &Config) -> Result<PemIdentity, StartError> {
    let fail = |error: PkiError| StartError::Internal(format!("cannot make a serving certificate: {error}"));
    let authority = CertificateAuthority::generate("yurthub").map_err(fail)?;
    let names = [
        "127.0.0.1".to_owned(),
        "localhost".to_owned(),
        config.hub_host.to_string(),
        config.node.clone(),
    ];
    let pair = authority.issue_server(&config.node, &names).map_err(fail)?;
    Ok(PemIdentity::inline("the hub's own serving certificate", &pair))
}
