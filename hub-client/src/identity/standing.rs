//! State of the node's certificate for `/debug/state.json`, readiness and the log.

use serde_json::{Value, json};
use yurt_apimachinery::time::Time;

use super::plan::{JoinOutcome, Situation, Step, Validity};

/// State of the certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// `Valid`, `Expired`, `NotYetValid` or `Missing`; empty before the first look.
    state: &'static str,
    validity: Option<Validity>,
    /// Cause of the state and the fix; empty if there is nothing to do.
    pub(crate) message: String,
    /// Name of the request for the next certificate.
    request: Option<String>,
    /// Last failure of a request.
    failure: Option<String>,
}

// === impl Standing ===

impl Standing {
    /// Records the facts of a decision. The kubelet renews the certificate unless `is_own`.
    pub(super) fn update(&mut self, situation: &Situation, step: Step, is_own: bool) {
        self.validity = situation.certificate;
        (self.state, self.message) = match situation.certificate {
            None => ("Missing", missing(is_own)),
            Some(own) if step == Step::ClockBehind => ("NotYetValid", behind(&own, situation.now)),
            Some(own) if situation.now > own.not_after => ("Expired", expired(&own, step, is_own)),
            Some(own) => ("Valid", overdue(&own, situation.now, is_own)),
        };
    }

    /// Records the outcome of a request.
    pub(super) fn note(&mut self, outcome: &JoinOutcome, request: Option<&str>) {
        self.request = request
            .map(str::to_owned)
            .filter(|_| *outcome != JoinOutcome::Installed);
        self.failure = match outcome {
            JoinOutcome::Installed | JoinOutcome::Pending => None,
            JoinOutcome::Denied(why)
            | JoinOutcome::Unknown(why)
            | JoinOutcome::Refused(why)
            | JoinOutcome::Unanswered(why) => Some(why.clone()),
        };
    }

    /// Records that a new certificate is due for renewal at once, again.
    pub(super) fn note_ahead(&mut self, now: i64) {
        self.failure = Some(format!(
            "a new certificate is due for renewal at once: it is valid until {}, and this node's clock says {}; set the \
             clock, or let the signer issue longer certificates",
            self.valid_until(),
            time(now)
        ));
    }

    /// Records that the certificate is not due: a failure of an earlier request needs no attention any more.
    pub(super) fn note_rest(&mut self) {
        self.failure = None;
    }

    /// True while the certificate is valid by this node's clock.
    pub(crate) fn is_valid(&self) -> bool {
        self.state == "Valid"
    }

    /// The fault with the last failure; `None` if nothing needs attention.
    pub(crate) fn trouble(&self) -> Option<String> {
        let parts = [Some(&self.message), self.failure.as_ref()];
        let parts: Vec<&str> = parts
            .into_iter()
            .flatten()
            .map(String::as_str)
            .filter(|part| !part.is_empty())
            .collect();
        (!parts.is_empty()).then(|| parts.join("; last attempt: "))
    }

    /// Last second of the certificate, Unix; 0 without one.
    pub(crate) fn not_after(&self) -> i64 {
        self.validity.map_or(0, |own| own.not_after)
    }

    pub(crate) fn valid_until(&self) -> String {
        self.validity.map(|own| time(own.not_after)).unwrap_or_default()
    }

    /// The part `certificate` of `/debug/state.json`.
    pub(crate) fn describe(&self) -> Value {
        json!({
            "state": self.state,
            "validFrom": self.validity.map(|own| time(own.not_before)),
            "validUntil": self.validity.map(|own| time(own.not_after)),
            "renewAt": self.validity.map(|own| time(own.renew_at())),
            "request": self.request,
            "message": self.trouble().unwrap_or_default(),
        })
    }
}

fn time(secs: i64) -> String {
    Time::from_unix(secs).to_string()
}

fn missing(is_own: bool) -> String {
    match is_own {
        true => "no client certificate yet; a new hub needs --join-token or --bootstrap-file".to_owned(),
        false => "no readable client certificate in --kubeconfig".to_owned(),
    }
}

fn behind(own: &Validity, now: i64) -> String {
    format!(
        "the client certificate is valid from {} on, and this node's clock says {}; set the clock",
        time(own.not_before),
        time(now)
    )
}

fn expired(own: &Validity, step: Step, is_own: bool) -> String {
    let fix = match (is_own, step) {
        (false, _) => "renew the kubelet's certificate (kubeadm join with a new token)",
        (true, Step::Stuck) => {
            "create a token with `kubeadm token create`, then start with --join-token or POST it to /v1/token"
        }
        (true, _) => "joining again",
    };
    format!("the client certificate expired at {}; {fix}", time(own.not_after))
}

/// Warns in the last tenth of the lifetime, when a renewal should have succeeded.
fn overdue(own: &Validity, now: i64, is_own: bool) -> String {
    if !own.is_overdue(now) {
        return String::new();
    }
    let who = if is_own { "hub" } else { "kubelet" };
    format!(
        "the client certificate ends at {}, and the {who} has not renewed it; requests are approved by \
         kube-controller-manager or yurt-manager",
        time(own.not_after)
    )
}

#[cfg(test)]
mod tests {
    use super::super::plan;
    use super::*;

    const OWN: Validity = Validity {
        not_before: 1_000,
        not_after: 2_000,
        seed: 0,
    };

    fn at(now: i64, can_join: bool, is_own: bool) -> Standing {
        let situation = Situation {
            now,
            certificate: Some(OWN),
            can_join,
        };
        let mut standing = Standing::default();
        standing.update(&situation, plan::next(&situation), is_own);
        standing
    }

    #[test]
    fn every_state_says_what_to_do() {
        let cases = [
            (999, false, true, "NotYetValid", "set the clock"),
            (1_950, false, true, "Valid", "has not renewed"),
            (2_001, false, true, "Expired", "/v1/token"),
            (2_001, true, true, "Expired", "joining again"),
            (2_001, false, false, "Expired", "kubeadm join"),
        ];
        for (now, can_join, is_own, state, fix) in cases {
            let standing = at(now, can_join, is_own);
            assert_eq!(standing.state, state);
            assert!(standing.trouble().unwrap().contains(fix), "{standing:?}");
            assert_eq!(standing.is_valid(), state == "Valid");
        }
        assert_eq!(at(1_500, false, true).trouble(), None);
    }

    #[test]
    fn failure_of_a_request_is_shown_until_the_next_success() {
        let mut standing = at(1_800, true, true);
        standing.note(&JoinOutcome::Refused("401".to_owned()), Some("csr-1"));
        assert_eq!(standing.describe()["message"], "401");
        standing.note(&JoinOutcome::Pending, Some("csr-1"));
        assert_eq!(
            (standing.trouble(), &standing.describe()["request"]),
            (None, &json!("csr-1"))
        );
        standing.note_ahead(1_800);
        assert!(
            standing
                .trouble()
                .is_some_and(|trouble| trouble.contains("set the clock"))
        );
        standing.note_rest();
        assert_eq!(standing.trouble(), None, "the clock was set");
        standing.note(&JoinOutcome::Installed, Some("csr-1"));
        assert!(standing.describe()["request"].is_null());
    }
}
