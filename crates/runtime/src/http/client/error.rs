//! Sorts the failures of a request by what the caller can do about them.

use std::error::Error;
use std::io;
use std::time::Duration;

use rustls::AlertDescription;

use super::connector::ConnectError;

/// Why there is no complete answer. Every message names the server. [`ClientError::never_sent`] tells whether a retry is
/// harmless even for a write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// No connection: refused, unreachable, the name is unknown, or it broke before TLS was agreed. Retry later or elsewhere.
    #[error("cannot connect to {server}: {cause}")]
    Connect {
        /// The server's URL.
        server: String,
        /// What the system said.
        cause: String,
    },
    /// Time ran out. Retry later; unless `connecting`, the server may have acted on the request.
    #[error("{server} did not answer within {after:?}{}", if *connecting { " (connecting)" } else { "" })]
    Timeout {
        /// The server's URL.
        server: String,
        /// The timeout that was exceeded.
        after: Duration,
        /// Whether it was the connection that took too long.
        connecting: bool,
    },
    /// The server's certificate, or ours, was refused. Retry after a certificate was replaced.
    #[error("TLS with {server}: {cause}")]
    Tls {
        /// The server's URL.
        server: String,
        /// rustls' reason.
        cause: String,
        /// Whether the handshake failed on our side, before a request was sent. A TLS 1.3 server refuses our certificate
        /// after it.
        handshake: bool,
    },
    /// The connection broke, or the answer is not HTTP. The server may have acted on the request.
    #[error("request to {server}: {cause}")]
    Protocol {
        /// The server's URL.
        server: String,
        /// What happened, causes included.
        cause: String,
    },
    /// The answer is larger than the caller wanted.
    #[error("the answer of {server} is larger than {limit} bytes")]
    BodyTooLarge {
        /// The server's URL.
        server: String,
        /// The limit in bytes.
        limit: usize,
    },
    /// The URL or path cannot be used; no retry helps.
    #[error("cannot use {server}: {why}")]
    Unusable {
        /// The URL as given.
        server: String,
        /// What is wrong with it.
        why: String,
    },
}

// === impl ClientError ===

impl ClientError {
    /// Whether the request certainly did not reach the server.
    #[must_use]
    pub fn never_sent(&self) -> bool {
        match self {
            ClientError::Connect { .. } | ClientError::Unusable { .. } => true,
            ClientError::Timeout { connecting, .. } => *connecting,
            ClientError::Tls { handshake, .. } => *handshake,
            ClientError::Protocol { .. } | ClientError::BodyTooLarge { .. } => false,
        }
    }

    /// An error of the connection pool.
    pub(super) fn of_request(server: String, error: &(dyn Error + 'static)) -> Self {
        match causes(error).find_map(|cause| cause.downcast_ref::<ConnectError>()) {
            Some(ConnectError::Tcp(error)) => ClientError::Connect {
                server,
                cause: error.to_string(),
            },
            Some(ConnectError::Tls(error)) if of_rustls(error).is_some_and(about_certificates) => ClientError::Tls {
                server,
                cause: error.to_string(),
                handshake: true,
            },
            Some(ConnectError::Tls(error)) => ClientError::Connect {
                server,
                cause: format!("TLS: {error}"),
            },
            Some(ConnectError::Timeout(after)) => ClientError::Timeout {
                server,
                after: *after,
                connecting: true,
            },
            None => Self::of_body(server, error),
        }
    }

    /// An error while the exchange was under way.
    pub(super) fn of_body(server: String, error: &(dyn Error + 'static)) -> Self {
        let cause = chain(error);
        let refused = causes(error)
            .find_map(|cause| cause.downcast_ref::<io::Error>())
            .and_then(of_rustls);
        let refused = match refused {
            Some(error) => about_certificates(error),
            // HTTP/2 hands on the text only of what its connection said.
            None => REFUSALS
                .iter()
                .any(|alert| cause.contains(&rustls::Error::AlertReceived(*alert).to_string())),
        };
        if refused {
            ClientError::Tls {
                server,
                cause,
                handshake: false,
            }
        } else {
            ClientError::Protocol { server, cause }
        }
    }
}

/// What a peer says that does not take our certificate (RFC 8446 §6.2). A signature that is not of the CA of that name is
/// `DecryptError`; what is damaged on the way has other names.
const REFUSALS: [AlertDescription; 10] = [
    AlertDescription::NoCertificate,
    AlertDescription::BadCertificate,
    AlertDescription::UnsupportedCertificate,
    AlertDescription::CertificateRevoked,
    AlertDescription::CertificateExpired,
    AlertDescription::CertificateUnknown,
    AlertDescription::UnknownCA,
    AlertDescription::AccessDenied,
    AlertDescription::DecryptError,
    AlertDescription::CertificateRequired,
];

/// Whether it is the certificates that do not fit. Everything else that ends a handshake may be different the next time.
fn about_certificates(error: &rustls::Error) -> bool {
    match error {
        rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented => true,
        rustls::Error::AlertReceived(alert) => REFUSALS.contains(alert),
        _ => false,
    }
}

fn of_rustls(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// The error and what caused it, outermost first.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error: &&'a (dyn Error + 'static)| (*error).source())
}

/// All causes in one line.
fn chain(error: &(dyn Error + 'static)) -> String {
    causes(error).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
