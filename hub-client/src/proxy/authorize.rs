//! May this caller read this from the hub's own copy? Exactly what the cloud would allow, asked there and remembered.
//!
//! ```text
//!   caller, request ──► key (credential.rs) ──► what is known (answers.rs) ──► decision (decision.rs, pure)
//!                                                   ▲          ▲                   │ answer, answer and ask, ask,
//!                      the file, at a start (kept.rs)          │ verdict           ▼ try later
//!                                                       question in flight ◄── the cloud (review.rs)
//! ```
//!
//! * A known yes costs no time in any state of the cloud: it is renewed behind the answer, and used as it is while the
//!   cloud is away. A no is asked about again as soon as it is old. What is not known and cannot be asked gets 429: a
//!   client waits then and keeps its resourceVersion; 403 would make it list again.
//! * There is one question at a time for a caller and its attributes. All who wait share it, and it goes on to its end
//!   when they hang up. A peer waits for its turn to ask another one (peers.rs): tokens that are made up cost little.
//! * The answers survive a restart, callers as keyed hashes. The file is written behind, at most once a minute; a crash
//!   costs no more than asking again.
//! * A right that is taken away ends with the next answer of the cloud. Until that is there it can be used for
//!   [`decision::ALLOWED_FOR`] after the last yes, while the cloud is away for [`decision::KEPT_FOR`]. A token is good
//!   until the `exp` it carries, at the longest.

pub mod answers;
pub mod credential;
pub mod decision;
pub mod kept;
pub mod peers;
pub mod review;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::{RequestInfo, Status};
use yurt_runtime::pki::write_secret;
use yurt_runtime::{BootTime, Clock, TaskGroup};

use super::caller::{Caller, Credential, Origin};
use crate::pool::probe::CloudReach;
use answers::Answers;
use credential::{Key, Salt};
use decision::{Next, Verdict};
use kept::{Kept, Wall};
use peers::{Peers, Turn};
use review::Reviews;

/// Name of the file below the cache folder.
pub const FILE: &str = "authorizations";
/// Questions in flight; further ones get 429.
const QUESTIONS_MAX: usize = 128;
/// No question is asked behind an answer while so many are in flight.
const BEHIND_MAX: usize = 16;
/// Longest wait for the turn of a peer that asks more than one thing.
const TURN_MAX: Duration = Duration::from_secs(15);
/// When to come back, in seconds, where nothing is known and nobody can be asked.
const RETRY_AFTER: u32 = 5;
/// What is new is stored so long after it was learned, together with what else is learned until then.
const SAVED_AFTER: Duration = Duration::from_secs(2);
/// Shortest time between two writes of the file.
const SAVED_EVERY: Duration = Duration::from_secs(60);
/// Answers that only became younger are stored so often: after a restart they are older by that much than they were.
const RENEWALS_SAVED_EVERY: Duration = Duration::from_secs(6 * 3600);

/// Asks and remembers. Cheap to clone; clones are the same.
#[derive(Clone)]
pub struct Authorizer(Arc<Inner>);

/// What the authorizer works with.
pub struct Means {
    /// Who may what.
    pub reviews: Arc<dyn Reviews>,
    /// Whether the cloud answers.
    pub reach: watch::Receiver<CloudReach>,
    /// Asks the cloud's prober to look now.
    pub nudge: Arc<Notify>,
    /// Ages, and the end of tokens.
    pub clock: Clock,
    /// Owner of the questions.
    pub tasks: TaskGroup,
}

struct Inner {
    means: Means,
    salt: Salt,
    wall: Wall,
    // Leaf lock: never held while asking or writing.
    answers: Mutex<Answers>,
    // Leaf lock.
    peers: Mutex<Peers>,
    // Taken before no other lock.
    asked: Mutex<HashMap<Key, Question>>,
    file: PathBuf,
    saved_at: Mutex<BootTime>,
    is_dirty: AtomicBool,
    /// There is something worth a write.
    news: Notify,
}

/// A question in flight.
type Question = Shared<BoxFuture<'static, Result<Verdict, String>>>;

/// Takes a question off the list when it ends, however it does.
struct Asked {
    inner: Arc<Inner>,
    key: Key,
}

// === impl Authorizer ===

impl Authorizer {
    /// Knows what the file holds, if there is one.
    #[must_use]
    pub fn open(means: Means, file: PathBuf) -> Self {
        let Kept { salt, wall, answers } = Kept::load(&file, &means.clock);
        let saved_at = means.clock.boot();
        Self(Arc::new(Inner {
            means,
            salt,
            wall,
            answers: Mutex::new(answers),
            peers: Mutex::default(),
            asked: Mutex::default(),
            file,
            saved_at: Mutex::new(saved_at),
            is_dirty: AtomicBool::new(false),
            news: Notify::new(),
        }))
    }

    /// Whether `caller` may do what `info` says.
    ///
    /// # Errors
    /// 401 or 403, as the cloud would answer; 429 where nothing is known and the cloud cannot be asked.
    ///
    /// # Cancel safety
    /// May be dropped; a question that was asked goes on.
    pub async fn check(&self, caller: &Caller, info: &RequestInfo) -> Result<(), Status> {
        let credential = &caller.credential;
        if *credential == Credential::Node {
            // The copy was made with this identity's own rights.
            return Ok(());
        }
        let inner = &self.0;
        let attributes = review::attributes(info);
        let key = inner.salt.key(credential, &attributes);
        let verdict = match inner.next(&key, credential) {
            Next::Answer(verdict) => verdict,
            Next::AnswerAndAsk(verdict) => {
                drop(inner.question(key, caller, attributes, BEHIND_MAX, None));
                verdict
            }
            Next::Ask => {
                let answer = inner.ask(key, caller, attributes).await;
                let left = |why: String| inner.unanswered(&key, credential).ok_or(why);
                answer.or_else(left).map_err(|why| not_known(credential, info, &why))?
            }
            Next::TryLater => return Err(not_known(credential, info, "it does not answer")),
        };
        in_status(verdict, credential, info)
    }

    /// Stores what is learned, until `token` is cancelled, and once more then. What another cluster said is deleted once
    /// `is_foreign` is cancelled.
    pub async fn keep(self, token: CancellationToken, is_foreign: CancellationToken) {
        let inner = &self.0;
        let ends = async || {
            tokio::select! {
                () = token.cancelled() => {}
                () = is_foreign.cancelled() => {}
            }
        };
        loop {
            let news = async {
                inner.news.notified().await;
                tokio::time::sleep(SAVED_AFTER).await;
            };
            tokio::select! {
                biased;
                () = ends() => break,
                () = news => {}
            }
            // Not cancelled half-way: the file has one writer at a time.
            inner.save().await;
            tokio::select! {
                biased;
                () = ends() => break,
                () = tokio::time::sleep(SAVED_EVERY) => {}
            }
        }
        if !is_foreign.is_cancelled() {
            inner.save().await;
            return;
        }
        if let Err(error) = std::fs::remove_file(&inner.file) {
            tracing::debug!(%error, path = %inner.file.display(), "No authorizations to forget");
        }
        token.cancelled().await;
    }
}

// === impl Inner ===

impl Inner {
    /// The answer to this caller now.
    fn next(&self, key: &Key, credential: &Credential) -> Next {
        let known = self.answers.lock().known(key, self.means.clock.boot());
        let reach = *self.means.reach.borrow();
        decision::next(known, reach, self.is_over(credential))
    }

    /// The answer to this caller where the cloud gave none.
    fn unanswered(&self, key: &Key, credential: &Credential) -> Option<Verdict> {
        let known = self.answers.lock().known(key, self.means.clock.boot());
        decision::unanswered(known, self.is_over(credential))
    }

    fn is_over(&self, credential: &Credential) -> bool {
        credential::ends_at(credential).is_some_and(|end| end <= self.wall.now())
    }

    /// The cloud's answer; waits no longer than the probes take to see that there will be none.
    async fn ask(self: &Arc<Self>, key: Key, caller: &Caller, attributes: Value) -> Result<Verdict, String> {
        let question = self.ask_in_turn(key, caller, attributes);
        let mut reach = self.means.reach.clone();
        let goes_away = async {
            if reach.wait_for(|reach| decision::is_away(*reach)).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            answer = question => answer,
            () = goes_away => Err("it does not answer".to_owned()),
        }
    }

    /// The cloud's answer to a question in flight, or to a new one once no other question of this peer is.
    async fn ask_in_turn(self: &Arc<Self>, key: Key, caller: &Caller, attributes: Value) -> Result<Verdict, String> {
        let in_flight = self.asked.lock().get(&key).cloned();
        if let Some(question) = in_flight {
            return question.await;
        }
        let turn = self.peers.lock().turn(caller.origin, self.means.clock.boot());
        let turn = turn.ok_or("too many peers ask")?;
        let turn = tokio::time::timeout(TURN_MAX, turn.lock_owned()).await;
        let turn = turn.map_err(|_| "other questions of this peer take too long")?;
        // Somebody else may have asked meanwhile.
        if let Next::Answer(verdict) | Next::AnswerAndAsk(verdict) = self.next(&key, &caller.credential) {
            return Ok(verdict);
        }
        if self.peers.lock().is_refused(caller.origin, self.means.clock.boot()) {
            return Err("it did not know a token of this peer a moment ago".to_owned());
        }
        let question = self.question(key, caller, attributes, QUESTIONS_MAX, Some(turn));
        let question = question.ok_or_else(|| format!("{QUESTIONS_MAX} questions are in flight already"))?;
        question.await
    }

    /// The question of this key: one in flight, or a new one, if fewer than `max` are. It needs nobody to wait for it, and
    /// keeps `turn` to its end.
    fn question(
        self: &Arc<Self>,
        key: Key,
        caller: &Caller,
        attributes: Value,
        max: usize,
        turn: Option<Turn>,
    ) -> Option<Question> {
        let mut asked = self.asked.lock();
        if let Some(question) = asked.get(&key) {
            return Some(question.clone());
        }
        if asked.len() >= max {
            return None;
        }
        let in_flight = Asked {
            inner: self.clone(),
            key,
        };
        let origin = caller.origin;
        let asking = self.means.reviews.ask(caller.credential.clone(), attributes);
        let answering = self.means.tasks.detached("ask-authorization", async move {
            let answer = asking.await;
            in_flight.inner.answered(key, origin, &answer);
            drop(turn);
            answer
        });
        let question = answering.map(|answer| answer.unwrap_or_else(|lost| Err(lost.to_string())));
        let question = question.boxed().shared();
        asked.insert(key, question.clone());
        Some(question)
    }

    fn answered(&self, key: Key, origin: Origin, answer: &Result<Verdict, String>) {
        let now = self.means.clock.boot();
        let Ok(verdict) = *answer else {
            self.answers.lock().failed(&key, now);
            self.means.nudge.notify_one();
            return;
        };
        let before = if verdict == Verdict::Unauthorized {
            self.peers.lock().refused(origin, now);
            self.answers.lock().forget(&key)
        } else {
            self.answers.lock().learn(key, verdict, Duration::ZERO, now)
        };
        self.is_dirty.store(true, Ordering::Relaxed);
        let is_old = now.since(*self.saved_at.lock()) >= RENEWALS_SAVED_EVERY;
        // Strangers, of whom there may be any number, are worth no write of their own.
        let is_news = match (before, verdict) {
            (Some(Verdict::Allowed), Verdict::Allowed) => is_old,
            (before, verdict) => before == Some(Verdict::Allowed) || verdict == Verdict::Allowed,
        };
        if is_news {
            self.news.notify_one();
        }
    }

    async fn save(self: &Arc<Self>) {
        if !self.is_dirty.swap(false, Ordering::Relaxed) {
            return;
        }
        let now = self.means.clock.boot();
        *self.saved_at.lock() = now;
        let inner = self.clone();
        let writing = tokio::task::spawn_blocking(move || {
            let text = kept::encode(&inner.salt, &inner.answers.lock(), &inner.wall, now);
            write_secret(&inner.file, text)
        });
        let error = match writing.await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        self.is_dirty.store(true, Ordering::Relaxed);
        tracing::warn!(
            error,
            "Authorizations not stored; after a restart without the cloud they are missing"
        );
    }
}

// === impl Asked ===

impl Drop for Asked {
    fn drop(&mut self) {
        self.inner.asked.lock().remove(&self.key);
    }
}

fn name_of(credential: &Credential) -> &str {
    match credential {
        Credential::Certificate { user, .. } => user,
        Credential::Node | Credential::Token(_) => "the bearer of this token",
    }
}

fn in_status(verdict: Verdict, credential: &Credential, info: &RequestInfo) -> Result<(), Status> {
    match verdict {
        Verdict::Allowed => Ok(()),
        Verdict::Unauthorized => Err(Status::unauthorized()),
        Verdict::Denied => Err(Status::forbidden(name_of(credential), info, "")),
    }
}

fn not_known(credential: &Credential, info: &RequestInfo, why: &str) -> Status {
    let message = format!(
        "whether {} may {} {} is not known on this node, and the cloud cannot be asked: {why}",
        name_of(credential),
        info.verb.as_str(),
        info.group_resource(),
    );
    Status::too_many_requests(message, RETRY_AFTER)
}
