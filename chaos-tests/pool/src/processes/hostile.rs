//! Hostile actors, in addition to the faults: they attack while they are switched on, and every answer is checked.
//!
//! An [`Attack`] is one request with the refusals that the server must give. An attack that succeeds is a violation,
//! and so is one that is refused for another reason: it got past its defence. Unanswered attacks are inconclusive.
//!
//! [`member`]: a node of the pool whose certificate was stolen. [`pod`]: a process on a node, without any right.
//! [`stranger`]: a client without a certificate that reaches the coordinator. [`forger`]: a stolen node that leads.

mod client;
mod forger;
mod member;
mod pod;
mod stranger;

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use futures_util::future::join_all;
use http::{HeaderMap, Method};
use serde_json::Value;
use tokio::sync::watch;
use yurt_testbed::pool::TestPool;

use client::AttackClient;
pub(super) use forger::play as forge;
pub(super) use member::NODE;

/// An attacker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Actor {
    /// A node of the pool.
    Member,
    /// A process on a node.
    Pod,
    /// A client without any certificate.
    Stranger,
}

/// A request that must be refused.
#[derive(Clone, Debug, Default, PartialEq)]
struct Attack {
    name: &'static str,
    method: Method,
    path: String,
    headers: HeaderMap,
    body: Option<Value>,
    /// Refusals by the defence under attack.
    owed: &'static [Refusal],
    /// Refusals because the pool had changed before the request came.
    late: &'static [Refusal],
}

/// An answer with this status that has this text in its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refusal(u16, &'static str);

/// Result of an attack for its defence.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Finding {
    /// It held.
    Refused,
    /// The defence was not reached.
    Late,
    /// Inconclusive: the server is unavailable, or busy.
    Unanswered,
    /// The attack got past it.
    Violation(String),
}

/// Results of the attacks of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    attacks: BTreeMap<&'static str, Tally>,
    pub(super) violations: Vec<String>,
}

/// Results of one kind of attack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    refused: u64,
    late: u64,
    unanswered: u64,
}

/// Totals of one actor. Cheap to clone.
#[derive(Clone, Debug, Default)]
struct Record(Arc<Mutex<Totals>>);

/// The actors of a run. They end with the tasks of the pool.
pub(super) struct Actors {
    /// True for each actor that attacks, in the order of [`ACTORS`].
    switches: [watch::Sender<bool>; ACTORS.len()],
    /// Results of each, in the same order.
    records: [Record; ACTORS.len()],
}

const ACTORS: [Actor; 3] = [Actor::Member, Actor::Pod, Actor::Stranger];

/// Time for which a body that never ends is held open.
const HELD: Duration = Duration::from_millis(1_500);
/// Most violations that are listed; without a defence every attack succeeds.
const TOLD_MAX: usize = 20;
/// Most characters of an answer that are shown.
const ANSWER_MAX: usize = 300;
/// Status codes of a server that was not able to process the request.
const BUSY: [u16; 6] = [408, 429, 500, 502, 503, 504];

// === impl Actors ===

impl Actors {
    /// Prepares all of them, switched off; `seed` determines the order of attacks.
    ///
    /// # Errors
    /// A certificate or a client that cannot be made.
    pub(super) fn start(pool: &TestPool, seed: u64) -> Result<Self> {
        let records = ACTORS.map(|_| Record::default());
        let [of_member, of_pod, of_stranger] = records.clone();
        let switches = ACTORS.map(|_| watch::Sender::new(false));
        let [member, pod, stranger] = switches.each_ref().map(watch::Sender::subscribe);
        let tasks = &pool.setup.tasks;
        let attacker = member::Member::new(pool, seed, of_member)?;
        let token = tasks.token();
        tasks.spawn("hostile member", async move {
            let _ = token.run_until_cancelled(live(attacker, member)).await;
        });
        pod::Pod::new(pool, seed, of_pod)?.start(tasks.token(), pod)?;
        let attacker = stranger::Stranger::new(pool, of_stranger)?;
        let token = tasks.token();
        tasks.spawn("stranger", async move {
            let _ = token.run_until_cancelled(live(attacker, stranger)).await;
        });
        Ok(Self { switches, records })
    }

    /// Starts or stops the attacks of one actor.
    pub(super) fn set(&self, actor: Actor, attacks: bool) {
        let switches = ACTORS.into_iter().zip(&self.switches);
        for (_, switch) in switches.filter(|(other, _)| *other == actor) {
            switch.send_replace(attacks);
        }
    }

    /// Kinds of attacks that `actor` has tried, and that no defence has refused yet.
    pub(super) fn never_refused(&self, actor: Actor) -> Vec<&'static str> {
        let of_actor = ACTORS
            .into_iter()
            .zip(&self.records)
            .filter(|(other, _)| *other == actor);
        of_actor
            .flat_map(|(_, record)| record.totals().never_refused())
            .collect()
    }

    /// Results of all actors.
    pub(super) fn totals(&self) -> Totals {
        let mut sum = Totals::default();
        for record in &self.records {
            sum.join(record.totals());
        }
        sum
    }
}

// === impl Actor ===

impl Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Member => "a hostile member",
            Self::Pod => "a hostile pod",
            Self::Stranger => "a stranger",
        })
    }
}

/// An attacker that runs until it is stopped.
trait Attacker {
    fn attack(&mut self) -> impl Future<Output = ()> + Send;
}

/// Runs the attacks while `wanted` is true; ends with its sender.
async fn live(mut attacker: impl Attacker, mut wanted: watch::Receiver<bool>) {
    while wanted.wait_for(|attacks| *attacks).await.is_ok() {
        tokio::select! {
            ended = wanted.wait_for(|attacks| !attacks) => if ended.is_err() { return },
            () = attacker.attack() => {}
        }
    }
}

/// Sends the attack so many times at once, over a connection each, with a body that never ends. Each is held open for
/// [`HELD`] at most.
async fn crowd(client: &AttackClient, attack: &Attack, record: &Record, count: usize) {
    let begun = (0..count).map(|_| client.begin(&attack.path, &attack.headers, HELD));
    for answer in join_all(begun).await {
        record.add(attack.name, attack.judge(answer.ok().as_ref()));
    }
}

// === impl Attack ===

impl Attack {
    /// Sends the request; returns status and body of the answer, if there was one.
    async fn send(&self, client: &AttackClient) -> Option<(u16, Bytes)> {
        let line = (self.method.clone(), self.path.as_str());
        client.ask(line, &self.headers, self.body.as_ref()).await.ok()
    }

    fn judge(&self, answer: Option<&(u16, Bytes)>) -> Finding {
        let Some((code, body)) = answer else {
            return Finding::Unanswered;
        };
        let body = String::from_utf8_lossy(body);
        let is_one_of = |refusals: &[Refusal]| {
            refusals
                .iter()
                .any(|Refusal(of, says)| of == code && body.contains(says))
        };
        if is_one_of(self.owed) {
            Finding::Refused
        } else if is_one_of(self.late) {
            Finding::Late
        } else if BUSY.contains(code) {
            Finding::Unanswered
        } else {
            let body: String = body.chars().take(ANSWER_MAX).collect();
            let (name, method, path) = (self.name, &self.method, &self.path);
            Finding::Violation(format!(
                "attack {name:?} got past its defence: {method} {path}: {code} {body}"
            ))
        }
    }
}

// === impl Record ===

impl Record {
    fn add(&self, attack: &'static str, finding: Finding) {
        let mut totals = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let tally = totals.attacks.entry(attack).or_default();
        match finding {
            Finding::Refused => tally.refused += 1,
            Finding::Late => tally.late += 1,
            Finding::Unanswered => tally.unanswered += 1,
            Finding::Violation(told) if totals.violations.len() < TOLD_MAX => totals.violations.push(told),
            Finding::Violation(_) => {}
        }
    }

    fn totals(&self) -> Totals {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

// === impl Totals ===

impl Totals {
    /// Attacks that their defences refused.
    pub(super) fn refused(&self) -> u64 {
        self.attacks.values().map(|tally| tally.refused).sum()
    }

    /// Adds the results of another actor. No two actors have an attack of one name.
    fn join(&mut self, other: Self) {
        self.attacks.extend(other.attacks);
        self.violations.extend(other.violations);
    }

    /// Kinds of attacks that were tried, and that no defence ever refused.
    pub(super) fn never_refused(&self) -> Vec<&'static str> {
        let never = self.attacks.iter().filter(|(_, tally)| tally.refused == 0);
        never.map(|(name, _)| *name).collect()
    }
}

impl Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (late, unanswered) = self.attacks.values().fold((0, 0), |(late, unanswered), tally| {
            (late + tally.late, unanswered + tally.unanswered)
        });
        let (kinds, refused) = (self.attacks.len(), self.refused());
        write!(
            f,
            "{kinds} kinds of attacks: {refused} refused, {late} too late, {unanswered} unanswered"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(code: u16, body: &'static str) -> Finding {
        let attack = Attack {
            name: "steal",
            method: Method::PUT,
            path: "/x".to_owned(),
            owed: &[Refusal(409, "held"), Refusal(429, "too soon")],
            late: &[Refusal(409, "modified")],
            ..Attack::default()
        };
        attack.judge(Some(&(code, Bytes::from_static(body.as_bytes()))))
    }

    #[test]
    fn only_the_refusal_that_is_owed_shows_a_defence() {
        assert_eq!(finding(409, "it is held by a"), Finding::Refused);
        assert_eq!(finding(429, "too soon"), Finding::Refused);
        assert_eq!(finding(409, "was modified"), Finding::Late);
        assert_eq!(finding(503, ""), Finding::Unanswered);
        assert_eq!(finding(429, "lanes are full"), Finding::Unanswered);
        for (code, body) in [(200, "{}"), (201, "held"), (409, "gap"), (400, "held"), (404, "")] {
            let Finding::Violation(told) = finding(code, body) else {
                panic!("{code} {body} is no violation");
            };
            assert!(told.contains("steal") && told.contains("PUT /x"), "{told}");
        }
    }

    #[test]
    fn attacks_are_counted_by_name_and_open_doors_are_told_some_times() {
        let record = Record::default();
        record.add("a", Finding::Refused);
        record.add("a", Finding::Unanswered);
        record.add("b", Finding::Late);
        for _ in 0..2 * TOLD_MAX {
            record.add("b", Finding::Violation("open".to_owned()));
        }
        let totals = record.totals();
        assert_eq!((totals.refused(), totals.violations.len()), (1, TOLD_MAX));
        assert_eq!(totals.never_refused(), ["b"]);
        assert_eq!(
            totals.to_string(),
            "2 kinds of attacks: 1 refused, 1 too late, 1 unanswered"
        );
    }
}
