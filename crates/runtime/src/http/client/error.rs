//! Failures of a request, by the caller's possible reaction.

use std::error::Error;
use std::io;
use std::time::Duration;

use rustls::AlertDescription;

use super::connector::ConnectError;

/// Reason why there is no complete answer. Every message names the server. [`ClientError::never_sent`] returns true if
/// a retry is harmless even for a write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// No connection: it was refused, the address is unreachable, the name is unknown, or it broke before the TLS
    /// handshake ended. Retry later or elsewhere.
    #[error("cannot connect to {server}: {cause}")]
    Connect {
        /// The server's URL.
        server: String,
        /// The system's error.
        cause: String,
    },
    /// The time ran out. Retry later; unless `connecting`, the server may have acted on the request.
    #[error("{server} did not answer within {after:?}{}", if *connecting { " (connecting)" } else { "" })]
    Timeout {
        /// The server's URL.
        server: String,
        /// The timeout that was exceeded.
        after: Duration,
        /// True if the connection took too long.
        connecting: bool,
    },
    /// The server's certificate, or the client's, was rejected. Retry after a certificate was replaced.
    #[error("TLS with {server}: {cause}")]
    Tls {
        /// The server's URL.
        server: String,
        /// rustls' reason.
        cause: String,
        /// True if the handshake failed on the client's side, before a request was sent. A TLS 1.3 server rejects the
        /// client's certificate after it.
        handshake: bool,
    },
    /// The connection broke, or the answer is not HTTP. The server may have acted on the request.
    #[error("request to {server}: {cause}")]
    Protocol {
        /// The server's URL.
        server: String,
        /// The failure, causes included.
        cause: String,
    },
    /// The answer exceeds the caller's limit.
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
        /// The fault of the URL.
        why: String,
    },
}

// === impl ClientError ===

impl ClientError {
    /// True if the request certainly did not reach the server.
    #[must_use]
    pub fn never_sent(&self) -> bool {
        match self {
            ClientError::Connect { .. } | ClientError::Unusable { .. } => true,
            ClientError::Timeout { connecting, .. } => *connecting,
            ClientError::Tls { handshake, .. } => *handshake,
            ClientError::Protocol { .. } | ClientError::BodyTooLarge { .. } => false,
        }
    }

    /// True if the server rejected this client's certificate, or its absence. It has read no request then.
    #[must_use]
    pub fn rejects_client(&self) -> bool {
        matches!(self, ClientError::Tls { cause, .. } if names_refusal(cause))
    }

    /// An error of the connection pool.
    pub(super) fn of_request(server: String, error: &(dyn Error + 'static)) -> Self {
        match causes(error).find_map(|cause| cause.downcast_ref::<ConnectError>()) {
            Some(ConnectError::Tcp(error)) => ClientError::Connect {
                server,
                cause: error.to_string(),
            },
            Some(ConnectError::Tls(error)) if rejection(error).is_some() => ClientError::Tls {
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

    /// An error during the exchange.
    pub(super) fn of_body(server: String, error: &(dyn Error + 'static)) -> Self {
        let cause = chain(error);
        let refused = causes(error)
            .find_map(|cause| cause.downcast_ref::<io::Error>())
            .and_then(of_rustls);
        let refused = match refused {
            Some(error) => about_certificates(error),
            // For its connection's errors, HTTP/2 passes on only the text.
            None => names_refusal(&cause),
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

/// Alerts of a peer that rejects the client's certificate (RFC 8446 §6.2). `DecryptError` means a signature of another
/// CA with the same name; damage on the way has other alerts.
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

/// True if an error's text names one of these alerts.
fn names_refusal(cause: &str) -> bool {
    REFUSALS
        .iter()
        .any(|alert| cause.contains(&rustls::Error::AlertReceived(*alert).to_string()))
}

/// True if the certificates do not match. All other handshake failures may disappear at the next attempt.
fn about_certificates(error: &rustls::Error) -> bool {
    match error {
        rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented => true,
        rustls::Error::AlertReceived(alert) => REFUSALS.contains(alert),
        _ => false,
    }
}

/// The cause of `error`, if it says that the certificates do not match.
pub(super) fn rejection(error: &io::Error) -> Option<&rustls::Error> {
    of_rustls(error).filter(|error| about_certificates(error))
}

fn of_rustls(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// The error and its causes, outermost first.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error: &&'a (dyn Error + 'static)| (*error).source())
}

/// All causes in one line. Of the end of a connection without an error HTTP/2 says only that it is none.
fn chain(error: &(dyn Error + 'static)) -> String {
    let is_end = |cause: &&(dyn Error + 'static)| {
        let cause = cause.downcast_ref::<h2::Error>();
        cause.is_some_and(|cause| cause.reason() == Some(h2::Reason::NO_ERROR))
    };
    let text = |cause: &(dyn Error + 'static)| match is_end(&cause) {
        true => "the server closed the connection without an error".to_owned(),
        false => cause.to_string(),
    };
    causes(error).map(text).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_a_connection_without_an_error_is_described_as_such() {
        let ended = h2::Error::from(h2::Reason::NO_ERROR);
        let error = ClientError::of_body("https://pool".to_owned(), &ended).to_string();
        assert!(error.contains("the server closed the connection"), "{error}");
        let broken = h2::Error::from(h2::Reason::PROTOCOL_ERROR);
        let error = ClientError::of_body("https://pool".to_owned(), &broken).to_string();
        assert!(!error.contains("the server closed the connection"), "{error}");
    }
}
