//! Different electors on one lease: those that send no resourceVersion and stall between read and write, and one that
//! follows client-go. None replaces a holder that renews.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};
use yurt_apimachinery::time::MicroTime;
use yurt_runtime::Clock;

use crate::harness::{Answer, Client, PATIENCE, Server, rv};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/l";
const DURATION: Duration = Duration::from_secs(1);
/// Number of takeovers from silent holders and of releases after which the test ends.
const TAKEOVERS: usize = 4;
const RELEASES: usize = 3;

/// One candidate.
struct Elector<'a> {
    client: Client,
    name: &'a str,
    random: RefCell<u64>,
    writes: &'a Writes,
}

/// When each accepted write was sent and answered, by resourceVersion.
#[derive(Default)]
struct Writes(RefCell<HashMap<String, [Instant; 2]>>);

// === impl Elector ===

impl Elector<'_> {
    fn random(&self, below: u64) -> u64 {
        let mut random = self.random.borrow_mut();
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (*random >> 33) % below
    }

    async fn stall(&self) {
        if self.random(4) == 0 {
            sleep(Duration::from_millis(self.random(1800))).await;
        }
    }

    /// Trusts the clock of the lease's last writer, and overwrites any state.
    async fn blind(&self) {
        loop {
            let lease = self.client.get(LEASE).await.expect(200);
            let (holder, age) = (lease["spec"]["holderIdentity"].clone(), age(&lease));
            self.stall().await;
            let changed = if holder == json!(self.name) {
                if self.random(5) == 0 { Some("") } else { Some(self.name) }
            } else {
                (holder == json!("") || age > DURATION).then_some(self.name)
            };
            if let Some(holder) = changed {
                let patch = json!({
                    "metadata": {"annotations": {"by": self.name}},
                    "spec": {"holderIdentity": holder, "renewTime": now().to_string()},
                });
                let path = format!("{LEASE}?fieldManager={}", self.name);
                let sent = Instant::now();
                self.writes.add(sent, &self.client.merge(&path, &patch).await);
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Measures on its own clock from the first observation of a state, and overwrites only that state.
    async fn guarded(&self) {
        let mut seen = (String::new(), Instant::now());
        loop {
            let mut lease = self.client.get(LEASE).await.expect(200);
            if seen.0 != rv(&lease) {
                seen = (rv(&lease), Instant::now());
            }
            let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned();
            if holder.is_empty() || holder == self.name || seen.1.elapsed() > DURATION {
                self.stall().await;
                lease["metadata"]["annotations"] = json!({"by": self.name});
                lease["spec"]["holderIdentity"] = json!(self.name);
                lease["spec"]["renewTime"] = json!(now().to_string());
                let sent = Instant::now();
                self.writes.add(sent, &self.client.put(LEASE, &lease).await);
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
}

// === impl Writes ===

impl Writes {
    fn add(&self, sent: Instant, answer: &Answer) {
        match answer.code {
            200 => {
                let times = [sent, Instant::now()];
                self.0.borrow_mut().entry(rv(&answer.body)).or_insert(times);
            }
            409 => {}
            _ => panic!("{:?}", answer.body),
        }
    }

    /// Upper bound of the time between two writes of the history, if both were answered.
    fn between(&self, before: &Value, after: &Value) -> Option<Duration> {
        let writes = self.0.borrow();
        let ([sent, _], [_, answered]) = (writes.get(&rv(before))?, writes.get(&rv(after))?);
        Some(answered.duration_since(*sent))
    }
}

fn now() -> MicroTime {
    let now = Clock::system().unix();
    MicroTime::from_unix(now.secs, now.nanos)
}

fn age(lease: &Value) -> Duration {
    let micros = |time: MicroTime| time.unix().0 * 1_000_000 + i64::from(time.unix().1 / 1000);
    let renewed = lease["spec"]["renewTime"]
        .as_str()
        .and_then(|text| MicroTime::parse(text).ok());
    let age = renewed.map_or(i64::MAX, |renewed| micros(now()) - micros(renewed));
    Duration::from_micros(u64::try_from(age).unwrap_or_default())
}

#[tokio::test]
async fn electors_of_other_makes_never_replace_a_holder_that_renews() {
    let server = Server::start(&["--profile", "standalone"]).await;
    let writes = Writes::default();
    let names = ["blind-1", "blind-2", "blind-3", "guarded"];
    let electors: Vec<_> = names
        .iter()
        .zip(1..)
        .map(|(name, seed)| Elector {
            client: server.user(name, &["system:masters"]),
            name,
            random: RefCell::new(seed),
            writes: &writes,
        })
        .collect();
    let lease = json!({
        "metadata": {"name": "l"},
        "spec": {"holderIdentity": "", "leaseDurationSeconds": DURATION.as_secs(), "renewTime": now().to_string()},
    });
    let admin = server.admin();
    let created = admin.post(LEASES, &lease).await.expect(201);
    let mut watch = admin.watch(&format!("{LEASES}?resourceVersion={}", rv(&created))).await;
    let mut history = vec![created];
    let observing = async {
        let (mut takeovers, mut releases) = (0, 0);
        while takeovers < TAKEOVERS || releases < RELEASES {
            let next = watch.next().await.unwrap().object;
            let [last, now] = [history.last().unwrap(), &next].map(|lease| &lease["spec"]["holderIdentity"]);
            takeovers += usize::from(last != "" && now != "" && now != last);
            releases += usize::from(now == "");
            history.push(next);
        }
    };
    let electing = async {
        let blind = join_all(electors[..3].iter().map(Elector::blind));
        tokio::join!(blind, electors[3].guarded());
    };
    let enough = timeout(3 * PATIENCE, async {
        tokio::select! {
            () = observing => {}
            () = electing => {}
        }
    });
    enough.await.expect("the lease must change hands again and again");
    let mut judged = 0;
    for [last, next] in history.windows(2).map(|pair| [&pair[0], &pair[1]]) {
        let holder = last["spec"]["holderIdentity"].as_str().unwrap();
        let by = next["metadata"]["annotations"]["by"].as_str().unwrap();
        if holder.is_empty() || holder == by {
            continue;
        }
        // The answer to the last write of the history may not have arrived.
        let Some(silent) = writes.between(last, next) else {
            continue;
        };
        let now = &next["spec"]["holderIdentity"];
        assert!(
            silent >= DURATION,
            "{by} made it {now} at most {silent:?} after {holder} had written"
        );
        judged += 1;
    }
    assert!(judged + 1 >= TAKEOVERS, "{judged}");
}
