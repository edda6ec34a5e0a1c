//! The node's client certificate: obtained with a join token or a bootstrap kubeconfig, renewed before its end, and
//! obtained again after it. With `--bootstrap-mode=kubeletcertificate` the kubelet does this, and the hub observes it.
//!
//! [`plan`] decides, [`csr`] and [`discovery`] read what servers answer, `files` has the names on disk, and
//! [`CertificateKeeper`] does the I/O. A hub with a certificate, valid or not, starts and serves its data; only a hub
//! that never had one waits.

pub mod csr;
pub mod discovery;
mod files;
pub mod plan;
mod request;
pub mod serving;
mod standing;

use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use yurt_runtime::http::client::ClientError;
use yurt_runtime::readiness::Check;
use yurt_runtime::tls::{CertificateInfo, PemSource};
use yurt_runtime::{Clock, files as file_access};

use crate::config::{Config, Join};
use crate::failures::Failures;
use crate::upstream::{Upstreams, is_of_time};
use csr::Profile;
use discovery::JoinToken;
use files::Files;
use plan::{Credential, JoinOutcome, Next, Situation, Step, Validity};
pub(crate) use standing::Standing;

/// Maximum time to connect, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time between two decisions, because the wall clock may be set.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// Pending looks between two lines of progress in the log.
const PROGRESS_EVERY: u32 = 12;
/// Name of this part in the hub's failures.
const CERTIFICATE: &str = "node certificate";

/// The node cannot get a certificate; one line that names the flag or file, and the fix.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct IdentityError(String);

/// Keeps the node's certificate valid.
pub struct CertificateKeeper {
    node: String,
    servers: Vec<Uri>,
    /// `None` if the kubelet owns the certificate.
    join: Option<Join>,
    files: Files,
    /// The certificate's file, or its text in a kubeconfig.
    certificate: PemSource,
    clock: Clock,
    /// Token received at the hub's port, newer than that of the command line.
    fed: Mutex<Option<JoinToken>>,
    wake: Arc<Notify>,
    /// Name of the request that this process created or found.
    submitted: Mutex<Option<String>>,
    standing: watch::Sender<Standing>,
}

// === impl CertificateKeeper ===

impl CertificateKeeper {
    /// Creates a keeper of the hub's own certificate; `None` if the kubelet owns it. The root directory must exist.
    ///
    /// # Errors
    /// The certificate is unreadable or of another node.
    pub fn own(config: &Config, clock: Clock) -> Result<Option<Self>, IdentityError> {
        let Some(join) = config.join.clone() else {
            return Ok(None);
        };
        let files = Files::new(&config.root_dir);
        let certificate = PemSource::from(files.pair.clone());
        let keeper = Self::new(config, certificate, Some(join), files, clock, Arc::default());
        let present = keeper.files.certificate().map_err(|error| {
            let path = keeper.files.pair.display();
            IdentityError(format!("--root-dir: {error}; remove {path} to join again"))
        })?;
        if let Some(present) = present {
            keeper.check_name(&present, "--root-dir")?;
            keeper.renew_kubeconfig()?;
        }
        keeper.look();
        Ok(Some(keeper))
    }

    /// Creates an observer of the kubelet's certificate.
    ///
    /// # Errors
    /// The certificate is of another node.
    pub fn of_kubelet(config: &Config, upstreams: &Upstreams, clock: Clock) -> Result<Self, IdentityError> {
        let files = Files::new(&config.root_dir);
        let (certificate, renewed) = (upstreams.node.cert.clone(), upstreams.renewed.clone());
        let keeper = Self::new(config, certificate, None, files, clock, renewed);
        if let Ok(present) = CertificateInfo::leaf(&keeper.certificate) {
            keeper.check_name(&present, "--kubeconfig")?;
        }
        keeper.look();
        Ok(keeper)
    }

    fn new(
        config: &Config,
        certificate: PemSource,
        join: Option<Join>,
        files: Files,
        clock: Clock,
        wake: Arc<Notify>,
    ) -> Self {
        Self {
            node: config.node.clone(),
            servers: config.servers.clone(),
            join,
            files,
            certificate,
            clock,
            fed: Mutex::default(),
            wake,
            submitted: Mutex::default(),
            standing: watch::Sender::default(),
        }
    }

    /// Logs a certificate of the hub's own that it neither uses nor renews, because its flags name the kubelet's.
    pub(crate) fn log_unused(&self) {
        if self.join.is_none() && self.files.pair.exists() {
            let path = self.files.pair.display();
            tracing::warn!(%path, "Certificate stays unused; set --bootstrap-mode=token to renew it, or delete the file");
        }
    }

    /// True if the hub has a certificate, valid or not.
    #[must_use]
    pub fn has_certificate(&self) -> bool {
        CertificateInfo::leaf(&self.certificate).is_ok()
    }

    /// Current state of the certificate.
    pub(crate) fn standing(&self) -> Standing {
        self.standing.borrow().clone()
    }

    /// Requests a certificate, and waits until it is issued: without a limit while it is not approved or no server
    /// answers.
    ///
    /// # Errors
    /// Permanent cause of the failure, and the fix.
    pub async fn join(self: &Arc<Self>) -> Result<(), IdentityError> {
        let mut attempts = Attempts::default();
        let discovery = self.join.as_ref().map_or(Duration::ZERO, |join| join.discovery);
        while !self.on_disk(Self::has_certificate).await {
            let next = match self.on_disk(Self::look).await {
                Step::Request(credential) => self.attempt(credential, &mut attempts, Some(discovery)).await,
                _ => Next::Fail(self.standing().message),
            };
            match next {
                Next::Continue => {}
                Next::Pause(pause) => self.pause(pause).await,
                Next::Fail(why) => return Err(IdentityError(why)),
            }
        }
        Ok(())
    }

    /// Renews the certificate until `stop`. Reports its state to `check` and `failures`.
    pub async fn keep(self: Arc<Self>, check: Check, failures: Failures, stop: CancellationToken) {
        stop.run_until_cancelled(self.keep_valid(&check, &failures)).await;
    }

    async fn keep_valid(self: &Arc<Self>, check: &Check, failures: &Failures) {
        let mut attempts = Attempts::default();
        loop {
            let pause = match self.on_disk(Self::look).await {
                Step::Request(credential) if self.join.is_some() => {
                    match self.attempt(credential, &mut attempts, None).await {
                        Next::Continue => Duration::ZERO,
                        Next::Pause(pause) => pause,
                        Next::Fail(_) => LOOK_EVERY,
                    }
                }
                Step::Rest { until } => {
                    attempts.rest();
                    self.standing.send_modify(Standing::note_rest);
                    let left = until.saturating_sub(self.clock.unix().secs);
                    Duration::from_secs(u64::try_from(left).unwrap_or(0).max(1)).min(LOOK_EVERY)
                }
                _ => LOOK_EVERY,
            };
            let standing = self.standing();
            check.set(standing.is_valid());
            failures.tell(CERTIFICATE, standing.trouble());
            self.pause(pause).await;
        }
    }

    /// Receives a new join token, and uses it immediately if the hub needs one.
    ///
    /// # Errors
    /// The hub does not manage its certificate, or the token cannot be stored.
    pub(crate) async fn feed(self: &Arc<Self>, token: JoinToken) -> Result<(), IdentityError> {
        if self.join.is_none() {
            let why = "the kubelet owns the certificate (--bootstrap-mode=kubeletcertificate); a join token has no use";
            return Err(IdentityError(why.to_owned()));
        }
        // A token that is stored is also used, even if the sender hangs up.
        let feeding = self.on_disk(move |this| {
            if let Ok(ca) = std::fs::read_to_string(&this.files.ca) {
                let written = this.files.write_bootstrap(&this.first_server(), &ca, &token);
                written.map_err(|error| IdentityError(format!("--root-dir: {error}")))?;
            }
            *this.fed.lock() = Some(token);
            this.wake.notify_one();
            Ok(())
        });
        feeding.await
    }

    /// True if `text` is the join token in use: the one received last, that of the flag, or the one stored by an
    /// earlier start.
    pub(crate) async fn knows(self: &Arc<Self>, text: &str) -> bool {
        let fed = self.fed.lock().clone();
        let known = fed.or_else(|| self.join.as_ref().and_then(|join| join.token.clone()));
        let expected = match known {
            Some(token) => token.bearer(),
            None if self.join.is_some() => self.on_disk(|this| this.files.stored_token()).await.unwrap_or_default(),
            None => String::new(),
        };
        let hash = |text: &str| ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
        // Digests, so that the time of the comparison reveals nothing.
        !expected.is_empty() && hash(&expected).as_ref() == hash(text).as_ref()
    }

    async fn on_disk<T: Send + 'static>(self: &Arc<Self>, access: impl FnOnce(&Self) -> T + Send + 'static) -> T {
        let this = self.clone();
        file_access::access(move || access(&this)).await
    }

    async fn pause(&self, pause: Duration) {
        let _ = tokio::time::timeout(pause, self.wake.notified()).await;
    }

    /// Reads the certificate and the clock, publishes the state and returns the next step.
    fn look(&self) -> Step {
        let own = CertificateInfo::leaf(&self.certificate).ok();
        let situation = Situation {
            now: self.clock.unix().secs,
            certificate: own.as_ref().map(validity),
            can_join: self.can_join(),
        };
        let step = plan::next(&situation);
        self.standing
            .send_modify(|standing| standing.update(&situation, step, self.join.is_some()));
        step
    }

    fn can_join(&self) -> bool {
        let Some(join) = &self.join else { return false };
        join.token.is_some() || join.file.is_some() || self.fed.lock().is_some() || self.files.bootstrap.exists()
    }

    async fn attempt(
        self: &Arc<Self>,
        credential: Credential,
        attempts: &mut Attempts,
        discovery: Option<Duration>,
    ) -> Next {
        let outcome = self.request(credential).await;
        let count = attempts.count(&outcome);
        let name = self.submitted.lock().clone();
        self.standing
            .send_modify(|standing| standing.note(&outcome, name.as_deref()));
        match &outcome {
            JoinOutcome::Installed => {
                let is_due = matches!(self.on_disk(Self::look).await, Step::Request(_));
                if is_due && count > 1 {
                    let now = self.clock.unix().secs;
                    self.standing.send_modify(|standing| standing.note_ahead(now));
                }
                let until = self.standing().valid_until();
                tracing::info!(node = %self.node, until, "Client certificate obtained");
                *self.submitted.lock() = None;
            }
            JoinOutcome::Pending if count % PROGRESS_EVERY == 1 => {
                tracing::info!(
                    request = name.unwrap_or_default(),
                    "Waiting for the approval of the certificate request; approve it with kubectl certificate approve"
                );
            }
            JoinOutcome::Pending => {}
            JoinOutcome::Unknown(why)
                if let Some(discovery) = discovery
                    && count == 1 =>
            {
                let seconds = discovery.as_secs();
                tracing::warn!(
                    why,
                    seconds,
                    "Servers do not know the join token yet; trying again for this time"
                );
            }
            JoinOutcome::Denied(why)
            | JoinOutcome::Unknown(why)
            | JoinOutcome::Refused(why)
            | JoinOutcome::Unanswered(why) => {
                if count == 1 || count.is_power_of_two() {
                    tracing::warn!(why, count, "Failed to obtain the client certificate");
                }
            }
        }
        plan::after(&outcome, count, discovery)
    }

    fn check_name(&self, present: &CertificateInfo, flag: &str) -> Result<(), IdentityError> {
        let (origin, node) = (&self.certificate, &self.node);
        match present.identity.node_name() {
            Some(name) if name == *node => Ok(()),
            Some(name) => Err(IdentityError(format!(
                "--node-name: the client certificate in {origin} is of node {name}, not of {node}; set --node-name={name}, \
                 or let {flag} lead to the certificate of {node}"
            ))),
            None => Err(IdentityError(format!(
                "{flag}: the client certificate in {origin} is of user {:?}; the hub needs a node's (CN system:node:{node}, \
                 O system:nodes)",
                present.identity.common_name
            ))),
        }
    }

    /// Writes the kubeconfig with the present flags. On a disk that takes nothing the one of the last start stays: it
    /// leads to the same certificate.
    fn renew_kubeconfig(&self) -> Result<(), IdentityError> {
        match self.files.write_kubeconfig(&self.first_server()) {
            Err(error) if error.takes_nothing() && self.files.kubeconfig.exists() => {
                tracing::warn!(%error, "Failed to write kubeconfig; the one of the last start is in use");
                Ok(())
            }
            written => written.map_err(|error| IdentityError(format!("--root-dir: {error}"))),
        }
    }

    fn first_server(&self) -> String {
        self.servers
            .first()
            .map(Uri::to_string)
            .unwrap_or_default()
            .trim_end_matches('/')
            .to_owned()
    }
}

/// Number of equal outcomes without interruption.
#[derive(Default)]
struct Attempts {
    last: Option<std::mem::Discriminant<JoinOutcome>>,
    count: u32,
    /// Certificates since one was not due.
    installed: u32,
}

// === impl Attempts ===

impl Attempts {
    fn count(&mut self, outcome: &JoinOutcome) -> u32 {
        let kind = Some(std::mem::discriminant(outcome));
        self.count = match self.last == kind {
            true => self.count.saturating_add(1),
            false => 1,
        };
        self.last = kind;
        if *outcome == JoinOutcome::Installed {
            self.installed = self.installed.saturating_add(1);
            return self.installed;
        }
        self.count
    }

    /// Records that the certificate is not due.
    fn rest(&mut self) {
        self.installed = 0;
    }
}

fn validity(info: &CertificateInfo) -> Validity {
    Validity {
        not_before: info.not_before.secs,
        not_after: info.not_after.secs,
        seed: u32::from_str_radix(info.identity.sha256.get(..8).unwrap_or_default(), 16).unwrap_or(0),
    }
}

/// Outcome of a request without an answer; `flag` leads to the CA.
fn explain(error: &ClientError, flag: &str) -> JoinOutcome {
    let text = error.to_string();
    match error {
        ClientError::Tls { .. } if is_of_time(&text) => JoinOutcome::Unanswered(format!(
            "{text}; is this node's clock right? A wrong clock makes certificates look invalid"
        )),
        ClientError::Tls { .. } => JoinOutcome::Refused(format!("{flag}: {text}; is its CA that of this server?")),
        ClientError::Unusable { .. } => JoinOutcome::Refused(format!("--server-addr: {text}")),
        _ => JoinOutcome::Unanswered(text),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use yurt_runtime::kubeconfig::{self, Credential as Login};
    use yurt_runtime::tls::{POLL_INTERVAL, PemPair};
    use yurt_runtime::{Readiness, TaskGroup};
    use yurt_test_support::{TestDir, TestPki};

    use super::*;
    use crate::config::Flags;

    #[tokio::test(start_paused = true)]
    async fn certificate_that_the_kubelet_renewed_is_looked_at_once_it_is_in_use() {
        let (folder, pki, tasks) = (TestDir::new(), TestPki::new(), TaskGroup::new());
        let place = |pair: PemPair| folder.write("pair.pem", pair.cert_pem + &pair.key_pem);
        let (pair, ca) = (place(pki.expired_node("n1")), PemSource::inline("CA", pki.ca_pem()));
        let kubeconfig = folder.path().join("kubelet.conf");
        let server = "https://127.0.0.1:1";
        kubeconfig::write_client(&kubeconfig, server, &ca, Login::File("n1", &pair)).unwrap();
        let flags = [
            "yurthub".to_owned(),
            "--node-name=n1".to_owned(),
            format!("--server-addr={server}"),
            format!("--kubeconfig={}", kubeconfig.display()),
        ];
        let config = Flags::try_parse_from(flags).unwrap().check().unwrap();
        let upstreams = Upstreams::new(&config, &tasks).unwrap();
        let keeper = CertificateKeeper::of_kubelet(&config, &upstreams, Clock::system()).unwrap();
        let (readiness, failures) = (Readiness::new(), Failures::new(Clock::system()));
        let keeping = Arc::new(keeper).keep(readiness.check("certificate"), failures.clone(), tasks.token());
        tasks.spawn("keep", keeping);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(failures.why(CERTIFICATE).unwrap().contains("expired"));
        place(pki.node("n1"));
        tokio::time::sleep(POLL_INTERVAL + Duration::from_secs(1)).await;
        assert_eq!((readiness.is_ready(), failures.why(CERTIFICATE)), (true, None));
    }

    #[test]
    fn certificate_outside_its_validity_may_be_the_clocks_fault_and_is_waited_for() {
        let tls = |cause: &str| ClientError::Tls {
            server: "https://cloud".to_owned(),
            cause: cause.to_owned(),
            handshake: true,
        };
        let of_time = explain(
            &tls("invalid peer certificate: certificate not valid yet"),
            "--join-token",
        );
        assert!(matches!(of_time, JoinOutcome::Unanswered(why) if why.contains("clock")));
        let of_ca = explain(&tls("invalid peer certificate: UnknownIssuer"), "--bootstrap-file");
        assert!(matches!(of_ca, JoinOutcome::Refused(why) if why.starts_with("--bootstrap-file")));
    }
}
