//! Certificate of the HTTPS port for pods, from the cluster's CA: pods trust no other one.
//!
//! Until it is issued, the port has a certificate of the hub's own CA, and the filters lead no pods to it. The request
//! is OpenYurt's: signer `kubernetes.io/kubelet-serving`, the node's name, server usages. Its names are the address for
//! pods and those of Service `default/kubernetes`, whose traffic filter `forwardkubesvctraffic` leads to the hub.
//!
//! One file holds the pair in use; the port reads it again when it changes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use yurt_runtime::pki::{RequestKey, write_secret};
use yurt_runtime::tls::{CertificateInfo, PemPair, PemSource};
use yurt_runtime::{Clock, files as file_access};

use super::csr::{self, CsrState};
use super::files::{FileError, Files};
use super::plan::{self, JoinOutcome, Next, Situation, Step};
use super::{Attempts, LOOK_EVERY, Profile, REQUEST_TIMEOUT, validity};
use crate::failures::Failures;
use crate::filter::PodTrust;
use crate::upstream::{Cloud, describe_answer};

/// Pair in use, below the root directory.
pub(crate) const PAIR: &str = "pki/yurthub-pods-current.pem";
/// Serving certificate and key of the HTTPS port from the administrator, under the root directory. OpenYurt's hub keeps
/// the one that it requested there.
pub(crate) const SECURE_PEM: &str = "pki/yurthub-server-current.pem";
/// Key of a pending request.
const PENDING: &str = "pki/yurthub-pods-pending.key";
/// Time for which a new node waits for its certificate: yurt-manager has approved it by then.
const FIRST_WAIT: Duration = Duration::from_secs(60);
/// Time between two looks for the addresses of Service `default/kubernetes`.
const LOOK_FOR_ADDRESSES: Duration = Duration::from_secs(2);
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

/// Makes sure that there is a pair for the port: the cluster's if it is held, else that of OpenYurt's hub, else `own`.
/// Returns its file. The cluster's stays if it lacks a name of today: pods trust it for the others, and `own` for none.
///
/// # Errors
/// The file cannot be written, or that of OpenYurt's hub cannot be read.
pub(crate) fn prepare(root: &Path, node: &str, own: &PemPair) -> std::io::Result<PathBuf> {
    let files = files(root);
    if holds_clusters(&files, node) {
        return Ok(files.pair);
    }
    let content = match is_of_openyurt(root, node) {
        true => std::fs::read_to_string(root.join(SECURE_PEM))?,
        false => format!("{}{}", own.cert_pem, own.key_pem),
    };
    write_secret(&files.pair, content)?;
    Ok(files.pair)
}

/// True if the pair in the administrator's place is one that the cluster issued to this node: OpenYurt's hub, which ran
/// here before, requested it as this one does. An administrator's certificate has another subject.
pub(crate) fn is_of_openyurt(root: &Path, node: &str) -> bool {
    let placed = Files {
        pair: root.join(SECURE_PEM),
        ..files(root)
    };
    holds_clusters(&placed, node)
}

fn holds_clusters(files: &Files, node: &str) -> bool {
    matches!(files.certificate(), Ok(Some(held)) if is_of_cluster(&held, node))
}

/// Trust of pods in the port at a start, before [`prepare`]. Only a node without any pair is new.
pub(crate) fn trust(root: &Path, node: &str) -> PodTrust {
    let files = files(root);
    match holds_clusters(&files, node) || is_of_openyurt(root, node) {
        true => PodTrust::Given,
        false if files.pair.exists() => PodTrust::Missing,
        false => PodTrust::Awaited,
    }
}

/// Gives `trust` once the port serves a certificate of the cluster. `reloads` counts the changes of the port's files.
pub(crate) async fn give(
    trust: watch::Sender<PodTrust>,
    root: PathBuf,
    node: String,
    mut reloads: watch::Receiver<u64>,
) {
    let is_given = async {
        while reloads.changed().await.is_ok() {
            let (files, node) = (files(&root), node.clone());
            if file_access::access(move || holds_clusters(&files, &node)).await {
                return true;
            }
        }
        false
    };
    let is_late = async {
        tokio::time::sleep(FIRST_WAIT).await;
        trust.send_replace(PodTrust::Missing);
        std::future::pending::<bool>().await
    };
    let is_given = tokio::select! {
        is_given = is_given => is_given,
        is_given = is_late => is_given,
    };
    if is_given {
        tracing::info!("Pods trust the hub's certificate; the filters lead them to the hub");
        trust.send_replace(PodTrust::Given);
    }
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
            let (step, is_urgent) = file_access::access(move || this.step()).await;
            let pause = match (step, (self.cluster)()) {
                // No attempt failed: a pause that grows would use up the minute of a new node.
                (Step::Request(_), None) => {
                    let why = "the addresses of Service default/kubernetes are not known yet";
                    self.failures.unanswered(SERVING, why);
                    LOOK_FOR_ADDRESSES
                }
                (Step::Request(_), Some(cluster)) => {
                    let outcome = self.request(cluster, is_urgent).await;
                    self.tell(&outcome);
                    match plan::after(&outcome, attempts.count(&outcome), None) {
                        Next::Continue => Duration::ZERO,
                        Next::Pause(pause) => pause,
                        Next::Fail(_) => LOOK_EVERY,
                    }
                }
                (Step::Rest { .. }, _) => {
                    attempts.rest();
                    self.failures.works(SERVING);
                    LOOK_EVERY
                }
                (Step::ClockBehind | Step::Stuck, _) => LOOK_EVERY,
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Decides the next step. True if pods cannot trust the port without the next certificate, now or soon.
    fn step(&self) -> (Step, bool) {
        let held = CertificateInfo::leaf(&PemSource::from(self.root.join(PAIR))).ok();
        // One that lacks a name of today is as good as none; while the addresses are unknown, it stays.
        let wanted = (self.cluster)().unwrap_or_default();
        let has_names = |held: &CertificateInfo| {
            let mut wanted = wanted.iter().chain([&self.address]);
            wanted.all(|name| is_for(held, name))
        };
        let held = held.filter(|held| is_of_cluster(held, &self.node) && has_names(held));
        let (now, certificate) = (self.clock.unix().secs, held.as_ref().map(validity));
        let step = plan::next(&Situation {
            now,
            certificate,
            can_join: true,
        });
        (step, certificate.is_none_or(|held| held.is_overdue(now)))
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
            // The request has been named already.
            JoinOutcome::Pending => {}
        }
    }

    /// Shows the request that waits, with what ends the wait.
    fn tell_pending(&self, name: &str, is_approved: bool, is_urgent: bool) {
        let fix = match is_approved {
            true => "it is approved, and the signer kubernetes.io/kubelet-serving has not issued it yet".to_owned(),
            false => format!("run `kubectl certificate approve {name}`, unless yurt-manager approves it"),
        };
        let why = "the port for pods has no valid certificate of the cluster, or one that ends soon";
        let why = format!("{why}, and pods do not accept another one; the certificate request {name} waits: {fix}");
        self.failures.tell(SERVING, is_urgent.then_some(why));
    }

    /// Looks at the request, creates it if there is none, and installs what was issued.
    async fn request(&self, cluster: Vec<String>, is_urgent: bool) -> JoinOutcome {
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
            Ok(state @ (CsrState::Pending | CsrState::Approved)) => {
                self.tell_pending(&name, matches!(state, CsrState::Approved), is_urgent);
                JoinOutcome::Pending
            }
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
                    "Requested a serving certificate for pods; approve it with kubectl certificate approve"
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
    use yurt_runtime::TaskGroup;
    use yurt_runtime::tls::{PemIdentity, ReloadingServerTls, ServerTls};
    use yurt_test_support::{TestDir, TestPki};

    use super::*;

    fn install_clusters(root: &Path, pki: &TestPki) -> String {
        let (files, key, user) = (files(root), RequestKey::generate().unwrap(), "system:node:n1");
        let request = key.request(user, &["system:nodes"], &["169.254.2.1"]).unwrap();
        let issued = pki.sign(&request, user, &["system:nodes"], Duration::from_secs(3600));
        files.install(&issued, &key, user).unwrap();
        issued
    }

    #[tokio::test(start_paused = true)]
    async fn trust_is_given_once_the_port_serves_the_clusters_certificate_and_stays() {
        let (folder, pki) = (TestDir::new(), TestPki::new());
        let (root, own) = (folder.path(), pki.server());
        std::fs::create_dir_all(root.join("pki")).unwrap();
        assert_eq!(trust(root, "n1"), PodTrust::Awaited);
        let identity = PemIdentity::one_file(prepare(root, "n1", &own).unwrap());
        let client_ca = None;
        let tls = ReloadingServerTls::new(ServerTls { identity, client_ca }).unwrap();
        let (giver, mut seen) = watch::channel(trust(root, "n1"));
        assert_eq!(*seen.borrow(), PodTrust::Missing, "a restart does not wait again");
        giver.send_replace(PodTrust::Awaited);
        seen.mark_unchanged();
        let began = tokio::time::Instant::now();
        let tasks = TaskGroup::new();
        tasks.spawn("give", give(giver, root.to_owned(), "n1".to_owned(), tls.changes()));
        seen.changed().await.unwrap();
        assert_eq!(
            (*seen.borrow_and_update(), began.elapsed()),
            (PodTrust::Missing, FIRST_WAIT)
        );
        // The hub's own certificate is renewed.
        let renewed = pki.server();
        write_secret(&root.join(PAIR), format!("{}{}", renewed.cert_pem, renewed.key_pem)).unwrap();
        assert!(tls.poll_files().unwrap());
        tokio::task::yield_now().await;
        install_clusters(root, &pki);
        assert_eq!(*seen.borrow(), PodTrust::Missing, "the port does not serve it yet");
        assert!(tls.poll_files().unwrap());
        seen.changed().await.unwrap();
        assert_eq!((*seen.borrow(), trust(root, "n1")), (PodTrust::Given, PodTrust::Given));
    }

    #[tokio::test(start_paused = true)]
    async fn unknown_addresses_use_up_no_attempt() {
        let (folder, tasks) = (TestDir::new(), TaskGroup::new());
        let looks = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let noted = looks.clone();
        let keeper = ServingCertificate {
            node: "n1".to_owned(),
            address: "169.254.2.1".to_owned(),
            cluster: Arc::new(move || {
                noted.lock().push(tokio::time::Instant::now());
                None
            }),
            root: folder.path().to_owned(),
            cloud: Arc::new(Cloud::for_test("http://127.0.0.1:1")),
            clock: Clock::system(),
            failures: Failures::new(Clock::system()),
        };
        tasks.spawn("keep", keeper.keep(tasks.token()));
        tokio::time::sleep(FIRST_WAIT).await;
        let mut looks = looks.lock().clone();
        looks.push(tokio::time::Instant::now());
        let longest = looks.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
        assert!(longest <= Duration::from_secs(5), "{longest:?}");
    }

    #[test]
    fn own_certificate_is_replaced_at_each_start_and_the_clusters_is_kept() {
        let (folder, pki) = (TestDir::new(), TestPki::new());
        let content = |own: &PemPair| std::fs::read_to_string(prepare(folder.path(), "n1", own).unwrap()).unwrap();
        std::fs::create_dir_all(folder.path().join("pki")).unwrap();
        let (first, second) = (pki.server(), pki.server());
        assert!(content(&first).starts_with(&first.cert_pem));
        assert!(content(&second).starts_with(&second.cert_pem));
        let issued = install_clusters(folder.path(), &pki);
        assert!(content(&first).starts_with(&issued));
        std::fs::write(folder.path().join(PAIR), "damaged").unwrap();
        assert!(content(&first).starts_with(&first.cert_pem));
    }

    #[test]
    fn certificate_that_openyurt_obtained_is_taken_over_until_it_is_renewed() {
        let (folder, pki) = (TestDir::new(), TestPki::new());
        std::fs::create_dir_all(folder.path().join("pki")).unwrap();
        let (own, former) = (pki.server(), pki.node("n1"));
        let content = |node: &str| std::fs::read_to_string(prepare(folder.path(), node, &own).unwrap()).unwrap();
        let place = |pair: &PemPair| {
            let text = format!("{}{}", pair.cert_pem, pair.key_pem);
            std::fs::write(folder.path().join("pki/yurthub-server-current.pem"), text).unwrap();
        };
        place(&former);
        assert!(content("n1").starts_with(&former.cert_pem));
        place(&pki.node("n1"));
        assert!(
            content("n1").starts_with(&former.cert_pem),
            "what is in use may be a renewal"
        );
        place(&former);
        assert!(content("n2").starts_with(&own.cert_pem), "it is of another node");
    }
}
