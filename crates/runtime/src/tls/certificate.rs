//! Whose a connection is: asked at every request, as kube-apiserver does.
//!
//! The handshake takes any certificate that can be read, and checks that the client holds its key. Whether it chains to the
//! client CA bundle and is valid is found out when a request comes. A certificate that is not good gets an answer (401). One
//! that was good ends with its time, or with its authority, and so does its connection ([`ClientCertificate::ended`]).

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

/// Most certificates beside the client's own: a chain to an authority has one or two. A handshake with more fails.
const INTERMEDIATES_MAX: usize = 8;
/// A finding is used no longer than this, in seconds, where certificates are between the client's and the authority: they end,
/// too. So is one that is not good: its time may begin.
const FOUND_FOR: i64 = 60;
/// The clock is looked at this often, as it may be set.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// Client certificate of one connection.
#[derive(Debug)]
pub(crate) struct ClientCertificate {
    /// The client's own first.
    chain: Vec<CertificateDer<'static>>,
    /// What the certificate says, true or not; `None` if that cannot be read.
    claimed: Option<Arc<PeerIdentity>>,
    /// Last second of its time.
    not_after: i64,
    tls: ReloadingServerTls,
    found: Mutex<Option<Found>>,
    /// It was good at the request before.
    lost: Notify,
}

/// The authorities that client certificates may chain to, until the files change.
#[derive(Debug)]
pub(super) struct Authorities {
    pub(super) verifier: Arc<dyn ClientCertVerifier>,
    /// Of the files' content; rises.
    pub(super) version: u64,
}

/// What was found of a certificate.
#[derive(Clone, Copy, Debug)]
struct Found {
    is_good: bool,
    /// Version of the authorities that were asked.
    version: u64,
    /// From this second …
    from: i64,
    /// … to before this one.
    until: i64,
}

/// Lets any certificate that can be read finish the handshake, if the client holds its key.
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

    /// Whose it is; `None` if it is not good at present.
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

    /// Resolves once the certificate is not good any more: at its end, after the authorities changed, or when a request found
    /// out. A clock that was set may be noticed 60 s later.
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
