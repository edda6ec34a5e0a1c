//! Authorization of reads from the hub's own replicas: exactly the rights that the cloud grants, by reviews at the
//! cloud and a cache of their verdicts.
//!
//! ```text
//!   caller, request ──► key (credential.rs) ──► known verdict (answers.rs) ──► decision (decision.rs, pure)
//!                                                   ▲          ▲                   │ answer, answer and ask, ask,
//!                      the file, at a start (kept.rs)          │ verdict           ▼ try later
//!                                                         review in flight ◄── the cloud (review.rs)
//! ```
//!
//! * A cached "allowed" costs no time in any state of the cloud. It is renewed in the background, and used as it is
//!   while the cloud is away. A cached "denied" is reviewed again after a short time. Without a verdict and without the
//!   cloud the caller gets 429: the client then waits and keeps its resourceVersion. A 403 would make it relist.
//! * At most one review is in flight per caller and attributes. All waiting requests share it, and it completes even if
//!   they hang up. One without a verdict is repeated after a few seconds (failed.rs). A peer that needs another review
//!   waits for its turn (peers.rs). So made-up tokens cost little.
//! * The verdicts survive a restart; callers are stored as keyed hashes. The file is written in the background, at most
//!   once a minute, and when the cloud is lost. A crash only costs further reviews.
//! * While the cloud is away, a token without a verdict of its own has those of its service account, if the cloud
//!   issued it through this hub. So a pod keeps its rights when the cloud is lost between the renewal of its token and
//!   its use.
//! * A success of the cloud that is passed on is an "allowed", too, if this node has the data that was read. One that
//!   proves no right, as that of a part, only ends a "denied".
//! * After a 401 no earlier verdict about the token counts, until the cloud knows it again 15 s later: a kube-apiserver
//!   that has just started may answer a valid token so. A restart of the hub knows none of them any more.
//! * A revoked right ends with the cloud's next verdict, or with its 403 to such a request. Until then it remains
//!   usable for [`decision::ALLOWED_FOR`] after the last "allowed", and for [`decision::KEPT_FOR`] while the cloud is
//!   away. A token is accepted until its `exp` at most.

pub mod answers;
pub mod credential;
pub mod decision;
pub mod failed;
pub mod kept;
mod learning;
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
use yurt_apimachinery::time::BootTime;
use yurt_apimachinery::{RequestInfo, Status};
use yurt_runtime::pki::write_secret;
use yurt_runtime::{Clock, TaskGroup};

use super::caller::{Caller, Credential};
use crate::health::CloudReach;
use crate::offline::tokens::{Accounts, RefusedTokens};
use answers::Answers;
use credential::{Key, Salt};
use decision::{AccessVerdict, KnownAccess, Next};
use failed::FailedReviews;
use kept::{KeptAnswers, Wall};
use peers::{Peers, Turn};
use review::{NoVerdict, Reviews};

/// Name of the file below the cache folder.
pub const FILE: &str = "authorizations";
/// Maximum number of reviews in flight; further ones get 429.
const QUESTIONS_MAX: usize = 128;
/// Maximum number of reviews in flight at which a background review may start.
const BEHIND_MAX: usize = 16;
/// Maximum wait for the turn of a peer with several reviews.
const TURN_MAX: Duration = Duration::from_secs(15);
/// `Retry-After` in seconds, without a verdict and without the cloud or with too many reviews.
const RETRY_AFTER: u32 = 5;
/// Delay of a write after a new verdict; further verdicts of that time share the write.
const SAVED_AFTER: Duration = Duration::from_secs(2);
/// Minimum time between two writes of the file.
const SAVED_EVERY: Duration = Duration::from_secs(60);
/// The same while the cloud is lost: a power cut may follow.
const SAVED_AT_LOSS_EVERY: Duration = Duration::from_secs(10);
/// Interval of writes for verdicts that were only renewed. After a restart such a verdict looks older by up to this
/// time.
const RENEWALS_SAVED_EVERY: Duration = Duration::from_secs(6 * 3600);

/// Authorizer with its cache of verdicts. Cheap to clone; clones share the state.
#[derive(Clone)]
pub struct Authorizer(Arc<Inner>);

/// Keys of a review.
#[derive(Clone, Copy)]
struct Keys {
    /// That of the caller.
    own: Key,
    /// That of its service account, if the hub knows it.
    account: Option<Key>,
    /// End of the caller's credential, Unix seconds.
    ends: Option<i64>,
}

/// Dependencies of the authorizer.
pub struct Means {
    /// Reviews at the cloud.
    pub reviews: Arc<dyn Reviews>,
    /// Service accounts of tokens.
    pub accounts: Accounts,
    /// Receives tokens that the cloud does not accept any more.
    pub refused: RefusedTokens,
    /// Reachability of the cloud.
    pub reach: watch::Receiver<CloudReach>,
    /// Wakes the cloud's prober.
    pub wake: Arc<Notify>,
    /// Clock for the ages of verdicts and the expiry of tokens.
    pub clock: Clock,
    /// Owner of the reviews.
    pub tasks: TaskGroup,
}

struct Inner {
    means: Means,
    salt: Salt,
    wall: Wall,
    // Leaf lock: never held during a review or a write.
    answers: Mutex<Answers>,
    // Leaf lock.
    failed: Mutex<FailedReviews>,
    // Leaf lock.
    peers: Mutex<Peers>,
    // No other lock is taken while this one is held.
    asked: Mutex<HashMap<Key, PendingReview>>,
    file: PathBuf,
    saved_at: Mutex<BootTime>,
    is_dirty: AtomicBool,
    /// Signals that the file should be written.
    news: Notify,
}

/// Review in flight.
type PendingReview = Shared<BoxFuture<'static, Result<AccessVerdict, NoVerdict>>>;

/// Removes a review from the map when it ends, with any result.
struct Asked {
    inner: Arc<Inner>,
    key: Key,
}

// === impl Authorizer ===

impl Authorizer {
    /// Creates an authorizer with the verdicts of the file, if there is one.
    #[must_use]
    pub fn open(means: Means, file: PathBuf) -> Self {
        let KeptAnswers { salt, wall, answers } = KeptAnswers::load(&file, &means.clock);
        let saved_at = means.clock.boot();
        Self(Arc::new(Inner {
            means,
            salt,
            wall,
            answers: Mutex::new(answers),
            failed: Mutex::default(),
            peers: Mutex::default(),
            asked: Mutex::default(),
            file,
            saved_at: Mutex::new(saved_at),
            is_dirty: AtomicBool::new(false),
            news: Notify::new(),
        }))
    }

    /// Checks that `caller` may do what `info` describes.
    ///
    /// # Errors
    /// 401 or 403, as the cloud would answer; 429 without a verdict and without the cloud.
    ///
    /// # Cancel safety
    /// May be dropped; a review in flight continues.
    pub async fn check(&self, caller: &Caller, info: &RequestInfo) -> Result<(), Status> {
        // The replica was filled with this identity's own rights.
        match caller.credential {
            Credential::Node => Ok(()),
            _ => self.review(caller, info).await,
        }
    }

    /// The same for data that was filled with the rights of another caller: the node has to have the right, too.
    ///
    /// # Errors
    /// As [`Self::check`].
    ///
    /// # Cancel safety
    /// As [`Self::check`].
    pub async fn review(&self, caller: &Caller, info: &RequestInfo) -> Result<(), Status> {
        let credential = &caller.credential;
        let inner = &self.0;
        let attributes = review::attributes(info);
        let key = inner.keys(credential, &attributes);
        let verdict = match inner.next(&key, credential) {
            Next::Answer(verdict) => verdict,
            Next::AnswerAndAsk(verdict) => {
                if inner.recent_failure(&key).is_none() {
                    drop(inner.question(key, caller, attributes, BEHIND_MAX, None));
                }
                verdict
            }
            Next::Ask => {
                let answer = inner.ask(key, caller, attributes).await;
                let left = |none: NoVerdict| match none {
                    NoVerdict::NotAsked { why, retry_after } => Err((why, retry_after)),
                    NoVerdict::Unanswered(why) => inner.unanswered(&key, credential).ok_or((why, RETRY_AFTER)),
                    NoVerdict::Undecided(why) => inner.undecided(&key, credential).ok_or((why, RETRY_AFTER)),
                };
                let later = |(why, seconds): (String, u32)| not_known(credential, info, &why, seconds);
                answer.or_else(left).map_err(later)?
            }
            Next::TryLater => return Err(not_known(credential, info, "the cloud does not answer", RETRY_AFTER)),
        };
        in_status(verdict, caller, info)
    }

    /// True if the cloud allowed `caller` what `info` describes, as far as this node remembers. Asks nothing.
    #[must_use]
    pub fn remembers(&self, caller: &Caller, info: &RequestInfo) -> bool {
        if caller.credential == Credential::Node {
            return true;
        }
        let key = self.0.keys(&caller.credential, &review::attributes(info));
        self.0.unanswered(&key, &caller.credential) == Some(AccessVerdict::Allowed)
    }

    /// Stores new verdicts until `token` is cancelled, and once more then. Deletes the verdicts of another cluster once
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
                tokio::select! {
                    () = inner.lost() => {}
                    () = tokio::time::sleep(SAVED_AFTER) => {}
                }
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
                () = inner.may_save() => {}
            }
        }
        if !is_foreign.is_cancelled() {
            inner.save().await;
            return;
        }
        if let Err(error) = std::fs::remove_file(&inner.file) {
            tracing::debug!(%error, path = %inner.file.display(), "Failed to delete cached authorizations");
        }
        token.cancelled().await;
    }
}

// === impl Inner ===

impl Inner {
    fn keys(&self, credential: &Credential, attributes: &Value) -> Keys {
        let account = match credential {
            Credential::Token(token) => (self.means.accounts)(token),
            Credential::Node | Credential::Certificate { .. } => None,
        };
        Keys {
            own: self.salt.key(credential, attributes),
            account: account.map(|account| self.salt.account_key(&account, attributes)),
            ends: credential::ends_at(credential),
        }
    }

    /// Returns the decision for this caller now.
    fn next(&self, key: &Keys, credential: &Credential) -> Next {
        let reach = *self.means.reach.borrow();
        let known = match reach.is_failing() {
            true => self.known_without_the_cloud(key),
            false => self.answers.lock().known(&key.own, self.means.clock.boot()),
        };
        decision::next(known, reach, self.is_over(credential))
    }

    /// Returns the cached verdict for a caller whose review the cloud did not answer.
    fn unanswered(&self, key: &Keys, credential: &Credential) -> Option<AccessVerdict> {
        decision::unanswered(self.known_without_the_cloud(key), self.is_over(credential))
    }

    /// Returns the cached verdict for a caller whose review the cloud answered without a verdict.
    fn undecided(&self, key: &Keys, credential: &Credential) -> Option<AccessVerdict> {
        let known = self.answers.lock().known(&key.own, self.means.clock.boot());
        decision::undecided(known, self.is_over(credential))
    }

    /// Returns the caller's verdict, else that of its service account.
    fn known_without_the_cloud(&self, key: &Keys) -> Option<KnownAccess> {
        let (answers, now) = (self.answers.lock(), self.means.clock.boot());
        let of_account = || key.account.and_then(|account| answers.known(&account, now));
        answers.known(&key.own, now).or_else(of_account)
    }

    /// Returns the result of a review that had no verdict a moment ago.
    fn recent_failure(&self, key: &Keys) -> Option<NoVerdict> {
        self.failed.lock().recent(&key.own, self.means.clock.boot())
    }

    fn is_over(&self, credential: &Credential) -> bool {
        credential::ends_at(credential).is_some_and(|end| end <= self.wall.now())
    }

    /// Returns the cloud's verdict. Stops waiting as soon as the probes find the cloud away.
    async fn ask(self: &Arc<Self>, key: Keys, caller: &Caller, attributes: Value) -> Result<AccessVerdict, NoVerdict> {
        let question = self.ask_in_turn(key, caller, attributes);
        let mut reach = self.means.reach.clone();
        let goes_away = async {
            if reach.wait_for(|reach| reach.is_failing()).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            answer = question => answer,
            () = goes_away => Err(NoVerdict::Unanswered("the cloud does not answer".to_owned())),
        }
    }

    /// Returns the verdict of the review in flight for `key`, or of a new one once the peer has no other review in
    /// flight.
    async fn ask_in_turn(
        self: &Arc<Self>,
        key: Keys,
        caller: &Caller,
        attributes: Value,
    ) -> Result<AccessVerdict, NoVerdict> {
        let later = |why: &str, retry_after| NoVerdict::NotAsked {
            why: why.to_owned(),
            retry_after,
        };
        let not_asked = |why: &str| later(why, RETRY_AFTER);
        let in_flight = self.asked.lock().get(&key.own).cloned();
        if let Some(question) = in_flight {
            return question.await;
        }
        if let Some(none) = self.recent_failure(&key) {
            return Err(none);
        }
        let turn = self.peers.lock().turn(caller.origin, self.means.clock.boot());
        let turn = turn.ok_or_else(|| not_asked("too many peers have reviews in flight"))?;
        let turn = tokio::time::timeout(TURN_MAX, turn.lock_owned()).await;
        let turn = turn.map_err(|_| not_asked("other reviews of this peer take too long"))?;
        // Another request may have completed the review in between.
        if let Next::Answer(verdict) | Next::AnswerAndAsk(verdict) = self.next(&key, &caller.credential) {
            return Ok(verdict);
        }
        if let Some(none) = self.recent_failure(&key) {
            return Err(none);
        }
        let refused = self.peers.lock().refusal(caller.origin, self.means.clock.boot());
        if let Some(refusal) = refused {
            if refusal.caller == key.own.caller {
                return Ok(AccessVerdict::Unauthorized);
            }
            let why = "the cloud did not know a token of this peer a moment ago";
            return Err(later(why, refusal.seconds_left));
        }
        let question = self.question(key, caller, attributes, QUESTIONS_MAX, Some(turn));
        let question = question.ok_or_else(|| not_asked(&format!("{QUESTIONS_MAX} reviews are in flight already")))?;
        question.await
    }

    /// Returns the review of this key: the one in flight, or a new one if fewer than `max` are in flight. It runs
    /// without waiting callers, and keeps `turn` to its end.
    fn question(
        self: &Arc<Self>,
        key: Keys,
        caller: &Caller,
        attributes: Value,
        max: usize,
        turn: Option<Turn>,
    ) -> Option<PendingReview> {
        let mut asked = self.asked.lock();
        if let Some(question) = asked.get(&key.own) {
            return Some(question.clone());
        }
        if asked.len() >= max {
            return None;
        }
        let in_flight = Asked {
            inner: self.clone(),
            key: key.own,
        };
        let (origin, credential) = (caller.origin, caller.credential.clone());
        let asking = self.means.reviews.ask(credential.clone(), attributes);
        let stop = self.means.tasks.token();
        let answering = self.means.tasks.detached("ask-authorization", async move {
            let answer = stop.run_until_cancelled(asking).await;
            let answer = answer.unwrap_or_else(|| Err("the hub stops".to_owned().into()));
            if let (Ok(AccessVerdict::Unauthorized), Credential::Token(token)) = (&answer, &credential) {
                (in_flight.inner.means.refused)(token);
            }
            in_flight.inner.answered(key, origin, &answer);
            drop(turn);
            answer
        });
        let question = answering.map(|answer| answer.unwrap_or_else(|lost| Err(lost.to_string().into())));
        let question = question.boxed().shared();
        asked.insert(key.own, question.clone());
        Some(question)
    }

    /// Waits until the file may be written again. The loss of the cloud shortens the wait.
    async fn may_save(&self) {
        tokio::time::sleep(SAVED_AT_LOSS_EVERY).await;
        tokio::select! {
            () = self.lost() => {}
            () = tokio::time::sleep(SAVED_EVERY - SAVED_AT_LOSS_EVERY) => {}
        }
    }

    /// Resolves while the cloud is lost.
    async fn lost(&self) {
        let mut reach = self.means.reach.clone();
        if reach.wait_for(|reach| reach.is_lost()).await.is_err() {
            std::future::pending().await
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
            "Failed to store authorizations; they will be missing after a restart without the cloud"
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
        Credential::Token(_) => "the bearer of this token",
        Credential::Node => "this node",
    }
}

fn in_status(verdict: AccessVerdict, caller: &Caller, info: &RequestInfo) -> Result<(), Status> {
    match verdict {
        AccessVerdict::Allowed => Ok(()),
        AccessVerdict::Unauthorized => Err(Status::unauthorized()),
        AccessVerdict::Denied => {
            // The cloud accepted the token, so what it claims is true.
            let account = caller.account();
            Err(info.forbidden(account.as_deref().unwrap_or(name_of(&caller.credential)), ""))
        }
    }
}

fn not_known(credential: &Credential, info: &RequestInfo, why: &str, retry_after: u32) -> Status {
    let message = format!(
        "whether {} may {} {} is not known on this node, and the cloud cannot review it: {why}",
        name_of(credential),
        info.verb.as_str(),
        info.group_resource(),
    );
    Status::too_many_requests(message, retry_after)
}
