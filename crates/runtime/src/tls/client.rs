//! TLS of a client, rebuilt when its files change.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::sign::CertifiedKey;
use tracing::{info, warn};

use super::reload::{self, WatchedFiles};
use super::{PemIdentity, PemSource, TlsError, provider};
use crate::tasks::TaskGroup;

/// Files that a client needs for TLS. ALPN is not part of it: [`HttpClient`](crate::http::client::HttpClient) sets it
/// according to its protocol.
#[derive(Clone, Debug)]
pub struct ClientTls {
    /// Authorities (one or several) that the server's certificate must chain to.
    pub ca: PemSource,
    /// Certificate to present, if any.
    pub identity: Option<PemIdentity>,
}

/// Reloads the files behind a [`ClientTls`].
#[derive(Debug)]
pub struct ReloadingClientTls {
    source: ClientTls,
    files: WatchedFiles,
}

/// Presents its one certificate regardless of the server's hints about authorities, as Go and curl do.
#[derive(Debug)]
pub(super) struct Present(pub(super) Arc<CertifiedKey>);

// === impl ClientTls ===

impl ClientTls {
    /// Builds the configuration from the present content of the files.
    ///
    /// # Errors
    /// Names the file, and its fault.
    pub fn config(&self) -> Result<ClientConfig, TlsError> {
        let versions = &[&rustls::version::TLS13, &rustls::version::TLS12];
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(versions)
            .map_err(|error| self.ca.refused(error))?
            .with_root_certificates(self.ca.roots()?);
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some(identity) => builder.with_client_cert_resolver(Arc::new(Present(identity.load()?))),
        };
        // A resumed session would carry the certificate of an earlier handshake.
        config.resumption = Resumption::disabled();
        Ok(config)
    }
}

// === impl ReloadingClientTls ===

impl ReloadingClientTls {
    /// Records the files and builds the first configuration.
    ///
    /// # Errors
    /// Names the file, and its fault.
    pub fn new(source: ClientTls) -> Result<(Self, ClientConfig), TlsError> {
        let identity = source
            .identity
            .iter()
            .flat_map(|identity| [&identity.cert, &identity.key]);
        let files = WatchedFiles::new(std::iter::once(&source.ca).chain(identity))?;
        let config = source.config()?;
        Ok((ReloadingClientTls { source, files }, config))
    }

    /// Returns a new configuration if a file changed. Blocks for a few small reads.
    ///
    /// # Errors
    /// Names the file, and its fault; the caller keeps the previous configuration.
    pub fn poll_files(&self) -> Result<Option<ClientConfig>, TlsError> {
        self.files.rebuilt(|| self.source.config())
    }

    /// Starts the task that passes a changed configuration to `apply`, checking every
    /// [`POLL_INTERVAL`](reload::POLL_INTERVAL).
    pub fn watch(self, tasks: &TaskGroup, apply: impl Fn(ClientConfig) + Send + Sync + 'static) {
        if self.files.is_empty() {
            return;
        }
        let this = Arc::new(self);
        let polled = this.clone();
        let poll = move || polled.poll_files();
        let take = move |changed| match changed {
            Ok(None) => {}
            Ok(Some(config)) => {
                info!(ca = %this.source.ca, "Client certificate or CA reloaded");
                apply(config);
            }
            Err(error) => warn!(%error, "Keeping the previous client certificate and CA"),
        };
        tasks.spawn_critical("reload-client-tls", reload::repeat(tasks.token(), poll, take));
    }
}

// === impl Present ===

impl ResolvesClientCert for Present {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[rustls::SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}
