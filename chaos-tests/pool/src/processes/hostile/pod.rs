//! A process on a node without any right: attacks on the hub's proxy port.
//!
//! If the run has root, the process has another uid, as pods have: hubs distinguish processes on their node by uid.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use http::header::{AUTHORIZATION, CONNECTION, UPGRADE, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method};
use rustix::process::geteuid;
use rustix::thread::{Gid, Uid, set_thread_res_gid, set_thread_res_uid};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use yurt_testbed::pool::TestPool;
use yurt_testbed::sample::NAMESPACE;

use super::client::AttackClient;
use super::{Attack, Attacker, Record, Refusal, crowd, live};

/// `nobody`, and its group.
const NOBODY: u32 = 65_534;
/// Pause between two attacks.
const PACE: Duration = Duration::from_millis(40);
/// Open to every user with a valid token.
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
/// Characters of a well-formed token.
const TOKEN: usize = 1_000;
/// Characters of a token above the hub's limit.
const LARGE_TOKEN: usize = 60_000;
/// Values of a selector.
const VALUES: u32 = 5_000;

/// Unfinished bodies at a time.
const CROWD: usize = 250;

/// An unauthenticated request.
const UNKNOWN: &[Refusal] = &[Refusal(401, "Unauthorized")];
/// An invented token; the hub verifies only a few of them.
const MADE_UP: &[Refusal] = &[
    Refusal(401, "Unauthorized"),
    Refusal(429, "did not know a token of this peer"),
];
/// No free place, or the body took too long.
const NO_PLACE: &[Refusal] = &[Refusal(401, "Unauthorized"), Refusal(408, ""), Refusal(429, "")];
const TOO_LARGE: &[Refusal] = &[Refusal(401, "a bearer token has")];
const WRONG_UID: &[Refusal] = &[Refusal(401, "only processes of a uid in --node-identity-uids")];

/// Kinds of attacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// An invented token.
    MadeUp,
    /// A token as large as a header may be.
    Large,
    /// A selector with thousands of values.
    Selector,
    /// An upgrade, to get a connection that is not counted.
    Upgrade,
    /// Bodies that never end, as many as a hub has places.
    Unfinished,
    /// Secrets, as user `nobody`.
    Secrets,
    /// Secrets, as the kubelet; only with another uid.
    Kubelet,
}

const ALL: [Kind; 7] = [
    Kind::MadeUp,
    Kind::Large,
    Kind::Selector,
    Kind::Upgrade,
    Kind::Unfinished,
    Kind::Secrets,
    Kind::Kubelet,
];

/// The actor.
pub(super) struct Pod {
    /// Proxy ports of each hub.
    proxies: Vec<AttackClient>,
    random: fastrand::Rng,
    record: Record,
    /// True if it can have another uid that hubs see.
    has_uid: bool,
}

// === impl Pod ===

impl Pod {
    pub(super) fn new(pool: &TestPool, seed: u64, record: Record) -> Result<Self> {
        let proxies = pool.hubs.iter().map(|hub| AttackClient::plain(hub.proxy_port));
        Ok(Self {
            proxies: proxies.collect::<Result<_>>()?,
            random: fastrand::Rng::with_seed(seed),
            record,
            // The connection into a namespace comes from a relay with root's uid.
            has_uid: geteuid().is_root() && pool.setup.net.is_none(),
        })
    }

    /// Runs it on a thread of its own, which has the uid.
    ///
    /// # Errors
    /// A thread that cannot be made.
    pub(super) fn start(self, token: CancellationToken, wanted: watch::Receiver<bool>) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("cannot start a runtime")?;
        let live = move || {
            if self.has_uid && become_nobody().is_err() {
                eprintln!("the hostile pod cannot have another uid, and does not attack");
                return;
            }
            let _ = runtime.block_on(token.run_until_cancelled(live(self, wanted)));
        };
        let thread = thread::Builder::new().name("hostile pod".to_owned()).spawn(live);
        thread.map(drop).context("cannot start a thread")
    }
}

impl Attacker for Pod {
    /// Every kind once, in any order, before one comes again.
    async fn attack(&mut self) {
        loop {
            let mut round = ALL;
            self.random.shuffle(&mut round);
            for kind in round {
                if kind != Kind::Kubelet || self.has_uid {
                    let attack = kind.attack(&mut self.random);
                    let client = &self.proxies[self.random.usize(..self.proxies.len())];
                    if kind == Kind::Unfinished {
                        crowd(client, &attack, &self.record, CROWD).await;
                        continue;
                    }
                    let answer = attack.send(client).await;
                    self.record.add(attack.name, attack.judge(answer.as_ref()));
                }
                tokio::time::sleep(PACE).await;
            }
        }
    }
}

/// Changes the uid of this thread only.
fn become_nobody() -> rustix::io::Result<()> {
    let (gid, uid) = (Gid::from_raw(NOBODY), Uid::from_raw(NOBODY));
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)
}

// === impl Kind ===

impl Kind {
    fn attack(self, random: &mut fastrand::Rng) -> Attack {
        let secrets = format!("/api/v1/namespaces/{NAMESPACE}/secrets");
        let services = "/api/v1/services".to_owned();
        let mut headers = HeaderMap::new();
        let mut with_token = |length: usize| {
            let token: String = (0..length).map(|_| random.alphanumeric()).collect();
            if let Ok(value) = HeaderValue::try_from(format!("Bearer {token}")) {
                headers.insert(AUTHORIZATION, value);
            }
        };
        let (name, path, owed) = match self {
            Self::MadeUp => {
                with_token(TOKEN);
                ("a made-up token", services, MADE_UP)
            }
            Self::Large => {
                with_token(LARGE_TOKEN);
                ("a token of 60 KB", services, TOO_LARGE)
            }
            Self::Selector => {
                with_token(TOKEN);
                let values: Vec<String> = (0..VALUES).map(|at| format!("v{at}")).collect();
                let selector = format!("a%20notin%20({})", values.join(","));
                (
                    "a selector of 5,000 values",
                    format!("{services}?labelSelector={selector}"),
                    MADE_UP,
                )
            }
            Self::Upgrade => {
                headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
                headers.insert(UPGRADE, HeaderValue::from_static("SPDY/3.1"));
                let exec = format!("/api/v1/namespaces/{NAMESPACE}/pods/app/exec?command=sh");
                ("an upgrade by nobody", exec, UNKNOWN)
            }
            Self::Unfinished => {
                with_token(TOKEN);
                ("250 bodies without an end", REVIEWS.to_owned(), NO_PLACE)
            }
            Self::Secrets => ("secrets for nobody", secrets, UNKNOWN),
            Self::Kubelet => {
                headers.insert(USER_AGENT, HeaderValue::from_static("kubelet/hostile"));
                ("pass for the kubelet", secrets, WRONG_UID)
            }
        };
        let method = if matches!(self, Self::Upgrade | Self::Unfinished) {
            Method::POST
        } else {
            Method::GET
        };
        Attack {
            name,
            method,
            path,
            headers,
            owed,
            ..Attack::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_attack_has_a_right_and_no_token_comes_twice() {
        let mut random = fastrand::Rng::with_seed(1);
        let attacks: Vec<Attack> = ALL.iter().map(|kind| kind.attack(&mut random)).collect();
        let names: std::collections::BTreeSet<&str> = attacks.iter().map(|attack| attack.name).collect();
        assert_eq!(names.len(), ALL.len());
        let mut token = || Kind::MadeUp.attack(&mut random).headers[AUTHORIZATION].clone();
        assert_ne!(token(), token());
        let large = &attacks[1].headers[AUTHORIZATION];
        assert!(large.len() > LARGE_TOKEN);
        assert_eq!(attacks[6].headers[USER_AGENT], "kubelet/hostile");
        assert!(attacks.iter().all(|attack| attack.path.parse::<http::Uri>().is_ok()));
    }
}
