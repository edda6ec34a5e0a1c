//! TLS: PEM files as rustls configurations, and a peer's certificate as a user and groups.
//!
//! There is one provider (ring), TLS 1.2 and 1.3. Servers request a client certificate without requiring one. The
//! handshake proves that the client holds the key of its certificate; each request checks whether that certificate is
//! valid (`certificate`). Sessions are never resumed (no tickets, no session cache): the certificate of a connection is
//! always that of its own handshake.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;

mod certificate;
mod client;
mod identity;
mod inspect;
mod pair;
mod peer;
mod pem;
mod reload;
mod server;
#[cfg(test)]
mod tests;
mod unverified;

pub(crate) use certificate::ClientCertificate;
pub use client::{ClientTls, ReloadingClientTls};
pub use identity::PeerIdentity;
pub use inspect::{CertificateInfo, missing_in, pinned, public_key_pin};
pub use pair::{PAIR_WAIT, load_pair};
pub use peer::PeerTls;
pub(crate) use pem::to_pem;
pub use pem::{FieldReader, PemIdentity, PemPair, PemSource, check_pair};
pub use reload::POLL_INTERVAL;
pub use server::{ReloadingServerTls, ServerTls};
pub use unverified::unverified;

/// Reason why a TLS configuration cannot be built. Each message names the file, or the source of an inline value. A
/// retry helps only after the file was changed.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file is missing or unreadable.
    #[error("cannot read {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        error: std::io::Error,
    },
    /// The text is not PEM, or contains no block of the required kind.
    #[error("{origin}: {problem}")]
    Pem {
        /// File or source.
        origin: String,
        /// The fault of the text.
        problem: String,
    },
    /// Certificate and key do not match.
    #[error("the private key in {key} does not belong to the certificate in {cert}")]
    KeyMismatch {
        /// File or source of the certificate.
        cert: String,
        /// File or source of the key.
        key: String,
    },
    /// rustls rejects the material, for example an X.509 version 1 certificate.
    #[error("{origin}: {error}")]
    Refused {
        /// File or source.
        origin: String,
        /// rustls' reason.
        error: rustls::Error,
    },
}

// === impl TlsError ===

impl TlsError {
    /// True if certificate and key do not match, which the second half of a rotation resolves.
    #[must_use]
    pub fn is_mismatch(&self) -> bool {
        matches!(self, TlsError::KeyMismatch { .. })
    }
}

/// Makes ring the provider of the whole process, for libraries that use the default. It is the first line of `main`;
/// another call does nothing.
pub fn install_crypto_provider() {
    // An error means that a provider is already installed, and only ring is compiled in.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// The provider that this crate passes explicitly, so that it does not depend on [`install_crypto_provider`].
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
