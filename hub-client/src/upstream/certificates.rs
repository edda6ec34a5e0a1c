//! Descriptions of errors and answers that are about certificates: they name the file to correct.

use http::StatusCode;
use yurt_runtime::http::client::ClientError;
use yurt_runtime::tls::PemSource;

use super::describe_answer;

/// Files behind the connections to a server.
#[derive(Clone, Debug)]
pub struct CertificateFiles {
    /// CA that has to verify the server's certificate.
    pub ca: PemSource,
    /// Client certificate that the server has to accept.
    pub own: PemSource,
}

// === impl CertificateFiles ===

impl CertificateFiles {
    #[cfg(test)]
    pub(crate) fn for_test() -> Self {
        Self {
            ca: PemSource::inline("the test's CA", ""),
            own: PemSource::inline("the test's certificate", ""),
        }
    }

    /// Describes the failure of a request.
    pub(crate) fn describe(&self, error: &ClientError) -> String {
        let text = error.to_string();
        let is_tls = matches!(error, ClientError::Tls { .. });
        if is_tls && error.rejects_client() {
            format!("{text}; it does not accept the certificate in {}", self.own)
        } else if is_tls && is_of_time(&text) {
            format!("{text}; its certificate has to be renewed, or this node's clock is wrong")
        } else if is_tls && ["UnknownIssuer", "BadSignature"].iter().any(|part| text.contains(part)) {
            format!("{text}; {} does not verify its certificate", self.ca)
        } else {
            text
        }
    }

    /// Describes an answer that is an error.
    pub(crate) fn describe_answer(&self, status: StatusCode, body: &[u8]) -> String {
        let text = describe_answer(status, body);
        match status {
            StatusCode::UNAUTHORIZED => format!("{text}; it does not accept the certificate in {}", self.own),
            _ => text,
        }
    }
}

/// True if a TLS error is about the validity of a certificate, which a wrong clock explains as well.
pub(crate) fn is_of_time(text: &str) -> bool {
    let lower = text.to_lowercase();
    lower.contains("expired") || lower.contains("not valid yet")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_about_a_certificate_names_the_file_to_correct() {
        let files = CertificateFiles::for_test();
        for (cause, part) in [
            (
                "invalid peer certificate: UnknownIssuer",
                "; the test's CA does not verify",
            ),
            (
                "invalid peer certificate: BadSignature",
                "; the test's CA does not verify",
            ),
            ("invalid peer certificate: certificate expired: …", "clock"),
            (
                "received fatal alert: UnknownCA",
                "accept the certificate in the test's certificate",
            ),
        ] {
            let error = ClientError::Tls {
                server: "https://cloud".to_owned(),
                cause: cause.to_owned(),
                handshake: true,
            };
            let text = files.describe(&error);
            assert!(text.contains(cause) && text.contains(part), "{text}");
        }
        let error = ClientError::Connect {
            server: "https://cloud".to_owned(),
            cause: "UnknownIssuer".to_owned(),
        };
        assert_eq!(files.describe(&error), error.to_string());
    }
}
