//! The proxy's ports: plain, HTTPS, and both again on the dummy interface.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use tokio::sync::watch;
use yurt_runtime::http::server::{Inherited, Limits, Server};
use yurt_runtime::pki::{CertificateAuthority, PkiError};
use yurt_runtime::tls::{PemIdentity, PemPair, ReloadingServerTls, ServerTls};
use yurt_runtime::{TaskGroup, files};

use crate::StartError;
use crate::config::Config;
use crate::failures::Failures;
use crate::filter::PodTrust;
use crate::identity::serving::{self, SECURE_PEM};
use crate::node_network::{self, AddressInterface};
use crate::replicas::disk::takes_nothing;
use crate::unwritten::{Readers, Unwritten};
use crate::upstream::Upstreams;

/// The hub's own CA, under the root directory.
pub(crate) const OWN_CA: &str = "pki/yurthub-ca.crt";
/// Its key, readable by root alone.
const OWN_CA_KEY: &str = "pki/yurthub-ca.key";

/// Ports of a hub. Each has its own share of the open files, so that connections to one leave room for the others.
const PORTS: usize = 6;
/// Ports of the proxy. Each has a second share for the cloud's side of upgraded connections.
const PROXY_PORTS: usize = 4;

/// Limits of each port.
pub(crate) fn limits() -> Limits {
    let limits = Limits {
        // Pods of the node share a network of 64 bits.
        ipv6_prefix: 128,
        ..Limits::default()
    };
    limits.within(files::for_servers() / (PORTS + PROXY_PORTS))
}

/// Turns a bound port into the HTTPS one. Without a certificate of the cluster's CA it serves one of the hub's own CA.
/// Pods do not trust that one; the node's components do if their kubeconfigs name it.
///
/// # Errors
/// The certificate or the directory of the CA cannot be used. The CA is written here, so only a start that has passed
/// every other check may call this. On a disk that takes nothing a new CA is in `unwritten`.
pub(crate) fn encrypted(
    config: &Config,
    upstreams: &Upstreams,
    server: Server,
    unwritten: &mut Unwritten,
) -> Result<Server, StartError> {
    let pem = config.root_dir.join(SECURE_PEM);
    let identity = if pem.exists() && !requests_certificate(config) {
        PemIdentity::one_file(pem)
    } else {
        PemIdentity::inline("the hub's own serving certificate", &self_signed(config, unwritten)?)
    };
    Ok(server.with_tls(tls(upstreams, identity)?))
}

/// Like [`encrypted`], for the port of pods: without the file its certificate is requested from the cluster.
fn encrypted_for_pods(
    config: &Config,
    upstreams: &Upstreams,
    server: Server,
    tasks: &TaskGroup,
    unwritten: &mut Unwritten,
) -> Result<(Server, watch::Receiver<PodTrust>), StartError> {
    if !requests_certificate(config) {
        return Ok((
            encrypted(config, upstreams, server, unwritten)?,
            trust_of_placed(config),
        ));
    }
    let own = self_signed(config, unwritten)?;
    let (root, node) = (&config.root_dir, &config.node);
    let (giver, trust) = watch::channel(serving::trust(root, node));
    let tls = match serving::prepare(root, node, &own) {
        Ok(pair) => {
            let tls = tls(upstreams, PemIdentity::one_file(pair))?;
            if *trust.borrow() != PodTrust::Given {
                let giving = serving::give(giver, root.clone(), node.clone(), tls.changes());
                let token = tasks.token();
                tasks.spawn("give-trust", async move {
                    token.run_until_cancelled(giving).await;
                });
            }
            tls
        }
        Err(error) if takes_nothing(&error) => {
            tracing::warn!(%error, "Failed to write file; pods do without the hub until the next start");
            giver.send_replace(PodTrust::Missing);
            tls(
                upstreams,
                PemIdentity::inline("the hub's own serving certificate", &own),
            )?
        }
        Err(error) => return Err(unusable(&root.join(serving::PAIR), error)),
    };
    Ok((server.with_tls(tls), trust))
}

/// True if the administrator placed a certificate, or OpenYurt's hub.
fn is_placed(config: &Config) -> bool {
    config.root_dir.join(SECURE_PEM).exists()
}

/// True if the port at --bind-proxy-address serves it, too. Beside an address for pods, that of OpenYurt's hub is for
/// there alone, also if the address cannot be made.
fn serves_placed(config: &Config) -> bool {
    is_placed(config) && (config.network.is_none() || !serving::is_of_openyurt(&config.root_dir, &config.node))
}

/// Trust of pods in a port whose certificate the hub does not request.
fn trust_of_placed(config: &Config) -> watch::Receiver<PodTrust> {
    let trust = match serves_placed(config) {
        true => PodTrust::Given,
        false => PodTrust::Missing,
    };
    watch::channel(trust).1
}

/// True if the hub requests the certificate of the port for pods: the port exists, and the administrator placed none.
pub(crate) fn requests_certificate(config: &Config) -> bool {
    let is_hub = |address| config.hub_host == address;
    let is_free = || !is_placed(config) || serving::is_of_openyurt(&config.root_dir, &config.node);
    config.network.as_ref().is_some_and(|network| is_hub(network.address)) && is_free()
}

fn tls(upstreams: &Upstreams, identity: PemIdentity) -> Result<ReloadingServerTls, StartError> {
    let tls = ServerTls {
        identity,
        client_ca: Some(upstreams.client_ca.clone()),
    };
    Ok(ReloadingServerTls::new(tls)?)
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

/// Binds the proxy's ports on the node's address for pods. If it cannot be created there are none, `failures` has the
/// reason, and pods get the other address if they can reach it and trust its certificate. `tasks` keep the address, or
/// try to make it. Returns the trust of pods, too.
pub(crate) async fn for_pods(
    config: &mut Config,
    upstreams: &Upstreams,
    inherited: &mut Inherited,
    (tasks, failures): (&TaskGroup, &Failures),
    unwritten: &mut Unwritten,
) -> Result<(Vec<Server>, watch::Receiver<PodTrust>), StartError> {
    let Some(network) = config.network.clone() else {
        if !config.hub().is_for_pods() || !serves_placed(config) {
            let why = format!("{}: --enable-dummy-if=false", without_own_address(config));
            failures.refused(node_network::ADDRESS, &why);
        }
        return Ok((Vec::new(), trust_of_placed(config)));
    };
    let (address, wanted) = (network.address, network.clone());
    let ensured = tokio::task::spawn_blocking(move || wanted.ensure()).await;
    match ensured
        .map_err(|error| error.to_string())
        .and_then(|ensured| ensured.map_err(|error| error.to_string()))
    {
        Ok(made) => {
            if let AddressInterface::Loopback(why) = made.interface {
                tracing::warn!(why, %address, "No dummy interface; the address for pods is on lo");
            }
            failures.tell(node_network::FIREWALL, made.firewall.err());
        }
        Err(why) => {
            config.hub_host = config.proxy_addr.ip();
            for port in network.ports {
                inherited.close(SocketAddr::new(address, port));
            }
            let (effect, failures) = (without_own_address(config), failures.clone());
            let failed = move |why: String| {
                let why = format!("{effect}, until the hub can make the address and is restarted: {why}");
                failures.refused(node_network::ADDRESS, &why);
            };
            failed(why);
            network.retry(tasks, failed);
            return Ok((Vec::new(), trust_of_placed(config)));
        }
    }
    let plain = SocketAddr::new(address, config.proxy_addr.port());
    let secure_addr = SocketAddr::new(address, config.secure_addr.port());
    let plain = Server::bind_or_take(plain, "--dummy-if-ip, --proxy-port", inherited).await?;
    let secure = Server::bind_or_take(secure_addr, "--dummy-if-ip, --proxy-secure-port", inherited).await?;
    network.keep(tasks, failures.clone());
    let (secure, trust) = encrypted_for_pods(config, upstreams, secure, tasks, unwritten)?;
    Ok((vec![plain, secure], trust))
}

/// Says which address pods connect to while the hub has none of its own for them.
fn without_own_address(config: &Config) -> String {
    let host = config.hub_host;
    match config.hub().is_for_pods() {
        true if serves_placed(config) => format!("pods connect to --bind-proxy-address={host}"),
        true => format!(
            "pods connect to kube-apiserver, because they do not trust the hub's own certificate at \
             --bind-proxy-address={host}, and {SECURE_PEM} is missing"
        ),
        false => format!("pods connect to kube-apiserver, because they cannot reach --bind-proxy-address={host}"),
    }
}

/// Issues a certificate of the hub's own CA. The CA is kept, because kubeconfigs of this node name it.
fn self_signed(config: &Config, unwritten: &mut Unwritten) -> Result<PemPair, StartError> {
    let fail = |error: PkiError| StartError::Internal(format!("failed to create a serving certificate: {error}"));
    let authority = own_authority(&config.root_dir, unwritten)?;
    let names = [
        "127.0.0.1".to_owned(),
        "localhost".to_owned(),
        config.hub_host.to_string(),
        config.proxy_addr.ip().to_string(),
        config.node.clone(),
    ];
    authority.issue_server(&config.node, &names).map_err(fail)
}

/// Returns the CA of earlier starts, or a new one if it is missing or other users can read its key. On a disk that
/// takes nothing the new one is in `unwritten`, where the next call finds it.
fn own_authority(root: &Path, unwritten: &mut Unwritten) -> Result<CertificateAuthority, StartError> {
    let (cert, key) = (root.join(OWN_CA), root.join(OWN_CA_KEY));
    let held = |name, path| match unwritten.content(name) {
        Some(content) => Ok(content.to_owned()),
        None => std::fs::read_to_string(path),
    };
    if let (Ok(cert_pem), Ok(key_pem)) = (held(OWN_CA, &cert), held(OWN_CA_KEY, &key)) {
        let mode = match unwritten.content(OWN_CA_KEY) {
            Some(_) => 0,
            None => std::fs::metadata(&key)
                .map_err(|error| unusable(&key, error))?
                .permissions()
                .mode(),
        };
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
    let key_pem = &authority.pair().key_pem;
    unwritten
        .write(root, OWN_CA_KEY, key_pem, Readers::Owner)
        .map_err(|error| unusable(&key, error))?;
    unwritten
        .write(root, OWN_CA, authority.cert_pem(), Readers::All)
        .map_err(|error| unusable(&cert, error))?;
    Ok(authority)
}

/// The start fails because of this file below the root directory.
pub(crate) fn unusable(path: &Path, error: io::Error) -> StartError {
    StartError::Folder {
        flag: "root-dir",
        path: path.display().to_string(),
        error,
    }
}

#[cfg(test)]
mod tests {
    use yurt_test_support::fault_fs::power::{Followed, Loss};
    use yurt_test_support::fault_fs::{FaultFs, Health};
    use yurt_test_support::{TestDir, TestPki};

    use clap::Parser as _;
    use yurt_runtime::tls::{CertificateInfo, PemSource};

    use super::*;
    use crate::config::Flags;
    use crate::proxy::caller::token::{self, NodeToken};

    const LOSSES: [Loss; 4] = [Loss::Killed, Loss::All, Loss::Bytes, Loss::Some];

    /// They share a network of 64 bits.
    #[test]
    fn ipv6_pods_of_a_node_are_clients_of_their_own() {
        assert_eq!(limits().ipv6_prefix, 128);
    }

    #[test]
    fn own_certificate_has_the_addresses_of_the_proxy_and_for_pods() {
        let folder = TestDir::new();
        let root = format!("--root-dir={}", folder.path().display());
        let line = [
            "yurthub",
            "--node-name=n1",
            "--server-addr=https://10.0.0.1:6443",
            "--bind-proxy-address=::1",
            &root,
        ];
        let config = Flags::try_parse_from(line).unwrap().check().unwrap();
        let pair = self_signed(&config, &mut Unwritten::default()).unwrap();
        let names = CertificateInfo::leaf(&PemSource::inline("own", pair.cert_pem))
            .unwrap()
            .names;
        for name in ["::1", "fd00::2:1", "127.0.0.1", "n1"] {
            assert!(names.iter().any(|known| known == name), "{name}: {names:?}");
        }
    }

    #[test]
    fn certificate_is_requested_unless_the_administrator_placed_one() {
        let (folder, pki) = (TestDir::new(), TestPki::new());
        let root = format!("--root-dir={}", folder.path().display());
        let line = [
            "yurthub",
            "--node-name=n1",
            "--server-addr=https://10.0.0.1:6443",
            &root,
        ];
        let config = Flags::try_parse_from(line).unwrap().check().unwrap();
        assert!(requests_certificate(&config));
        std::fs::create_dir_all(folder.path().join("pki")).unwrap();
        let place = |pair: PemPair| {
            let text = format!("{}{}", pair.cert_pem, pair.key_pem);
            std::fs::write(folder.path().join(SECURE_PEM), text).unwrap();
        };
        place(pki.server());
        assert!(!requests_certificate(&config));
        place(pki.node("n1"));
        assert!(
            requests_certificate(&config),
            "OpenYurt's hub requested it for this node"
        );
        place(pki.node("n2"));
        assert!(!requests_certificate(&config));
    }

    /// The token and the CA of a start; both files are on the disk.
    fn started(root: &Path) -> (NodeToken, String) {
        let mut unwritten = Unwritten::default();
        let token = NodeToken::open(root, &mut unwritten).expect("a token");
        let authority = own_authority(root, &mut unwritten).expect("a CA");
        (token, authority.cert_pem().to_owned())
    }

    #[test]
    fn kill_or_power_cut_at_any_write_leaves_a_whole_token_and_a_ca_with_its_key() {
        let (folder, behind) = (TestDir::new(), TestDir::new());
        let Some(disk) = FaultFs::mount_or_skip(folder.path(), behind.path()) else {
            return;
        };
        disk.record();
        let (_, kept) = started(folder.path());
        disk.note(0);
        let text = std::fs::read_to_string(folder.path().join(token::FILE)).expect("a token");
        let mut followed = Followed::after(&[]);
        let mut random = fastrand::Rng::with_seed(1);
        let changes = disk.stop_recording();
        for (point, change) in changes.iter().enumerate() {
            followed.apply(change);
            for loss in LOSSES {
                let image = TestDir::new();
                let written = followed.image(loss, || random.bool()).write_to(image.path());
                written.expect("a folder");
                let place = format!("write point {point}, {loss:?}, {change:?}");
                let found = std::fs::read_to_string(image.path().join(token::FILE)).ok();
                assert!(found.is_none_or(|found| found == text), "{place}");
                let (token, authority) = started(image.path());
                let stored = std::fs::read_to_string(image.path().join(token::FILE)).expect("a token");
                assert!(token.is(&stored) && !token.is(""), "{place}");
                assert_eq!(started(image.path()).1, authority, "{place}");
                if point + 1 == changes.len() {
                    assert!(token.is(&text) && authority == kept, "{place}");
                }
            }
        }
        assert!(changes.len() > 10, "{changes:?}");
    }

    #[test]
    fn both_ports_have_the_same_ca_while_the_disk_is_full() {
        let (folder, behind) = (TestDir::new(), TestDir::new());
        let Some(disk) = FaultFs::mount_or_skip(folder.path(), behind.path()) else {
            return;
        };
        disk.set(Health::Full);
        let mut unwritten = Unwritten::default();
        let mut made = || own_authority(folder.path(), &mut unwritten).expect("a CA");
        assert_eq!(made().cert_pem(), made().cert_pem());
        disk.set(Health::Fails);
        assert!(own_authority(folder.path(), &mut Unwritten::default()).is_err());
    }
}
