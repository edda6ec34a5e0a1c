//! Learning of verdicts from what the cloud answers: to reviews, and to the reads that the hub passes on.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::Value;
use yurt_apimachinery::{RequestInfo, Verb};

use super::credential::Key;
use super::decision::AccessVerdict;
use super::{Authorizer, Inner, Keys, NoVerdict, RENEWALS_SAVED_EVERY, review};
use crate::proxy::caller::{Caller, Credential, Origin};

// === impl Authorizer ===

impl Authorizer {
    /// Learns from a success of the cloud. Saves the review if the success `is_proof` that `caller` may do what `info`
    /// describes. Else it ends a "denied", which is not the cloud's last word any more.
    pub fn learn_success(&self, caller: &Caller, info: &RequestInfo, is_proof: bool) {
        let key = self.0.keys(&caller.credential, &review::attributes(info));
        // Gets of many names must not evict the right to the list and the watch.
        let has_room = |key: &Key| self.0.has_room(key);
        let has_room = || info.verb != Verb::Get || (has_room(&key.own) && key.account.as_ref().is_none_or(has_room));
        if is_proof && caller.credential != Credential::Node && has_room() {
            self.0.answered(key, caller.origin, &Ok(AccessVerdict::Allowed));
        } else {
            self.0.succeeded(&key);
        }
    }

    /// Learns from a refusal of the cloud that `caller` may no longer do what `info` describes. Replaces "allowed"
    /// alone, of the caller or of its account: denied callers are unlimited in number.
    pub fn learn_denied(&self, caller: &Caller, info: &RequestInfo) {
        let key = self.0.keys(&caller.credential, &review::attributes(info));
        let is_allowed = |key: Key| self.0.answers.lock().is_allowed(&key);
        if is_allowed(key.own) || key.account.is_some_and(is_allowed) {
            self.0.learn(key, AccessVerdict::Denied);
        }
    }

    /// Learns from a 401 of the cloud that it does not know the token of `caller` at present.
    pub fn learn_unknown(&self, caller: &Caller) {
        let Credential::Token(token) = &caller.credential else {
            return;
        };
        (self.0.means.refused)(token);
        let key = self.0.keys(&caller.credential, &Value::Null).own;
        self.0.set_known(&key, false);
    }
}

// === impl Inner ===

impl Inner {
    /// Learns from the end of a review.
    pub(super) fn answered(&self, key: Keys, origin: Origin, answer: &Result<AccessVerdict, NoVerdict>) {
        let now = self.means.clock.boot();
        let verdict = match answer {
            Ok(verdict) => *verdict,
            Err(none) => {
                self.failed.lock().failed(key.own, none, now);
                self.means.wake.notify_one();
                return;
            }
        };
        self.failed.lock().answered(&key.own);
        match verdict {
            AccessVerdict::Unauthorized => self.peers.lock().refused(origin, key.own.caller, now),
            AccessVerdict::Allowed | AccessVerdict::Denied => self.learn(key, verdict),
        }
        self.set_known(&key.own, verdict != AccessVerdict::Unauthorized);
        self.is_dirty.store(true, Ordering::Relaxed);
    }

    /// Caches a verdict about a caller, and about its account.
    fn learn(&self, key: Keys, verdict: AccessVerdict) {
        let now = self.means.clock.boot();
        let before = {
            let mut answers = self.answers.lock();
            if let Some(account) = key.account {
                answers.learn(account, None, verdict, Duration::ZERO, now);
            }
            answers.learn(key.own, key.ends, verdict, Duration::ZERO, now)
        };
        self.is_dirty.store(true, Ordering::Relaxed);
        let is_old = now.since(*self.saved_at.lock()) >= RENEWALS_SAVED_EVERY;
        // Denied callers are unlimited in number, so they trigger no write of their own.
        let is_news = match (before, verdict) {
            (Some(AccessVerdict::Allowed), AccessVerdict::Allowed) => is_old,
            (before, verdict) => before == Some(AccessVerdict::Allowed) || verdict == AccessVerdict::Allowed,
        };
        if is_news {
            self.news.notify_one();
        }
    }

    /// True if a verdict for `key` evicts none that may count again. Called while the cloud answers: without it, a
    /// clock that is ahead by mistake would cost rights.
    fn has_room(&self, key: &Key) -> bool {
        let mut answers = self.answers.lock();
        if answers.has_room(key) {
            return true;
        }
        answers.remove_ended(self.wall.now(), self.means.clock.boot());
        answers.has_room(key)
    }

    /// Notes whether the cloud knows the caller of `key`: its verdicts count, or do not.
    fn set_known(&self, key: &Key, is_known: bool) {
        let (mut answers, now) = (self.answers.lock(), self.means.clock.boot());
        let is_changed = match is_known {
            true => answers.revive(key, now),
            false => answers.suspend(key, now),
        };
        drop(answers);
        if is_changed {
            self.has_news();
        }
    }

    /// Notes a success of the cloud for a caller: "denied" of it and of its account is not the last word any more.
    fn succeeded(&self, key: &Keys) {
        let keys = [Some(key.own), key.account].into_iter().flatten();
        let denied = keys.filter(|key| self.answers.lock().forget_denied(key)).count();
        if denied > 0 {
            self.has_news();
        }
        self.set_known(&key.own, true);
    }

    /// Has the file written soon.
    fn has_news(&self) {
        self.is_dirty.store(true, Ordering::Relaxed);
        self.news.notify_one();
    }
}
