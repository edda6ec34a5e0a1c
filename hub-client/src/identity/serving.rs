//! Certificate of the HTTPS port for pods, from the cluster's CA: pods trust no other one.
//!
//! Until it is issued, the port has a certificate of the hub's own CA. The request is
//! OpenYurt's: signer `kubernetes.io/kubelet-serving`, the node's name, server usages. Its names are the address for pods
//! and those of Service `default/kubernetes`, whose traffic filter `forwardkubesvctraffic` leads to the hub.
//!
//! One file holds the pair in use; the port reads it again when it changes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use tokio_util::sync::CancellationToken;
use yurt_runtime::pki::{RequestKey, write_secret};
use yurt_runtime::tls::{CertificateInfo, PemPair, PemSource};
use yurt_runtime::{Clock, files as file_access};

use super::csr::{self, CsrState};
use super::files::{FileError, Files};
use super::plan::{self, JoinOutcome, Next, Situation, Step};
use super::{Attempts, LOOK_EVERY, Profile, REQUEST_TIMEOUT, validity};
use crate::failures::Failures;
use crate::upstream::{Cloud, describe_answer};

/// Pair in use, below the root directory.
pub(crate) const PAIR: &str = "pki/yurthub-pods-current.pem";
/// Key of a pending request.
const PENDING: &str = "pki/yurthub-pods-pending.key";
/// Name of this part in the hub's failures.
const SERVING: &str = "serving certificate for pods";
/// Names of Service `default/kubernetes`.
const KUBERNETES: [&str; 4] = [
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];

/// Returns the addresses of Service `default/kubernetes`; `None` while they are unknown.
pub type ClusterAddresses = Arc<dyn Fn() -> Option<Vec<String>> + Send + Sync>;

/// Keeps the certificate for pods valid.
pub struct ServingCertificate {
    /// Name of the Node.
    pub node: String,
    /// Address of the port for pods.
    pub address: String,
    /// Addresses of Service `default/kubernetes`.
    pub cluster: ClusterAddresses,
    /// The root directory.
    pub root: PathBuf,
    /// The cloud.
    pub cloud: Arc<Cloud>,
    /// Clock of the validity.
    pub clock: Clock,
    /// Failures of the hub.
    pub failures: Failures,
}

/// Makes sure that there is a pair for the port: the cluster's if it is held, else `own`. Returns its file. The cluster's
/// stays if it lacks a name of today: pods trust it for the others, and `own` for none.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn prepare(root: &Path, node: &str, own: &PemPair) -> std::io::Result<PathBuf> {
    let files = files(root);
    if !matches!(files.certificate(), Ok(Some(held)) if is_of_cluster(&held, node)) {
        write_secret(&files.pair, format!("{}{}", own.cert_pem, own.key_pem))?;
    }
    Ok(files.pair)
}

fn files(root: &Path) -> Files {
    Files {
        pair: root.join(PAIR),
        pending: root.join(PENDING),
        ..Files::new(root)
    }
}

/// True for a certificate that the hub's own CA did not issue.
fn is_of_cluster(held: &CertificateInfo, node: &str) -> bool {
    held.identity.common_name == format!("system:node:{node}")
}

/// True if the certificate is valid for this name or address.
fn is_for(held: &CertificateInfo, name: &str) -> bool {
    held.names.iter().any(|held| held == name)
}

async fn install(files: Files, issued: String, key: RequestKey, user: String) -> Result<(), FileError> {
    let installing = file_access::access(move || files.install(&issued, &key, &user).map(drop));
    installing.await
}

// === impl ServingCertificate ===

impl ServingCertificate {
    /// Requests the certificate and renews it, until `stop`.
    pub async fn keep(self, stop: CancellationToken) {
        stop.run_until_cancelled(Arc::new(self).keep_valid()).await;
    }

    async fn keep_valid(self: Arc<Self>) {
        let mut attempts = Attempts::default();
        loop {
            let this = self.clone();
            let pause = match file_access::access(move || this.step()).await {
                Step::Request(_) => {
                    let outcome = self.request().await;
                    self.tell(&outcome);
                    match plan::after(&outcome, attempts.count(&outcome), None) {
                        Next::Continue => Duration::ZERO,
                        Next::Pause(pause) => pause,
                        Next::Fail(_) => LOOK_EVERY,
                    }
                }
                Step::Rest { .. } => {
                    attempts.rest();
                    LOOK_EVERY
                }
                Step::ClockBehind | Step::Stuck => LOOK_EVERY,
            };
            tokio::time::sleep(pause).await;
        }
    }

    fn step(&self) -> Step {
        let held = CertificateInfo::leaf(&PemSource::from(self.root.join(PAIR))).ok();
        // One that lacks a name of today is as good as none; while the addresses are unknown, it stays.
        let wanted = (self.cluster)().unwrap_or_default();
        let has_names = |held: &CertificateInfo| {
            let mut wanted = wanted.iter().chain([&self.address]);
            wanted.all(|name| is_for(held, name))
        };
        let held = held.filter(|held| is_of_cluster(held, &self.node) && has_names(held));
        plan::next(&Situation {
            now: self.clock.unix().secs,
            certificate: held.as_ref().map(validity),
            can_join: true,
        })
    }

    fn tell(&self, outcome: &JoinOutcome) {
        match outcome {
            JoinOutcome::Installed => {
                tracing::info!(node = %self.node, "Serving certificate for pods obtained");
                self.failures.works(SERVING);
            }
            JoinOutcome::Denied(why) | JoinOutcome::Unknown(why) | JoinOutcome::Refused(why) => {
                self.failures.refused(SERVING, why)
            }
            JoinOutcome::Unanswered(why) => self.failures.unanswered(SERVING, why),
            JoinOutcome::Pending => self.failures.works(SERVING),
        }
    }

    /// Looks at the request, creates it if there is none, and installs what was issued.
    async fn request(&self) -> JoinOutcome {
        let Some(cluster) = (self.cluster)() else {
            return JoinOutcome::Unanswered("the addresses of Service default/kubernetes are not known yet".to_owned());
        };
        let names: Vec<String> = [self.address.clone()]
            .into_iter()
            .chain(cluster)
            .chain(KUBERNETES.map(str::to_owned))
            .collect();
        let profile = Profile::serving(&self.node, &names);
        let files = files(&self.root);
        let own = files.clone();
        let key = match file_access::access(move || own.pending_key()).await {
            Ok(key) => key,
            Err(error) => return JoinOutcome::Unanswered(format!("--root-dir: {error}")),
        };
        let name = profile.name(&key.public_key());
        let pem = match key.request(&profile.common_name(), &profile.organizations, &names) {
            Ok(pem) => pem,
            Err(error) => return JoinOutcome::Refused(format!("names {names:?}: {error}")),
        };
        match self.state_of(&profile, &name, &pem).await {
            Ok(CsrState::Pending | CsrState::Approved) => JoinOutcome::Pending,
            Ok(CsrState::Denied(why) | CsrState::Failed(why)) => JoinOutcome::Denied(format!(
                "the certificate request {name} was refused ({why}); to request again, run `kubectl delete csr {name}`"
            )),
            Ok(CsrState::Issued(issued)) => match install(files, issued, key, profile.common_name()).await {
                Ok(()) => JoinOutcome::Installed,
                Err(error @ FileError::Foreign(_)) => JoinOutcome::Denied(format!("{error}; check {}", profile.signer)),
                Err(error) => JoinOutcome::Unanswered(format!("--root-dir: {error}")),
            },
            Err(outcome) => outcome,
        }
    }

    async fn state_of(&self, profile: &Profile, name: &str, pem: &str) -> Result<CsrState, JoinOutcome> {
        let client = self.cloud.server().beats.clone();
        let ask = async |method, path: &str, body: Option<&serde_json::Value>| {
            let answer = client.request_json(method, path, body, REQUEST_TIMEOUT).await;
            answer.map_err(|error| JoinOutcome::Unanswered(error.to_string()))
        };
        let (mut status, _, mut body) = ask(Method::GET, &format!("{}/{name}", csr::PATH), None).await?;
        if status == StatusCode::NOT_FOUND {
            let object = profile.object(name, pem);
            (status, _, body) = ask(Method::POST, csr::PATH, Some(&object)).await?;
            if status.is_success() {
                tracing::info!(
                    request = name,
                    "Requested a serving certificate for pods; `kubectl certificate approve {name}` approves it"
                );
            }
        }
        match status {
            StatusCode::OK | StatusCode::CREATED => CsrState::read(&body).map_err(JoinOutcome::Unanswered),
            StatusCode::FORBIDDEN | StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY => {
                Err(JoinOutcome::Refused(describe_answer(status, &body)))
            }
            other => Err(JoinOutcome::Unanswered(describe_answer(other, &body))),
        }
    }
}

#[cfg(test)]
mod tests {
    use yurt_test_support::{TestDir, TestPki};

    use super::*;

    #[test]
    fn own_certificate_is_replaced_at_each_start_and_the_clusters_is_kept() {
        let (folder, pki) = (TestDir::new(), TestPki::new());
        let content = |own: &PemPair| std::fs::read_to_string(prepare(folder.path(), "n1", own).unwrap()).unwrap();
        std::fs::create_dir_all(folder.path().join("pki")).unwrap();
        let (first, second) = (pki.server(), pki.server());
        assert!(content(&first).starts_with(&first.cert_pem));
        assert!(content(&second).starts_with(&second.cert_pem));
        let (files, key, user) = (files(folder.path()), RequestKey::generate().unwrap(), "system:node:n1");
        let request = key.request(user, &["system:nodes"], &["169.254.2.1"]).unwrap();
        let issued = pki.sign(&request, user, &["system:nodes"], Duration::from_secs(3600));
        files.install(&issued, &key, user).unwrap();
        assert!(content(&first).starts_with(&issued));
        std::fs::write(&files.pair, "damaged").unwrap();
        assert!(content(&first).starts_with(&first.cert_pem));
    }
}
