//! An etcd of three members under the pool's coordinators: mutual TLS, and each member a program that can be killed and
//! paused.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::api::Api;
use super::identities::Issue;
use super::program::{Launch, ManagedProcess};
use super::wait_for::wait_for;
use super::{START_LIMIT, Setup, ports, real};

/// The members.
pub struct Etcd {
    /// All members, in the order of their ports.
    pub members: Vec<Member>,
    /// Flags for coordinators that use it.
    flags: [(&'static str, String); 4],
}

/// One of them.
pub struct Member {
    /// Its process.
    pub process: ManagedProcess,
    api: Api,
}

const MEMBERS: usize = 3;
/// Time limit for the question which member leads; it may be paused.
const ASK_LIMIT: Duration = Duration::from_millis(300);

// === impl Etcd ===

impl Etcd {
    /// Starts all members and waits until they are one cluster.
    ///
    /// # Errors
    /// When etcd is not built (`cargo xtask build-interop`), or does not come up.
    pub async fn start(setup: &Setup) -> Result<Self> {
        let names: [String; MEMBERS] = std::array::from_fn(|index| format!("etcd-{}", index + 1));
        let mut urls = Vec::new();
        for name in &names {
            let url = |port| format!("https://127.0.0.1:{port}");
            let (client, peer) = (ports::free()?, ports::free()?);
            urls.push((name, client, url(client), url(peer)));
        }
        let cluster: Vec<String> = urls.iter().map(|(name, _, _, peer)| format!("{name}={peer}")).collect();
        // For both ends between members, and for the coordinators.
        let pem = setup.identities.replace_client("etcd", Issue::Usual, "etcd", &[])?;
        let mut members = Vec::new();
        for (name, port, client, peer) in &urls {
            let (cert, key) = setup.identities.server(name)?;
            let mut launch = Launch::new(&setup.dir, name, real::binary("etcd")?)
                .flag("name", name)
                .flag("data-dir", setup.dir.join(format!("{name}.data")).display())
                .flag("listen-client-urls", client)
                .flag("advertise-client-urls", client)
                .flag("listen-peer-urls", peer)
                .flag("initial-advertise-peer-urls", peer)
                .flag("initial-cluster", cluster.join(","))
                // Only members are killed, the machine is not.
                .flag("unsafe-no-fsync", true)
                .flag("log-level", "warn");
            for side in ["", "peer-"] {
                launch = launch
                    .flag(&format!("{side}cert-file"), cert.display())
                    .flag(&format!("{side}key-file"), key.display())
                    .flag(&format!("{side}client-cert-auth"), true)
                    .flag(&format!("{side}trusted-ca-file"), setup.identities.ca_file().display());
            }
            for side in ["client", "peer-client"] {
                launch = launch
                    .flag(&format!("{side}-cert-file"), pem.display())
                    .flag(&format!("{side}-key-file"), pem.display());
            }
            let api = Api::https(*port, setup.identities.ca_pem(), &setup.identities.admin)?;
            let mut process = ManagedProcess::new(launch);
            process.start()?;
            members.push(Member { process, api });
        }
        for Member { process, api } in &mut members {
            let program = process.program()?;
            let healthy = async || {
                program.must_run()?;
                api.ping("/health").await
            };
            wait_for(START_LIMIT, "a member of etcd is healthy", healthy).await?;
        }
        let servers: Vec<&str> = urls.iter().map(|(_, _, client, _)| client.as_str()).collect();
        let flags = [
            ("etcd-servers", servers.join(",")),
            ("etcd-cafile", setup.identities.ca_file().display().to_string()),
            ("etcd-certfile", pem.display().to_string()),
            ("etcd-keyfile", pem.display().to_string()),
        ];
        Ok(Self { members, flags })
    }

    /// Launch of a coordinator that stores its data there.
    pub fn under(&self, launch: Launch) -> Launch {
        let flags = self.flags.iter();
        flags.fold(launch, |launch, (flag, value)| launch.flag(flag, value))
    }

    /// The member that leads, if a running one reports it.
    pub async fn leader(&self) -> Option<usize> {
        let mut leader = None;
        let mut ids = Vec::new();
        for Member { process, api } in &self.members {
            let status = async { api.create("/v3/maintenance/status", &json!({})).await.ok() };
            let status = match process.runs() {
                true => tokio::time::timeout(ASK_LIMIT, status).await.ok().flatten(),
                false => None,
            };
            let status = status.unwrap_or_default();
            ids.push(status["header"]["member_id"].as_str().map(str::to_owned));
            let named = status["leader"].as_str().filter(|id| *id != "0");
            leader = leader.or(named.map(str::to_owned));
        }
        let leader = leader?;
        ids.iter().position(|id| id.as_ref() == Some(&leader))
    }

    /// Compacts all history before now, trying one member after the other.
    ///
    /// # Errors
    /// When no member did it.
    pub async fn compact(&self) -> Result<()> {
        let mut outcome = Err(anyhow::anyhow!("no member runs"));
        for member in self.members.iter().filter(|member| member.process.runs()) {
            outcome = tokio::time::timeout(ASK_LIMIT, member.compact())
                .await
                .context("no answer")
                .flatten();
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }

    /// # Errors
    /// When a member ended by itself.
    pub fn must_run(&mut self) -> Result<()> {
        let mut members = self.members.iter_mut();
        members.try_for_each(|member| member.process.program()?.must_run())
    }
}

// === impl Member ===

impl Member {
    async fn compact(&self) -> Result<()> {
        // Any key: only the current revision is needed.
        let read = self.api.create("/v3/kv/range", &json!({"key": "AA=="})).await?;
        let revision: &Value = &read["header"]["revision"];
        ensure!(revision.is_string(), "etcd returns no revision: {read}");
        let compaction = json!({"revision": revision});
        self.api.create("/v3/kv/compaction", &compaction).await.map(drop)
    }
}
