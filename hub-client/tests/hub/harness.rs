//! Starts a hub in this process, in directories of its own.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Parser as _;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::watch;
use yurt_hub_client::config::Flags;
use yurt_hub_client::{Hub, StartError};
use yurt_runtime::tasks::StillRunning;
use yurt_runtime::tls::install_crypto_provider;
use yurt_test_support::{PATIENCE, TestDir, eventually, free_port};

use super::client::Client;
use super::cloud::Cloud;

/// The node of every test.
pub(crate) const NODE: &str = "n1";
/// Its user in the cloud.
pub(crate) const NODE_USER: &str = "system:node:n1";
/// Address of every hub for its pods, although the tests connect to 127.0.0.1; not with flag `--bind-proxy-address`.
pub(crate) const HUB_OF_PODS: &str = "192.0.2.1";
/// Maximum attempts with new ports when another process took one.
const TRIES: usize = 20;

/// A running hub, without a coordinator unless the flags configure one.
pub(crate) struct TestHub {
    hub: Option<Hub>,
    folder: Arc<TestDir>,
    flags: Vec<String>,
    ports: Ports,
}

/// Ports of one start.
#[derive(Clone, Copy)]
pub(crate) struct Ports {
    admin: u16,
    proxy: u16,
    secure: u16,
}

// === impl TestHub ===

impl TestHub {
    /// Starts a hub and waits until its replicas are complete.
    pub(crate) async fn start(cloud: &Cloud, flags: &[&str]) -> Self {
        let hub = Self::start_at_once(cloud, flags).await;
        hub.wait_until_complete().await;
        hub
    }

    /// Starts a hub; it may have no data yet.
    pub(crate) async fn start_at_once(cloud: &Cloud, flags: &[&str]) -> Self {
        Self::start_node(cloud, NODE, &cloud.url(), flags).await
    }

    /// Starts the hub of `node`, which reaches the cloud at `server`.
    pub(crate) async fn start_node(cloud: &Cloud, node: &str, server: &str, flags: &[&str]) -> Self {
        install_crypto_provider();
        let folder = TestDir::new();
        let own = flags_of(cloud, &folder, node, server);
        let is_said = flags.iter().any(|flag| flag.starts_with("--node-identity-uids="));
        let uids = (!is_said).then(|| format!("--node-identity-uids={}", own_uid()));
        let flags: Vec<String> = own
            .into_iter()
            .chain(uids)
            .chain(flags.iter().map(|flag| (*flag).to_owned()))
            .collect();
        Self::try_start(flags, folder).await.expect("the hub must start")
    }

    /// Starts a hub with exactly these flags and ports of its own, in `folder`; its start may wait or fail.
    pub(crate) async fn try_start(flags: Vec<String>, folder: impl Into<Arc<TestDir>>) -> Result<Self, StartError> {
        Self::try_start_reporting(flags, folder, watch::Sender::new(None)).await
    }

    /// Like [`Self::try_start`]; sends the ports before the start.
    pub(crate) async fn try_start_reporting(
        flags: Vec<String>,
        folder: impl Into<Arc<TestDir>>,
        chosen: watch::Sender<Option<Ports>>,
    ) -> Result<Self, StartError> {
        install_crypto_provider();
        let folder = folder.into();
        let (hub, ports) = start(&flags, &chosen).await?;
        Ok(Self {
            hub: Some(hub),
            folder,
            flags,
            ports,
        })
    }

    /// Stops as SIGTERM does; the directories stay.
    pub(crate) async fn stop(&mut self) {
        // Tests cover tasks that cannot end.
        let _ = self.try_stop().await;
    }

    /// Stops as SIGTERM does, and returns the tasks that did not end in time.
    pub(crate) async fn try_stop(&mut self) -> Result<(), StillRunning> {
        match self.hub.take() {
            Some(hub) => hub.stop().await,
            None => Ok(()),
        }
    }

    /// Starts again in the same directories, on other ports; clients have to be created again.
    pub(crate) async fn restart(&mut self) {
        self.stop().await;
        let started = start(&self.flags, &watch::Sender::new(None)).await;
        let (hub, ports) = started.expect("the hub must start");
        (self.hub, self.ports) = (Some(hub), ports);
    }

    /// Replaces the flag of the same name by `flag` (`--name=value`) for the next start.
    pub(crate) fn set_flag(&mut self, flag: &str) {
        let name = flag.split('=').next().unwrap_or(flag);
        self.flags.retain(|old| old.split('=').next() != Some(name));
        self.flags.push(flag.to_owned());
    }

    /// Waits until a critical task of the hub ends, which ends the process; returns its name.
    pub(crate) async fn failed(&self) -> &'static str {
        let failed = self.hub.as_ref().unwrap().failed();
        tokio::time::timeout(Duration::from_secs(60), failed)
            .await
            .expect("a task must end")
    }

    /// Starts again with the disk's state at the time of this call, as after a SIGKILL.
    pub(crate) async fn crash(&mut self) {
        let (cache, aside) = (self.folder.path().join("cache"), self.folder.path().join("aside"));
        copy_folder(&cache, &aside);
        self.stop().await;
        std::fs::remove_dir_all(&cache).unwrap();
        std::fs::rename(&aside, &cache).unwrap();
        self.restart().await;
    }

    pub(crate) async fn wait_until_complete(&self) {
        let with_pool = self.flags.iter().any(|flag| flag.starts_with("--nodepool-name"));
        self.until("all replicas must become complete", |state| {
            let collections = state["collections"].as_object().unwrap();
            collections
                .iter()
                .all(|(name, one)| one["complete"] == true || (name == "members" && !with_pool))
        })
        .await;
    }

    /// Waits until the state of the hub satisfies `is_so`; on a timeout it panics with `what`.
    pub(crate) async fn until(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        eventually(what, async || Some(self.state().await).filter(|state| is_so(state))).await
    }

    /// Returns `/debug/state.json`.
    pub(crate) async fn state(&self) -> Value {
        let answer = self.admin().get("/debug/state.json").await;
        assert_eq!(answer.code, 200);
        answer.json()
    }

    /// A client of the operator's port.
    pub(crate) fn admin(&self) -> Client {
        Self::admin_at(self.ports)
    }

    /// A client of the operator's port of a hub that is starting.
    pub(crate) fn admin_at(ports: Ports) -> Client {
        Client::new(&format!("http://127.0.0.1:{}", ports.admin), None, "curl/8", None)
    }

    /// A client on the node with this User-Agent and no credentials.
    pub(crate) fn component(&self, agent: &str) -> Client {
        Client::new(&self.proxy_url(), None, agent, None)
    }

    pub(crate) fn kubelet(&self) -> Client {
        self.component("kubelet/v1.36.0 (linux/amd64) kubernetes/0000000")
    }

    pub(crate) fn kube_proxy(&self) -> Client {
        self.component("kube-proxy/v1.36.0 (linux/amd64) kubernetes/0000000")
    }

    /// A client with this token and the User-Agent `agent`.
    pub(crate) fn bearer(&self, agent: &str, token: &str) -> Client {
        Client::new(&self.proxy_url(), None, agent, Some(token))
    }

    /// A client with a client certificate of the cluster, at the HTTPS port.
    pub(crate) fn with_certificate(&self, cloud: &Cloud, user: &str, groups: &[&str]) -> Client {
        let tls = cloud.pki().client_config(Some(&cloud.pki().client(user, groups)));
        Client::new(
            &format!("https://127.0.0.1:{}", self.ports.secure),
            Some(tls),
            "kubectl/v1.36.0",
            None,
        )
    }

    /// A pod with this token, at the HTTPS port.
    pub(crate) fn pod(&self, cloud: &Cloud, token: &str) -> Client {
        let tls = cloud.pki().client_config(None);
        let url = format!("https://127.0.0.1:{}", self.ports.secure);
        Client::new(&url, Some(tls), "pod/v1", Some(token))
    }

    /// A bare connection to the proxy port.
    pub(crate) async fn connect(&self) -> tokio::net::TcpStream {
        tokio::net::TcpStream::connect(("127.0.0.1", self.ports.proxy))
            .await
            .unwrap()
    }

    /// Returns everything received for these bytes on a connection of their own.
    pub(crate) async fn said(&self, bytes: &str) -> String {
        let mut connection = self.connect().await;
        connection.write_all(bytes.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let reading = tokio::time::timeout(PATIENCE, connection.read_to_end(&mut answer));
        // A reset after the answer is an end, too.
        let _ = reading.await.expect("the connection must end");
        String::from_utf8_lossy(&answer).into_owned()
    }

    pub(crate) fn proxy_port(&self) -> u16 {
        self.ports.proxy
    }

    pub(crate) fn secure_port(&self) -> u16 {
        self.ports.secure
    }

    /// The directory that contains all others.
    pub(crate) fn folder(&self) -> &TestDir {
        &self.folder
    }

    fn proxy_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.proxy)
    }
}

/// Copies a folder as it is at one moment, although tasks write to it: repeats the copy until nothing changed during
/// it.
fn copy_folder(from: &Path, to: &Path) {
    for _ in 0..TRIES {
        let before = files_of(from);
        let copied = try_copy_folder(from, to);
        if copied.is_ok() && before.is_ok_and(|before| files_of(from).is_ok_and(|after| after == before)) {
            return;
        }
        std::fs::remove_dir_all(to).unwrap();
    }
    panic!("{} changes all the time", from.display());
}

fn try_copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::create_dir(to)?;
    for file in std::fs::read_dir(from)? {
        let file = file?;
        let target = to.join(file.file_name());
        if file.file_type()?.is_dir() {
            try_copy_folder(&file.path(), &target)?;
        } else {
            std::fs::copy(file.path(), target)?;
        }
    }
    Ok(())
}

/// Path, inode and time of the last change of each file and folder below this one.
fn files_of(folder: &Path) -> io::Result<BTreeSet<(PathBuf, u64, i64, i64)>> {
    let mut all = BTreeSet::new();
    for file in std::fs::read_dir(folder)? {
        let (file, about) = file.and_then(|file| Ok((file.path(), file.metadata()?)))?;
        if about.is_dir() {
            all.extend(files_of(&file)?);
        }
        all.insert((file, about.ino(), about.ctime(), about.ctime_nsec()));
    }
    Ok(all)
}

/// Flags of a hub of `node` whose files are in `folder`; without ports.
pub(crate) fn flags_of(cloud: &Cloud, folder: &TestDir, node: &str, server: &str) -> Vec<String> {
    let kubeconfig = cloud
        .pki()
        .write_kubeconfig(folder, "kubelet.conf", server, &cloud.pki().node(node));
    let serving = cloud.pki().server();
    std::fs::create_dir_all(folder.path().join("root/pki")).unwrap();
    folder.write(
        "root/pki/yurthub-server-current.pem",
        format!("{}{}", serving.cert_pem, serving.key_pem),
    );
    let path = |name: &str| folder.path().join(name).display().to_string();
    vec![
        format!("--node-name={node}"),
        format!("--server-addr={server}"),
        "--bootstrap-mode=kubeletcertificate".to_owned(),
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--root-dir={}", path("root")),
        format!("--disk-cache-path={}", path("cache")),
        "--enable-dummy-if=false".to_owned(),
    ]
}

/// The uid of the test process; it acts as the node in the tests.
pub(crate) fn own_uid() -> u32 {
    std::fs::metadata("/proc/self").unwrap().uid()
}

/// Starts a hub on free port numbers, because it does not report the ports it got. If another process takes
/// one, it tries others.
async fn start(flags: &[String], chosen: &watch::Sender<Option<Ports>>) -> Result<(Hub, Ports), StartError> {
    for _ in 0..TRIES {
        let ports = Ports {
            admin: free_port(),
            proxy: free_port(),
            secure: free_port(),
        };
        let numbers = [
            format!("--serve-port={}", ports.admin),
            format!("--proxy-port={}", ports.proxy),
            format!("--proxy-secure-port={}", ports.secure),
        ];
        let all = ["yurthub".to_owned()]
            .into_iter()
            .chain(flags.iter().cloned())
            .chain(numbers);
        let mut config = Flags::try_parse_from(all).unwrap().check().unwrap();
        if !flags.iter().any(|flag| flag.starts_with("--bind-proxy-address=")) && config.network.is_none() {
            config.hub_host = HUB_OF_PODS.parse().unwrap();
        }
        chosen.send_replace(Some(ports));
        match Hub::start(config).await {
            Ok(hub) => return Ok((hub, ports)),
            Err(StartError::Bind(_)) => tokio::time::sleep(Duration::from_millis(10)).await,
            Err(error) => return Err(error),
        }
    }
    panic!("the hub must get its ports");
}
