//! Identity of a connection, checked at every request, as in kube-apiserver.
//!
//! The handshake accepts any readable certificate, and checks that the client holds its key. Each request checks that
//! the certificate chains to the client CA bundle and is valid. An invalid certificate gets an answer (401). A valid
//! one ends with its validity or with its authority, and so does its connection ([`ClientCertificate::ended`]).

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use rustls_pki_types::{CertificateDer, UnixTime};
use tokio::sync::Notify;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::{PeerIdentity, ReloadingServerTls};

/// Maximum number of certificates in addition to the client's own. A chain to an authority has one or two; a handshake
/// with more than the maximum fails.
const INTERMEDIATES_MAX: usize = 8;
/// Maximum age in seconds of a result for a chain with intermediate certificates, because they end, too. The same holds
/// for an invalid certificate, because its validity may begin.
const FOUND_FOR: i64 = 60;
/// Interval of clock checks, since the clock may be set.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// Client certificate of one connection.
#[derive(Debug)]
pub(crate) struct ClientCertificate {
    /// Chain of certificates, the client's own first.
    chain: Vec<CertificateDer<'static>>,
    /// Identity in the certificate, verified or not; `None` if it is unreadable.
    claimed: Option<Arc<PeerIdentity>>,
    /// Last second of its validity.
    not_after: i64,
    tls: ReloadingServerTls,
    found: Mutex<Option<Found>>,
    /// Announces that the certificate, valid at an earlier request, is now invalid.
    lost: Notify,
}

/// The authorities that client certificates may chain to. They are replaced when the files change.
#[derive(Debug)]
pub(super) struct Authorities {
    pub(super) verifier: Arc<dyn ClientCertVerifier>,
    /// Version of the files' content; increases.
    pub(super) version: u64,
}

/// Result of a certificate's verification.
#[derive(Clone, Copy, Debug)]
struct Found {
    is_good: bool,
    /// Version of the authorities used.
    version: u64,
    /// First second of its validity …
    from: i64,
    /// … and its end, exclusive.
    until: i64,
}

/// Accepts any readable certificate in the handshake, if the client holds its key.
#[derive(Debug)]
pub(super) struct HolderVerifier(pub(super) Arc<dyn ClientCertVerifier>);

// === impl ClientCertificate ===

impl ClientCertificate {
    /// `None` for a connection without a certificate.
    pub(crate) fn of(chain: Option<&[CertificateDer<'_>]>, tls: &ReloadingServerTls) -> Option<Self> {
        let chain = chain.filter(|chain| !chain.is_empty())?;
        let own = X509Certificate::from_der(&chain[0]).ok();
        Some(Self {
            chain: chain
                .iter()
                .map(|certificate| certificate.clone().into_owned())
                .collect(),
            claimed: PeerIdentity::from_chain(chain).map(Arc::new),
            not_after: own.map_or(i64::MIN, |(_, own)| own.validity().not_after.timestamp()),
            tls: tls.clone(),
            found: Mutex::new(None),
            lost: Notify::new(),
        })
    }

    /// Identity of the holder; `None` if the certificate is invalid at present.
    pub(crate) fn identity(&self) -> Option<Arc<PeerIdentity>> {
        let claimed = self.claimed.as_ref()?;
        let authorities = self.tls.authorities()?;
        let now = self.tls.clock().unix().secs;
        let mut last = self.found.lock();
        let known =
            last.filter(|found| found.version == authorities.version && (found.from..found.until).contains(&now));
        let found = known.unwrap_or_else(|| self.look(&authorities, now));
        let was_good = last.replace(found).is_some_and(|last| last.is_good);
        if was_good && !found.is_good {
            self.lost.notify_one();
        }
        found.is_good.then(|| claimed.clone())
    }

    /// Resolves once the certificate is no longer valid: at its end, after a change of the authorities, or when a
    /// request detects it. A change of the clock may be detected 60 s later.
    pub(crate) async fn ended(&self) {
        let mut changes = self.tls.changes();
        while self.identity().is_some() {
            let now = self.tls.clock().unix().secs;
            let until = self.found.lock().map_or(now, |found| found.until);
            let left = Duration::from_secs(u64::try_from(until.saturating_sub(now)).unwrap_or(0).max(1));
            tokio::select! {
                () = tokio::time::sleep(left.min(LOOK_EVERY)) => {}
                () = self.lost.notified() => {}
                changed = changes.changed() => if changed.is_err() { return },
            }
        }
    }

    fn look(&self, authorities: &Authorities, now: i64) -> Found {
        let seconds = Duration::from_secs(u64::try_from(now).unwrap_or(0));
        let verified = self.chain.split_first().map(|(own, intermediates)| {
            let time = UnixTime::since_unix_epoch(seconds);
            authorities.verifier.verify_client_cert(own, intermediates, time)
        });
        let is_good = matches!(verified, Some(Ok(_)));
        let end = match is_good && self.chain.len() == 1 {
            true => i64::MAX,
            false => now.saturating_add(FOUND_FOR),
        };
        Found {
            is_good,
            version: authorities.version,
            from: now,
            until: if is_good {
                end.min(self.not_after.saturating_add(1))
            } else {
                end
            },
        }
    }
}

// === impl HolderVerifier ===

impl ClientCertVerifier for HolderVerifier {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if intermediates.len() > INTERMEDIATES_MAX {
            return Err(CertificateError::BadEncoding.into());
        }
        ParsedCertificate::try_from(end_entity)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
