//! A hub under attack: a pod attacks its port for pods, and the kubelet goes on reading.

use anyhow::{Context, Result};
use http::Method;
use rustix::process::getuid;
use yurt_runtime::tls::{ClientTls, PemSource};

use super::access::Running;
use super::world::{SERVICE_PATH, World, name};
use crate::attacks::{self, Victim};
use crate::load::{Ask, Connector, PROTOBUF};
use crate::options::Scale;

/// User agent of the healthy client.
const KUBELET: &str = "kubelet/v1.36.3 (linux/amd64) kubernetes/bench";
/// Owner of the pod's processes: `nobody`.
const POD: u32 = 65_534;

pub(super) async fn measure(running: &mut Running, world: &World) -> Result<()> {
    let session = Connector::of_node(running.plain, KUBELET).session()?;
    let path = format!("{SERVICE_PATH}/{}", name(1));
    let read = async |_turn: u64| {
        let ask = Ask {
            accept: PROTOBUF,
            ..Ask::new(Method::GET, &path, Vec::new())
        };
        session.send(ask).await.map(drop)
    };
    read(0).await.context("the kubelet's read before the attacks")?;
    let victim = Victim {
        pid: running.pid()?.context("a hub is a process")?,
        port: running.port,
        tls: ClientTls {
            ca: PemSource::inline("the benchmark's CA", world.setup.identities.ca_pem()),
            identity: None,
        },
        token: Some(world.token.clone()),
        uid: getuid().is_root().then_some(POD),
    };
    attacks::measure(&victim, read, Scale { divisor: 1 }).await
}
