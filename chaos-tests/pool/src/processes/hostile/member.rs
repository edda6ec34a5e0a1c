//! A member of the pool that runs no hub: attacks on the coordinator with a stolen node certificate.
//!
//! It attacks a leader that renews. When a leader was silent for its lease duration, the rules let any member take the
//! lease. The actor then gives it back, and feeds nothing.

use std::time::Duration;

use anyhow::{Context, Result};
use http::Method;
use serde_json::{Value, json};
use yurt_testbed::api::{Api, key_and_version};
use yurt_testbed::pool::{ELECTION, TestPool};
use yurt_testbed::sample::NAMESPACE;
use yurt_workspace::Stopwatch;

use super::client::AttackClient;
use super::{Attack, Attacker, Finding, Record, Refusal, crowd};

/// The node. The cloud has it in the pool; there is no hub on it.
pub(in super::super) const NODE: &str = "shore-hostile";
/// Its name as an elector.
const IDENTITY: &str = "shore-hostile_1";
/// Pause between two attacks.
const PACE: Duration = Duration::from_millis(40);
/// A leader is attacked if a renewal was seen within this time; it renews more often.
const ALIVE: Duration = Duration::from_millis(1_500);
/// The name of objects that the cloud never has.
const FORGED: &str = "hostile-forged";
const FEED: &str = "/yurt/v1/feed";
/// Greatest resourceVersion of a cloud.
const LAST_VERSION: u64 = (1 << 62) - 1;

/// The rules of the election lease.
const HELD: &[Refusal] = &[
    Refusal(409, "only the holder's node may write it"),
    Refusal(409, "it can only be acquired, not"),
];
/// The lease has changed since it was read, or is gone with its store.
const CHANGED: &[Refusal] = &[
    Refusal(409, "object has been modified"),
    Refusal(409, "the store was opened less than the lease duration ago"),
    Refusal(404, "not found"),
    Refusal(403, "is not a member of NodePool"),
];
const FORBIDDEN: &[Refusal] = &[Refusal(403, "forbidden")];
const TOO_LONG: &[Refusal] = &[Refusal(422, "leaseDurationSeconds")];
/// The fence of the feed; before it, the check of a coordinator without a membership.
const FENCED: &[Refusal] = &[Refusal(409, r#""fenced""#), Refusal(409, r#""members""#)];
const NO_MEMBER: &[Refusal] = &[Refusal(403, "is not a member of NodePool")];
/// Reviews have a limit of their own.
const TOO_MANY: &[Refusal] = &[Refusal(413, "limit is 65536")];
const NODE_LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
/// As many owners as fit into a body.
const OWNERS: u32 = 40_000;
const FINALIZERS: u32 = 200_000;
const EVENTS: &str = "/api/v1/namespaces/default/events";
/// The body of a node has a limit, which is lower than that of others.
const TOO_LONG_FOR_A_NODE: &[Refusal] = &[Refusal(413, "limit is 32768")];
const TOO_WIDE: &[Refusal] = &[Refusal(413, "bytes of memory")];
/// Empty owners in a body below that limit.
const EMPTY_OWNERS: u32 = 10_000;
/// Bytes of a message.
const MESSAGE: usize = 2_400_000;
/// Unfinished bodies at a time.
const CROWD: usize = 20;

/// Kinds of attacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Takes the lease of a leader that renews, with its resourceVersion.
    Take,
    /// Clears the holder.
    Empty,
    /// Renews for the leader, until the end of time.
    RenewForLeader,
    /// Takes the lease for 68 years.
    TakeForLong,
    /// Takes the lease in the name of the leader's node.
    TakeAsLeader,
    /// Deletes the lease.
    Delete,
    /// Shares Pods.
    Scope,
    /// A membership of itself alone.
    MembersAlone,
    /// A forged Service, in the last generation.
    LastGeneration,
    /// A forged Service, at the last resourceVersion.
    LastPosition,
    /// A forged Service, right after the present position.
    Forge,
    /// A snapshot without Services.
    NoServices,
    /// A forged body of a snapshot.
    Body,
    /// A lease of its own with tens of thousands of owners.
    ManyOwners,
    /// An access review of its own with as many owners.
    WideReview,
    /// A lease of its own with hundreds of thousands of finalizers.
    ManyFinalizers,
    /// A lease of its own, of a permitted size, with as many empty owners as fit.
    ManyValues,
    /// An event of the size of a whole pool's.
    LargeEvent,
    /// Bodies of the feed that never end.
    UnfinishedFeed,
}

const ALL: [Kind; 19] = [
    Kind::Take,
    Kind::Empty,
    Kind::RenewForLeader,
    Kind::TakeForLong,
    Kind::TakeAsLeader,
    Kind::Delete,
    Kind::Scope,
    Kind::MembersAlone,
    Kind::LastGeneration,
    Kind::LastPosition,
    Kind::Forge,
    Kind::NoServices,
    Kind::Body,
    Kind::ManyOwners,
    Kind::WideReview,
    Kind::ManyFinalizers,
    Kind::ManyValues,
    Kind::LargeEvent,
    Kind::UnfinishedFeed,
];

/// The actor.
pub(super) struct Member {
    /// Clients of each coordinator: one reads, one attacks.
    clients: Vec<(Api, AttackClient)>,
    random: fastrand::Rng,
    record: Record,
    sight: Sight,
}

/// Longest possible silence of the leader, derived from reads of the lease.
#[derive(Default)]
struct Sight {
    /// Highest resourceVersion of the lease so far.
    version: u64,
    /// Start of the latest read.
    read: Option<Stopwatch>,
    /// Start of the read before the latest renewal.
    renewed: Option<Stopwatch>,
}

/// Inputs of an attack.
struct Stand {
    lease: Value,
    feed: Value,
}

// === impl Member ===

impl Member {
    pub(super) fn new(pool: &TestPool, seed: u64, record: Record) -> Result<Self> {
        let identities = &pool.setup.identities;
        let pair = identities.client_pair(&format!("system:node:{NODE}"), &["system:nodes"])?;
        let coordinators = std::iter::once(&pool.coordinator).chain(&pool.others);
        let ca = identities.ca_pem();
        let clients = coordinators.map(|one| {
            let api = Api::https(one.port, ca, &pair)?;
            Ok((api, AttackClient::https(one.port, ca, &pair)?))
        });
        Ok(Self {
            clients: clients.collect::<Result<_>>()?,
            random: fastrand::Rng::with_seed(seed),
            record,
            sight: Sight::default(),
        })
    }

    async fn one(&mut self, kind: Kind) -> Result<()> {
        let (api, client) = self.clients[self.random.usize(..self.clients.len())].clone();
        let began = Stopwatch::start();
        let lease = api.get(ELECTION).await?;
        self.sight.see(began, key_and_version(&lease).1);
        if lease["spec"]["holderIdentity"] == IDENTITY {
            return release(&api, lease).await;
        }
        if kind.is_of_lease() && !self.sight.is_silent_for_less_than(ALIVE) {
            return Ok(());
        }
        let feed = api.get(FEED).await?;
        let attack = kind.attack(&Stand { lease, feed }).context("there is no leader")?;
        if kind == Kind::UnfinishedFeed {
            crowd(&client, &attack, &self.record, CROWD).await;
            return Ok(());
        }
        let answer = attack.send(&client).await;
        let mut finding = attack.judge(answer.as_ref());
        let Some((code, body)) = answer else {
            self.record.add(attack.name, finding);
            return Ok(());
        };
        if kind == Kind::Take && code == 200 {
            let taken: Value = serde_json::from_slice(&body)?;
            let duration = taken["spec"]["leaseDurationSeconds"].as_u64().unwrap_or_default();
            if !self.sight.is_silent_for_less_than(Duration::from_secs(duration)) {
                // Allowed by the rules: the request was under way for that long.
                finding = Finding::Late;
            }
            self.record.add(attack.name, finding);
            return release(&api, taken).await;
        }
        self.record.add(attack.name, finding);
        Ok(())
    }
}

impl Attacker for Member {
    /// Every kind once, in any order, before one comes again.
    async fn attack(&mut self) {
        loop {
            let mut round = ALL;
            self.random.shuffle(&mut round);
            for kind in round {
                // Coordinators are unavailable at times.
                let _ = self.one(kind).await;
                tokio::time::sleep(PACE).await;
            }
        }
    }
}

async fn release(api: &Api, mut lease: Value) -> Result<()> {
    lease["spec"]["holderIdentity"] = "".into();
    api.replace(ELECTION, &lease).await.map(drop)
}

// === impl Sight ===

impl Sight {
    /// Records a read that began then and returned the lease at `version`. A coordinator that lags behind another one
    /// shows an older one.
    fn see(&mut self, began: Stopwatch, version: u64) {
        if version > self.version {
            self.version = version;
            self.renewed = self.read;
        }
        self.read = Some(began);
    }

    /// True if the lease was certainly written within this time.
    fn is_silent_for_less_than(&self, time: Duration) -> bool {
        self.renewed.is_some_and(|since| since.elapsed() < time)
    }
}

// === impl Kind ===

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Take => "take the lease of a living leader",
            Self::Empty => "release for the leader",
            Self::RenewForLeader => "renew for the leader",
            Self::TakeForLong => "a lease for 68 years",
            Self::TakeAsLeader => "be elected under another name",
            Self::Delete => "delete the lease",
            Self::Scope => "share Pods",
            Self::MembersAlone => "a membership without others",
            Self::LastGeneration => "a generation that nothing can follow",
            Self::LastPosition => "a position that nothing can follow",
            Self::Forge => "an event of a forged Service",
            Self::NoServices => "an empty snapshot",
            Self::Body => "a forged body of a snapshot",
            Self::ManyOwners => "a lease with 40,000 owners",
            Self::WideReview => "a review with 40,000 owners",
            Self::ManyFinalizers => "a lease with 200,000 finalizers",
            Self::ManyValues => "a lease with 10,000 empty owners",
            Self::LargeEvent => "an event of 2.4 MB",
            Self::UnfinishedFeed => "20 bodies of the feed without an end",
        }
    }

    fn is_of_lease(self) -> bool {
        matches!(
            self,
            Self::Take | Self::Empty | Self::RenewForLeader | Self::TakeForLong | Self::TakeAsLeader | Self::Delete
        )
    }

    /// Builds the request; `None` without a leader.
    fn attack(self, stand: &Stand) -> Option<Attack> {
        match self {
            Self::ManyOwners | Self::WideReview | Self::ManyFinalizers | Self::ManyValues | Self::LargeEvent => {
                Some(self.of_large_bodies())
            }
            _ if self.is_of_lease() => self.of_lease(&stand.lease),
            _ => Some(self.of_feed(&stand.feed)),
        }
    }

    fn of_lease(self, lease: &Value) -> Option<Attack> {
        let holder = lease["spec"]["holderIdentity"]
            .as_str()
            .filter(|holder| !holder.is_empty())?;
        let (node, _) = holder.split_once('_')?;
        let mut wanted = lease.clone();
        let spec = &mut wanted["spec"];
        match self {
            Self::Take => spec["holderIdentity"] = IDENTITY.into(),
            Self::Empty => spec["holderIdentity"] = "".into(),
            Self::RenewForLeader => spec["renewTime"] = "9999-12-31T23:59:59.000000Z".into(),
            Self::TakeForLong => {
                spec["holderIdentity"] = IDENTITY.into();
                spec["leaseDurationSeconds"] = i32::MAX.into();
            }
            _ => spec["holderIdentity"] = format!("{node}_hostile").into(),
        }
        let (method, body, owed) = match self {
            Self::Delete => (Method::DELETE, None, FORBIDDEN),
            Self::TakeForLong => (Method::PUT, Some(wanted), TOO_LONG),
            Self::TakeAsLeader => (Method::PUT, Some(wanted), FORBIDDEN),
            _ => (Method::PUT, Some(wanted), HELD),
        };
        Some(Attack {
            name: self.name(),
            method,
            path: ELECTION.to_owned(),
            body,
            owed,
            late: CHANGED,
            ..Attack::default()
        })
    }

    /// A body that is long, or has the longest list that a body may have.
    fn of_large_bodies(self) -> Attack {
        let owner = |at: u32| json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": at.to_string()});
        let owners = || (0..OWNERS).map(owner).collect::<Value>();
        let lease = |list: &str, items: Value| json!({"metadata": {"name": NODE, list: items}, "spec": {"holderIdentity": NODE}});
        let (path, body, owed) = match self {
            Self::WideReview => (REVIEWS, lease("ownerReferences", owners()), TOO_MANY),
            Self::ManyValues => {
                let empty = (0..EMPTY_OWNERS).map(|_| json!({})).collect();
                (NODE_LEASES, lease("ownerReferences", empty), TOO_WIDE)
            }
            Self::LargeEvent => {
                let metadata = json!({"name": FORGED, "namespace": "default"});
                let event = json!({"metadata": metadata, "message": "x".repeat(MESSAGE)});
                (EVENTS, event, TOO_LONG_FOR_A_NODE)
            }
            Self::ManyFinalizers => {
                let finalizers = (0..FINALIZERS).map(|_| "").collect();
                (NODE_LEASES, lease("finalizers", finalizers), TOO_LONG_FOR_A_NODE)
            }
            _ => (NODE_LEASES, lease("ownerReferences", owners()), TOO_LONG_FOR_A_NODE),
        };
        Attack {
            name: self.name(),
            method: Method::POST,
            path: path.to_owned(),
            body: Some(body),
            owed,
            late: NO_MEMBER,
            ..Attack::default()
        }
    }

    /// A call with the leader's claim.
    fn of_feed(self, feed: &Value) -> Attack {
        let services = &feed["collections"]["services"];
        let generation = services["generation"].as_u64().unwrap_or_default();
        let applied = |of: &Value| of["appliedUpTo"].as_str().and_then(|text| text.parse().ok());
        let after: u64 = applied(services).unwrap_or_default();
        let next = (after + 1).to_string();
        let members = &feed["collections"]["members"];
        let members_next = (applied(members).unwrap_or_default() + 1).to_string();
        let (last, key) = (LAST_VERSION.to_string(), format!("{NAMESPACE}/{FORGED}"));
        let (path, more) = match self {
            Self::Scope => (
                "scope",
                json!({"resources": [{"group": "", "version": "v1", "resource": "pods", "kind": "Pod", "listKind": "PodList",
                    "namespaced": true}]}),
            ),
            Self::MembersAlone => (
                "members/snapshot",
                json!({"generation": members["generation"], "at": members_next, "index": [[NODE, members_next]]}),
            ),
            Self::LastGeneration => (
                "services/snapshot",
                json!({"generation": u64::MAX, "at": next, "index": [[key, next]]}),
            ),
            Self::LastPosition => (
                "services/snapshot",
                json!({"generation": generation, "at": last, "index": [[key, last]]}),
            ),
            Self::Forge => (
                "services/events",
                json!({"generation": generation, "after": after.to_string(), "upTo": next, "fresh": true,
                    "events": [{"type": "ADDED", "object": forged(&next)}]}),
            ),
            Self::NoServices | Self::UnfinishedFeed => (
                "services/snapshot",
                json!({"generation": generation, "at": next, "index": []}),
            ),
            _ => (
                "services/snapshot/bodies",
                json!({"generation": generation, "at": next, "objects": [forged(&next)]}),
            ),
        };
        let mut body = json!({"store": feed["store"], "epoch": feed["epoch"]});
        if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
            body.extend(more);
        }
        Attack {
            name: self.name(),
            method: Method::POST,
            path: format!("{FEED}/{path}?version=1"),
            body: Some(body),
            owed: FENCED,
            late: NO_MEMBER,
            ..Attack::default()
        }
    }
}

/// A Service whose traffic goes to the attacker.
fn forged(version: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": NAMESPACE, "name": FORGED, "resourceVersion": version,
            "uid": "00000000-0000-4000-8000-00000000f0f0"},
        "spec": {"clusterIP": "10.96.9.9", "ports": [{"name": "http", "port": 80}]},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stand(holder: &str) -> Stand {
        let metadata = json!({"name": "yurthub", "namespace": "kube-system", "resourceVersion": "7"});
        Stand {
            lease: json!({"metadata": metadata, "spec": {"holderIdentity": holder, "leaseDurationSeconds": 3}}),
            feed: json!({"store": "s", "epoch": 4,
                "collections": {"services": {"generation": 2, "appliedUpTo": "41"}, "members": {"generation": 1}}}),
        }
    }

    #[test]
    fn attacks_carry_what_only_the_leader_may_use() {
        let mut names = std::collections::BTreeSet::new();
        for kind in ALL {
            let attack = kind.attack(&stand("shore-1_x")).expect("a leader");
            assert!(names.insert(attack.name), "{} twice", attack.name);
            assert!(!attack.owed.is_empty());
            match (kind.is_of_lease(), &attack.body) {
                (true, Some(lease)) => {
                    assert_eq!(lease["metadata"]["resourceVersion"], "7", "{}", attack.name);
                    assert_ne!(*lease, stand("shore-1_x").lease, "{} changes nothing", attack.name);
                }
                (true, None) => assert_eq!(attack.method, Method::DELETE),
                (false, call) => {
                    let call = call.as_ref().expect("a call has a body");
                    assert!(
                        call.to_string().len() < 3 << 20,
                        "{} is too large to be read",
                        attack.name
                    );
                    let is_large = attack.owed.iter().all(|Refusal(code, _)| *code == 413);
                    assert!(is_large || (&call["store"], &call["epoch"]) == (&json!("s"), &json!(4)));
                }
            }
        }
        let forge = Kind::Forge.of_feed(&stand("a_1").feed).body.expect("a body");
        assert_eq!((&forge["after"], &forge["upTo"]), (&json!("41"), &json!("42")));
    }

    #[test]
    fn lease_of_nobody_is_left_alone() {
        let taken: Vec<Kind> = ALL.into_iter().filter(|kind| kind.is_of_lease()).collect();
        assert!(taken.iter().all(|kind| kind.attack(&stand("")).is_none()));
    }

    #[test]
    fn leader_is_alive_only_while_a_renewal_was_seen_between_two_reads() {
        let mut sight = Sight::default();
        let long = Duration::from_secs(3600);
        sight.see(Stopwatch::start(), 7);
        assert!(
            !sight.is_silent_for_less_than(long),
            "it may have been written long ago"
        );
        sight.see(Stopwatch::start(), 7);
        sight.see(Stopwatch::start(), 6);
        assert!(!sight.is_silent_for_less_than(long), "an older one is no renewal");
        sight.see(Stopwatch::start(), 8);
        assert!(sight.is_silent_for_less_than(long));
        assert!(!sight.is_silent_for_less_than(Duration::ZERO));
    }
}
