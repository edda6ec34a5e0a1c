//! Turns PEM files into rustls configurations, and a peer's certificate into a user and groups.
//!
//! One provider (ring), TLS 1.2 and 1.3. Servers ask for a client certificate without requiring one. The handshake proves
//! that the client holds the key of a certificate that it presents; each request asks whether that certificate is good
//! (`certificate`). Nothing is resumed (no tickets, no session cache): the certificate of a connection is always the one of
//! its own handshake.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;

mod certificate;
mod client;
mod identity;
mod pair;
mod peer;
mod pem;
mod reload;
mod server;
#[cfg(test)]
mod tests;

pub(crate) use certificate::ClientCertificate;
pub use client::{ClientTls, ReloadingClientTls};
pub use identity::PeerIdentity;
pub use pair::{PAIR_WAIT, load_pair};
pub use peer::PeerTls;
pub use pem::{PemIdentity, PemSource, check_pair};
pub use reload::POLL_INTERVAL;
pub use server::{ReloadingServerTls, ServerTls};

/// Why a TLS configuration cannot be built. Each message names the file, or the place that an inline value came from.
/// Worth a retry only after somebody changed the file.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file is missing or unreadable.
    #[error("cannot read {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        error: std::io::Error,
    },
    /// The text is not PEM, or holds no block of the wanted kind.
    #[error("{origin}: {problem}")]
    Pem {
        /// File or place.
        origin: String,
        /// What is wrong.
        problem: String,
    },
    /// Certificate and key do not belong together.
    #[error("the private key in {key} does not belong to the certificate in {cert}")]
    KeyMismatch {
        /// Where the certificate is.
        cert: String,
        /// Where the key is.
        key: String,
    },
    /// rustls refuses the material, for example an X.509 version 1 certificate.
    #[error("{origin}: {error}")]
    Refused {
        /// File or place.
        origin: String,
        /// rustls' reason.
        error: rustls::Error,
    },
}

// === impl TlsError ===

impl TlsError {
    /// Whether certificate and key do not belong together, which the second half of a rotation mends.
    #[must_use]
    pub fn is_mismatch(&self) -> bool {
        matches!(self, TlsError::KeyMismatch { .. })
    }
}

/// Makes ring the provider of the whole process, for libraries that ask for the default. First line of `main`; calling it
/// again does nothing.
pub fn install_crypto_provider() {
    // An error means that one is installed already, and only ring is compiled in.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// The provider that this crate passes explicitly, so that nothing depends on [`install_crypto_provider`].
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
