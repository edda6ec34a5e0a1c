//! A client that reaches the coordinator without a certificate: hundreds of connections, and sockets that send nothing.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Result;
use futures_util::future::join_all;
use http::Method;
use tokio::net::TcpStream;
use yurt_testbed::pool::{ELECTION, TestPool};

use super::client::AttackClient;
use super::{Attack, Attacker, Record, Refusal};

/// Idle sockets that are held open; more than a coordinator keeps for unauthenticated clients.
const SILENT: usize = 300;
/// Sockets that are opened in one go, in the place of the oldest.
const AT_ONCE: usize = 100;
/// Requests at a time, each over a connection of its own.
const CROWD: usize = 30;
/// Pause between two crowds.
const PACE: Duration = Duration::from_millis(300);
/// A coordinator without a free place does not answer.
const CONNECT_LIMIT: Duration = Duration::from_millis(500);

const NOBODY: &[Refusal] = &[Refusal(401, "Unauthorized"), Refusal(403, "forbidden")];
const PATHS: [(&str, &str); 4] = [
    ("the feed's state for strangers", "/yurt/v1/feed"),
    ("metrics for strangers", "/metrics"),
    ("pool data for strangers", "/api/v1/services"),
    ("the election lease for strangers", ELECTION),
];

/// The actor.
pub(super) struct Stranger {
    /// Port of each coordinator, and a client without certificate.
    doors: Vec<(u16, AttackClient)>,
    record: Record,
}

// === impl Stranger ===

impl Stranger {
    pub(super) fn new(pool: &TestPool, record: Record) -> Result<Self> {
        let ca = pool.setup.identities.ca_pem();
        let coordinators = std::iter::once(&pool.coordinator).chain(&pool.others);
        let doors = coordinators.map(|one| Ok((one.port, AttackClient::anonymous(one.port, ca)?)));
        Ok(Self {
            doors: doors.collect::<Result<_>>()?,
            record,
        })
    }

    async fn one(&self, client: &AttackClient, name: &'static str, path: &str) {
        let attack = Attack {
            name,
            method: Method::GET,
            path: path.to_owned(),
            owed: NOBODY,
            ..Attack::default()
        };
        let answer = attack.send(client).await;
        self.record.add(name, attack.judge(answer.as_ref()));
    }
}

impl Attacker for Stranger {
    /// Its sockets are closed when it ends.
    async fn attack(&mut self) {
        let mut held = VecDeque::new();
        for (port, client) in self.doors.iter().cycle() {
            let requests = PATHS.into_iter().cycle().take(CROWD);
            join_all(requests.map(|(name, path)| self.one(client, name, path))).await;
            for _ in 0..AT_ONCE {
                let address = SocketAddr::from((Ipv4Addr::LOCALHOST, *port));
                let socket = tokio::time::timeout(CONNECT_LIMIT, TcpStream::connect(address)).await;
                let Ok(Ok(socket)) = socket else { break };
                held.push_back(socket);
            }
            held.drain(..held.len().saturating_sub(SILENT));
            tokio::time::sleep(PACE).await;
        }
    }
}
