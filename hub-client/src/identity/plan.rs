//! Decides the next step for the node's certificate. Pure: the caller passes the time and the facts.

use std::time::Duration;

/// Renewal begins in this part of a certificate's lifetime, thousandths: as in client-go's certificate manager.
const RENEWAL: std::ops::RangeInclusive<i64> = 700..=900;
/// Pause between two looks at a pending request while an administrator probably approves it.
const POLL_SOON: Duration = Duration::from_secs(5);
/// The same later on.
const POLL_LATER: Duration = Duration::from_secs(30);
/// Looks before the pause becomes longer.
const SOON_LOOKS: u32 = 24;
/// First pause after a failure; it doubles with each further one.
const RETRY_MIN: Duration = Duration::from_secs(5);
/// Maximum pause after a failure.
const RETRY_MAX: Duration = Duration::from_secs(300);

/// Validity of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// First second, Unix.
    pub not_before: i64,
    /// Last second, Unix.
    pub not_after: i64,
    /// Bits of the certificate's hash. They spread the renewals of many nodes, and are the same after a restart.
    pub seed: u32,
}

/// Facts of one decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Situation {
    /// Wall clock, Unix seconds.
    pub now: i64,
    /// The present certificate.
    pub certificate: Option<Validity>,
    /// True if the hub has a token or a kubeconfig to join with.
    pub can_join: bool,
}

/// Credential of a request for a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credential {
    /// The present certificate.
    Certificate,
    /// Join token or bootstrap kubeconfig.
    Bootstrap,
}

/// Next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing to do before this time, Unix seconds.
    Rest {
        /// Begin of the renewal.
        until: i64,
    },
    /// Request a certificate, or look at the present request.
    Request(Credential),
    /// The certificate is valid in the future only, so the node's clock is behind.
    ClockBehind,
    /// There is no valid certificate, and nothing to join with.
    Stuck,
}

/// Result of one attempt. The texts are causes, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JoinOutcome {
    /// The new certificate is in its file.
    Installed,
    /// The request is not approved yet.
    Pending,
    /// An approver denied the request, or the signer failed. It stays so until the request is deleted.
    Denied(String),
    /// The servers do not know the token, or not yet: they learn of a new one a moment after its creation.
    Unknown(String),
    /// The servers do not accept the credential or the request.
    Refused(String),
    /// No server answered, or one that cannot work at present.
    Unanswered(String),
}

/// Consequence of an outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Decide again immediately.
    Continue,
    /// Decide again after this pause.
    Pause(Duration),
    /// The start fails with this text.
    Fail(String),
}

// === impl Validity ===

impl Validity {
    /// Begin of the renewal, Unix seconds: at 70 to 90 % of the lifetime.
    #[must_use]
    pub fn renew_at(&self) -> i64 {
        let lifetime = i128::from(self.not_after) - i128::from(self.not_before);
        let width = RENEWAL.end() - RENEWAL.start() + 1;
        let part = RENEWAL.start() + i64::from(self.seed) % width;
        let at = i128::from(self.not_before) + lifetime.max(0) * i128::from(part) / 1000;
        i64::try_from(at).unwrap_or(i64::MAX)
    }

    /// True in the last tenth of the lifetime and after it: a renewal should have succeeded.
    #[must_use]
    pub fn is_overdue(&self, now: i64) -> bool {
        let lifetime = self.not_after.saturating_sub(self.not_before);
        now >= self.not_after.saturating_sub(lifetime / 10)
    }
}

// === impl JoinOutcome ===

impl JoinOutcome {
    /// Returns the outcome of several servers: a server that answers says more than one that does not.
    #[must_use]
    pub fn or(self, later: Self) -> Self {
        match (&self, &later) {
            (Self::Unknown(_) | Self::Refused(_), Self::Unanswered(_)) => self,
            _ => later,
        }
    }

    /// True if another server may decide otherwise. One that refuses may be the wrong one, or have a wrong certificate.
    #[must_use]
    pub fn is_of_one_server(&self) -> bool {
        matches!(self, Self::Unanswered(_) | Self::Unknown(_) | Self::Refused(_))
    }
}

/// Decides the next step.
#[must_use]
pub fn next(situation: &Situation) -> Step {
    let join = || match situation.can_join {
        true => Step::Request(Credential::Bootstrap),
        false => Step::Stuck,
    };
    match &situation.certificate {
        None => join(),
        Some(own) if situation.now > own.not_after => join(),
        Some(own) if situation.now < own.not_before => Step::ClockBehind,
        Some(own) if situation.now < own.renew_at() => Step::Rest { until: own.renew_at() },
        Some(_) => Step::Request(Credential::Certificate),
    }
}

/// Decides what follows an outcome. `attempts` counts the outcomes of the same kind without interruption, this one
/// included; for [`JoinOutcome::Installed`] it counts the certificates since one was not due. A second certificate in a
/// row that is due at once shows a clock that is ahead: the next one would be no better.
///
/// A first start waits for `discovery` until the servers know its token, as kubeadm does. It is `None` for a hub that
/// serves data, which never stops because of its certificate.
#[must_use]
pub fn after(outcome: &JoinOutcome, attempts: u32, discovery: Option<Duration>) -> Next {
    match outcome {
        JoinOutcome::Unknown(why) if let Some(discovery) = discovery => {
            match POLL_SOON.saturating_mul(attempts) > discovery {
                true => Next::Fail(why.clone()),
                false => Next::Pause(POLL_SOON),
            }
        }
        JoinOutcome::Installed if attempts <= 1 => Next::Continue,
        JoinOutcome::Pending if attempts <= SOON_LOOKS => Next::Pause(POLL_SOON),
        JoinOutcome::Pending => Next::Pause(POLL_LATER),
        JoinOutcome::Denied(why) | JoinOutcome::Refused(why) if discovery.is_some() => Next::Fail(why.clone()),
        JoinOutcome::Installed
        | JoinOutcome::Denied(_)
        | JoinOutcome::Unknown(_)
        | JoinOutcome::Refused(_)
        | JoinOutcome::Unanswered(_) => {
            let doubled = RETRY_MIN.saturating_mul(1 << attempts.saturating_sub(1).min(16));
            Next::Pause(doubled.min(RETRY_MAX))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DISCOVERY: Duration = Duration::from_secs(300);

    fn validities() -> impl Strategy<Value = Validity> {
        (any::<i64>(), 0..=i64::MAX, any::<u32>()).prop_map(|(not_before, lifetime, seed)| Validity {
            not_before,
            not_after: not_before.saturating_add(lifetime),
            seed,
        })
    }

    fn outcomes() -> impl Strategy<Value = JoinOutcome> {
        prop_oneof![
            Just(JoinOutcome::Pending),
            Just(JoinOutcome::Denied("no".to_owned())),
            Just(JoinOutcome::Unknown("401".to_owned())),
            Just(JoinOutcome::Refused("403".to_owned())),
            Just(JoinOutcome::Unanswered("away".to_owned())),
        ]
    }

    proptest! {
        #[test]
        fn renewal_begins_at_70_to_90_percent_of_the_lifetime(own in validities()) {
            let lifetime = i128::from(own.not_after) - i128::from(own.not_before);
            let elapsed = i128::from(own.renew_at()) - i128::from(own.not_before);
            prop_assert!(elapsed >= lifetime * 7 / 10 && elapsed <= lifetime * 9 / 10, "{elapsed} of {lifetime}");
        }

        #[test]
        fn certificate_before_its_renewal_is_left_alone(own in validities(), now: i64, can_join: bool) {
            let step = next(&Situation { now, certificate: Some(own), can_join });
            let rests = (own.not_before..own.renew_at()).contains(&now);
            prop_assert_eq!(step == Step::Rest { until: own.renew_at() }, rests, "{:?}", step);
        }

        #[test]
        fn invalid_certificate_is_never_presented(own in validities(), now: i64, can_join: bool) {
            let step = next(&Situation { now, certificate: Some(own), can_join });
            let is_valid = (own.not_before..=own.not_after).contains(&now);
            prop_assert!(is_valid || step != Step::Request(Credential::Certificate), "{step:?}");
            prop_assert!(!is_valid || step != Step::Request(Credential::Bootstrap), "{step:?}");
        }

        #[test]
        fn hub_that_can_join_is_never_stuck(own in proptest::option::of(validities()), now: i64) {
            prop_assert_ne!(next(&Situation { now, certificate: own, can_join: true }), Step::Stuck);
        }

        #[test]
        fn clock_that_is_behind_costs_no_join_token(own in validities(), early in 1..1_000_000_i64, can_join: bool) {
            let now = own.not_before.saturating_sub(early);
            prop_assume!(now < own.not_before);
            prop_assert_eq!(next(&Situation { now, certificate: Some(own), can_join }), Step::ClockBehind);
        }

        #[test]
        fn attempts_without_success_are_spread_in_time(outcome in outcomes(), attempts: u32) {
            let Next::Pause(pause) = after(&outcome, attempts, None) else { panic!("{outcome:?} must wait") };
            prop_assert!((POLL_SOON..=RETRY_MAX).contains(&pause), "{pause:?}");
            let Next::Pause(later) = after(&outcome, attempts.saturating_add(1), None) else { panic!() };
            prop_assert!(later >= pause);
        }
    }

    #[test]
    fn only_a_first_start_fails_and_only_for_what_waiting_does_not_change() {
        let why = "why".to_owned();
        for outcome in [JoinOutcome::Denied(why.clone()), JoinOutcome::Refused(why.clone())] {
            assert_eq!(after(&outcome, 1, Some(DISCOVERY)), Next::Fail(why.clone()));
        }
        for outcome in [JoinOutcome::Pending, JoinOutcome::Unanswered(why)] {
            assert!(matches!(after(&outcome, 1, Some(DISCOVERY)), Next::Pause(_)));
        }
        assert_eq!(after(&JoinOutcome::Installed, 1, Some(DISCOVERY)), Next::Continue);
    }

    #[test]
    fn certificates_that_are_due_at_once_are_requested_less_and_less() {
        let pause = |attempts| match after(&JoinOutcome::Installed, attempts, None) {
            Next::Pause(pause) => pause,
            next => panic!("{next:?}"),
        };
        assert!(pause(2) >= RETRY_MIN && pause(3) > pause(2));
        assert_eq!(pause(1_000), RETRY_MAX);
    }

    #[test]
    fn token_that_no_server_knows_is_tried_for_a_time_and_no_longer() {
        let unknown = JoinOutcome::Unknown("not signed".to_owned());
        let mut waited = Duration::ZERO;
        for attempts in 1..1_000 {
            match after(&unknown, attempts, Some(DISCOVERY)) {
                Next::Pause(pause) => waited += pause,
                next => {
                    assert_eq!(next, Next::Fail("not signed".to_owned()));
                    break;
                }
            }
        }
        assert_eq!(waited, DISCOVERY);
        let at_once = after(&unknown, 1, Some(Duration::ZERO));
        assert_eq!(at_once, Next::Fail("not signed".to_owned()));
    }
}
