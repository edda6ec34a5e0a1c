//! Files of the node's certificates after a kill and after a power cut at each of their writes: the next start has the
//! acknowledged certificate with its key, and resumes the requests that the cloud knows.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser as _;
use tokio_util::sync::CancellationToken;
use yurt_hub_client::config::{Config, Flags};
use yurt_hub_client::failures::Failures;
use yurt_hub_client::identity::CertificateKeeper;
use yurt_hub_client::identity::serving::ServingCertificate;
use yurt_hub_client::upstream::Upstreams;
use yurt_runtime::tls::{CertificateInfo, PemIdentity, PemSource, install_crypto_provider};
use yurt_runtime::{Clock, Readiness, TaskGroup};
use yurt_test_support::fault_fs::power::{Change, Followed, Loss, Tree};
use yurt_test_support::fault_fs::{FaultFs, Health};
use yurt_test_support::{PATIENCE, TestDir, eventually};

use super::cloud::Cloud;
use super::harness::{NODE, NODE_USER};
use super::joining::{ALMOST_OVER, DAY, cloud_with_token, pending, token_flags};

const LOSSES: [Loss; 4] = [Loss::Killed, Loss::All, Loss::Bytes, Loss::Some];
/// Pairs of certificate and key in use, and the keys of pending requests.
const CLIENT: [&str; 2] = ["pki/yurthub-current.pem", "pki/yurthub-pending.key"];
const SERVING: [&str; 2] = ["pki/yurthub-pods-current.pem", "pki/yurthub-pods-pending.key"];

/// Acknowledgements, in the order of the life below.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fact {
    /// The cloud has the first request.
    Requested,
    /// The first certificate is in use.
    Joined,
    /// The cloud has the request of the renewal.
    RenewalRequested,
    /// The second certificate is in use.
    Renewed,
    /// The cloud has the request of the certificate for pods.
    ServingRequested,
    /// That certificate is in use.
    Serving,
}

const FACTS: [Fact; 6] = [
    Fact::Requested,
    Fact::Joined,
    Fact::RenewalRequested,
    Fact::Renewed,
    Fact::ServingRequested,
    Fact::Serving,
];

/// A node whose files are in one folder; each call of a method is a start of its hub.
struct Node<'a> {
    cloud: &'a Cloud,
    folder: &'a TestDir,
    config: Config,
}

// === impl Node ===

impl<'a> Node<'a> {
    fn new(cloud: &'a Cloud, folder: &'a TestDir) -> Self {
        install_crypto_provider();
        let all = ["yurthub".to_owned()].into_iter().chain(token_flags(cloud, folder));
        Self {
            cloud,
            folder,
            config: Flags::try_parse_from(all).unwrap().check().unwrap(),
        }
    }

    fn root(&self) -> &Path {
        &self.config.root_dir
    }

    fn keeper(&self) -> Result<Arc<CertificateKeeper>, String> {
        let own = CertificateKeeper::own(&self.config, Clock::system());
        Ok(Arc::new(
            own.map_err(|error| error.to_string())?.expect("the hub owns it"),
        ))
    }

    async fn join(&self) -> Result<(), String> {
        let keeper = self.keeper()?;
        let joined = tokio::time::timeout(PATIENCE, keeper.join()).await;
        joined
            .map_err(|_| "the join must end".to_owned())?
            .map_err(|error| error.to_string())
    }

    /// Renews the certificate until `end`.
    async fn renew<T>(&self, end: impl Future<Output = T>) -> Result<T, String> {
        let (keeper, stop) = (self.keeper()?, CancellationToken::new());
        let (readiness, failures) = (Readiness::new(), Failures::new(Clock::system()));
        let keeping = keeper.keep(readiness.check("certificate"), failures, stop.clone());
        Ok(until(keeping, end).await)
    }

    /// Keeps the certificate for pods until `end`.
    async fn serve<T>(&self, end: impl Future<Output = T>) -> Result<T, String> {
        let tasks = TaskGroup::new();
        let keeper = self.serving(&tasks)?;
        let ended = until(keeper.keep(CancellationToken::new()), end).await;
        let _ = tasks.shutdown(Duration::ZERO).await;
        Ok(ended)
    }

    fn serving(&self, tasks: &TaskGroup) -> Result<ServingCertificate, String> {
        let upstreams = Upstreams::new(&self.config, tasks).map_err(|error| error.to_string())?;
        Ok(ServingCertificate {
            node: NODE.to_owned(),
            address: "169.254.2.1".to_owned(),
            cluster: Arc::new(|| Some(vec!["10.96.0.1".to_owned()])),
            root: self.root().to_owned(),
            cloud: upstreams.cloud.clone(),
            clock: Clock::system(),
            failures: Failures::new(Clock::system()),
        })
    }

    /// The certificate in use, which fits its key.
    fn certificate(&self, [pair, _]: [&str; 2]) -> Result<CertificateInfo, String> {
        let pair = self.root().join(pair);
        PemIdentity::one_file(&pair).load().map_err(|error| error.to_string())?;
        let info = CertificateInfo::leaf(&PemSource::from(pair)).map_err(|error| error.to_string())?;
        match info.identity.common_name == NODE_USER {
            true => Ok(info),
            false => Err(format!("certificate of {}", info.identity.common_name)),
        }
    }

    /// Waits until a certificate that is not due for renewal is installed.
    async fn installed(&self, files: [&str; 2]) {
        let is_new = |info: &CertificateInfo| info.not_after.secs > Clock::system().unix().secs + 3600;
        eventually("the certificate must be installed", async || {
            self.certificate(files).ok().filter(is_new).map(drop)
        })
        .await;
    }

    /// Like [`Self::installed`], and the key of the request is deleted.
    async fn settled(&self, files: [&str; 2]) {
        self.installed(files).await;
        eventually("the key must be deleted", async || {
            (!self.root().join(files[1]).exists()).then_some(())
        })
        .await;
    }

    fn approve(&self, name: &str, validity: Duration) {
        self.cloud
            .requests()
            .approve(self.cloud.pki(), name, NODE_USER, validity);
    }

    /// Joins, renews and gets the certificate for pods, with a restart after each request. Returns the keys of both
    /// client certificates.
    async fn live(&self, disk: &FaultFs) -> Result<[Vec<u8>; 2], String> {
        let note = |fact: Fact| disk.note(fact as usize);
        let name = tokio::select! {
            joined = self.join() => return Err(format!("nobody approves: {joined:?}")),
            name = pending(self.cloud) => name,
        };
        note(Fact::Requested);
        self.approve(&name, ALMOST_OVER);
        self.join().await?;
        note(Fact::Joined);
        let first = self.certificate(CLIENT)?.public_key;
        let name = self.renew(pending(self.cloud)).await?;
        note(Fact::RenewalRequested);
        self.approve(&name, DAY);
        self.renew(self.settled(CLIENT)).await?;
        note(Fact::Renewed);
        let name = self.serve(pending(self.cloud)).await?;
        note(Fact::ServingRequested);
        self.approve(&name, DAY);
        self.serve(self.settled(SERVING)).await?;
        note(Fact::Serving);
        Ok([first, self.certificate(CLIENT)?.public_key])
    }

    /// Starts with this content of the disk, and does what is left of the life.
    async fn check(&self, image: &Tree, last: Option<Fact>, keys: &[Vec<u8>; 2]) -> Result<(), String> {
        let is = |fact: Fact| last >= Some(fact);
        image.write_to(self.folder.path()).map_err(|error| error.to_string())?;
        let count = || self.cloud.requests().all().len();
        let has_certificate = self.keeper()?.has_certificate();
        if is(Fact::Joined) && !has_certificate {
            return Err("the certificate is lost".to_owned());
        }
        let before = count();
        if !has_certificate {
            self.join().await?;
        }
        if is(Fact::Requested) && count() > before {
            return Err("a second request to join".to_owned());
        }
        let own = self.certificate(CLIENT)?.public_key;
        if is(Fact::Requested) && !keys.contains(&own) || is(Fact::Renewed) && own != keys[1] {
            return Err("another certificate".to_owned());
        }
        let before = count();
        self.renew(self.installed(CLIENT)).await?;
        if is(Fact::RenewalRequested) && count() > before {
            return Err("a second request of the renewal".to_owned());
        }
        if is(Fact::Serving) {
            self.certificate(SERVING)?;
        }
        let before = count();
        self.serve(self.installed(SERVING)).await?;
        if is(Fact::ServingRequested) && count() > before {
            return Err("a second request of the certificate for pods".to_owned());
        }
        Ok(())
    }
}

/// Runs `keeping` until `end`, and drops it as a kill does.
async fn until<T>(keeping: impl Future<Output = ()>, end: impl Future<Output = T>) -> T {
    tokio::select! {
        () = keeping => panic!("nothing stops it"),
        end = end => end,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_or_power_cut_at_any_write_costs_neither_a_certificate_nor_a_second_request() {
    let (cloud, folder, behind) = (cloud_with_token().await, TestDir::new(), TestDir::new());
    let Some(disk) = FaultFs::mount_or_skip(folder.path(), behind.path()) else {
        return;
    };
    let node = Node::new(&cloud, &folder);
    disk.record();
    std::fs::create_dir(node.root()).unwrap();
    let before = disk.stop_recording();
    disk.record();
    let keys = node.live(&disk).await.unwrap();
    let changes = disk.stop_recording();
    drop(disk);
    cloud.requests().approve_all(DAY);

    let mut random = fastrand::Rng::with_seed(1);
    let (mut followed, mut last, mut images) = (Followed::after(&before), None, 0);
    let mut known: Vec<Tree> = Vec::new();
    for (point, change) in changes.iter().enumerate() {
        followed.apply(change);
        if let Change::Note(fact) = change {
            last = Some(FACTS[*fact]);
            known.clear();
        }
        for loss in LOSSES {
            let image = followed.image(loss, || random.bool());
            if known.contains(&image) {
                continue;
            }
            images += 1;
            // Each has a folder of its own: threads of the last start may still write.
            let folder = TestDir::new();
            let found = Node::new(&cloud, &folder).check(&image, last, &keys).await;
            found.unwrap_or_else(|why| panic!("write point {point}, {loss:?}, after {last:?}, {change:?}: {why}"));
            known.push(image);
        }
    }
    eprintln!("{images} contents of the disk, {} changes", changes.len());
    assert_eq!(last, Some(Fact::Serving));
    assert!(images > 2 * FACTS.len(), "{images}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn disk_that_hangs_stops_the_certificates_alone() {
    let (cloud, folder, behind) = (cloud_with_token().await, TestDir::new(), TestDir::new());
    let Some(disk) = FaultFs::mount_or_skip(folder.path(), behind.path()) else {
        return;
    };
    let (node, tasks) = (Node::new(&cloud, &folder), TaskGroup::new());
    std::fs::create_dir(node.root()).unwrap();
    cloud.requests().approve_all(DAY);
    node.join().await.unwrap();
    let (client, serving) = (node.keeper().unwrap(), node.serving(&tasks).unwrap());
    let (readiness, failures) = (Readiness::new(), Failures::new(Clock::system()));
    disk.set(Health::Stalls);
    tasks.spawn(
        "client",
        client.keep(readiness.check("certificate"), failures, tasks.token()),
    );
    tasks.spawn("serving", serving.keep(tasks.token()));
    // Runs after both on the only worker thread, which has the runtime's timers, too.
    let (running, ran) = std::sync::mpsc::channel();
    tasks.spawn("other", async move { running.send(()).unwrap() });
    let ran = ran.recv_timeout(PATIENCE / 4);
    disk.set(Health::Works);
    assert!(ran.is_ok(), "the disk must not hold a thread of the runtime");
    tasks.shutdown(PATIENCE).await.unwrap();
}
