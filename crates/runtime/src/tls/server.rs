//! TLS of a server, reloaded when its files change.

use std::sync::Arc;

use parking_lot::RwLock;
use rustls::ServerConfig;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::SingleCertAndKey;
use tokio::sync::watch;
use tracing::{info, warn};

use super::certificate::{Authorities, HolderVerifier};
use super::reload::{self, WatchedFiles};
use super::{PemIdentity, PemSource, TlsError, provider};
use crate::clock::Clock;
use crate::tasks::TaskGroup;

/// Files that a server needs for TLS.
#[derive(Clone, Debug)]
pub struct ServerTls {
    /// Serving certificate and its key.
    pub identity: PemIdentity,
    /// Authorities (one or several) that client certificates may chain to; with `None` the server requests no client
    /// certificate.
    pub client_ca: Option<PemSource>,
}

/// The current configuration of a server. Cheap to clone; clones share it.
#[derive(Clone, Debug)]
pub struct ReloadingServerTls {
    shared: Arc<ReloadShared>,
}

/// Clients that may finish a handshake, and its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Clients {
    /// All clients; each request checks whether the certificate is valid. TLS 1.2 and 1.3, HTTP/2 and HTTP/1.1.
    Any,
    /// Only clients with a valid certificate. TLS 1.3, HTTP/1.1.
    Required,
}

#[derive(Debug)]
struct ReloadShared {
    source: ServerTls,
    clients: Clients,
    files: WatchedFiles,
    clock: Clock,
    // Guards only the pointers: handshakes and requests clone them, a reload replaces them.
    current: RwLock<Current>,
    /// Number of times that `current` was replaced.
    changes: watch::Sender<u64>,
}

#[derive(Debug)]
struct Current {
    config: Arc<ServerConfig>,
    authorities: Option<Arc<Authorities>>,
}

// === impl ServerTls ===

impl ServerTls {
    /// Builds the configuration from the present content of the files.
    ///
    /// # Errors
    /// Names the file, and its fault.
    pub fn config(&self) -> Result<ServerConfig, TlsError> {
        let verifier = self.verifier()?;
        self.config_for(Clients::Any, verifier)
    }

    /// Verifier that checks whether a certificate chains to one of the authorities, and is for clients.
    fn verifier(&self) -> Result<Option<Arc<dyn ClientCertVerifier>>, TlsError> {
        let Some(ca) = &self.client_ca else { return Ok(None) };
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(ca.roots()?), provider()).build();
        let verifier = verifier.map_err(|error| ca.refused(rustls::Error::General(error.to_string())))?;
        Ok(Some(verifier))
    }

    fn config_for(
        &self,
        clients: Clients,
        verifier: Option<Arc<dyn ClientCertVerifier>>,
    ) -> Result<ServerConfig, TlsError> {
        let identity = self.identity.load()?;
        let versions: &[_] = match clients {
            Clients::Any => &[&rustls::version::TLS13, &rustls::version::TLS12],
            Clients::Required => &[&rustls::version::TLS13],
        };
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(versions)
            .map_err(|error| self.identity.cert.refused(error))?;
        let builder = match (verifier, clients) {
            (None, _) => builder.with_no_client_auth(),
            (Some(verifier), Clients::Any) => builder.with_client_cert_verifier(Arc::new(HolderVerifier(verifier))),
            (Some(verifier), Clients::Required) => builder.with_client_cert_verifier(verifier),
        };
        let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(identity)));
        config.alpn_protocols = match clients {
            Clients::Any => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            Clients::Required => vec![b"http/1.1".to_vec()],
        };
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(config)
    }
}

// === impl Current ===

impl Current {
    fn of(source: &ServerTls, clients: Clients, version: u64) -> Result<Self, TlsError> {
        let verifier = source.verifier()?;
        Ok(Self {
            config: Arc::new(source.config_for(clients, verifier.clone())?),
            authorities: verifier.map(|verifier| Arc::new(Authorities { verifier, version })),
        })
    }
}

// === impl ReloadingServerTls ===

impl ReloadingServerTls {
    /// Builds the first configuration.
    ///
    /// # Errors
    /// Names the file, and its fault.
    pub fn new(source: ServerTls) -> Result<Self, TlsError> {
        Self::with_clients(source, Clients::Any, Clock::system())
    }

    pub(super) fn with_clients(source: ServerTls, clients: Clients, clock: Clock) -> Result<Self, TlsError> {
        let sources = [&source.identity.cert, &source.identity.key]
            .into_iter()
            .chain(&source.client_ca);
        // Contents are recorded before they are parsed: the next poll sees a change in between.
        let files = WatchedFiles::new(sources)?;
        let current = RwLock::new(Current::of(&source, clients, 0)?);
        Ok(ReloadingServerTls {
            shared: Arc::new(ReloadShared {
                source,
                clients,
                files,
                clock,
                current,
                changes: watch::Sender::new(0),
            }),
        })
    }

    /// The configuration for the next handshake.
    #[must_use]
    pub fn current(&self) -> Arc<ServerConfig> {
        self.shared.current.read().config.clone()
    }

    /// Present authorities; `None` if the server requests no certificate.
    pub(super) fn authorities(&self) -> Option<Arc<Authorities>> {
        self.shared.current.read().authorities.clone()
    }

    /// Counts the changes of the files that are in use.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    /// Reads the files again and loads changes; true if there were any. The next requests of existing connections use
    /// them, too. Blocks for a few small reads.
    ///
    /// # Errors
    /// Names the file, and its fault; the previous configuration stays in use.
    pub fn poll_files(&self) -> Result<bool, TlsError> {
        let version = self.authorities().map_or(0, |authorities| authorities.version + 1);
        let build = || Current::of(&self.shared.source, self.shared.clients, version);
        let Some(current) = self.shared.files.rebuilt(build)? else {
            return Ok(false);
        };
        *self.shared.current.write() = current;
        self.shared.changes.send_modify(|count| *count += 1);
        Ok(true)
    }

    /// Starts the task that calls [`Self::poll_files`] every [`POLL_INTERVAL`](reload::POLL_INTERVAL) and logs the
    /// result.
    pub fn watch(&self, tasks: &TaskGroup) {
        if self.shared.files.is_empty() {
            return;
        }
        let (this, polled) = (self.clone(), self.clone());
        let poll = move || polled.poll_files();
        let take = move |changed| match changed {
            Ok(true) => info!(cert = %this.shared.source.identity.cert, "Serving certificate or client CA reloaded"),
            Ok(false) => {}
            Err(error) => warn!(%error, "Keeping the previous serving certificate and client CA"),
        };
        tasks.spawn_critical("reload-server-tls", reload::repeat(tasks.token(), poll, take));
    }
}
