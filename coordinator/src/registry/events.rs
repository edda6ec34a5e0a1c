//! Core events: they live in the namespace of what they are about, and for an hour.

use serde_json::Value;
use yurt_apimachinery::status::FieldError;
use yurt_apimachinery::{ResourceVersion, Status};

use super::strategy::Strategy;
use yurt_runtime::UnixTime;

/// Rules of `events`.
pub(crate) struct Events;

/// How long an event lives after its last change, as in kube-apiserver.
const TTL_SECONDS: u64 = 3600;

/// Whether an event last written at `rv` has lived long enough: our RVs hold the time of the write in microseconds.
pub(crate) fn is_expired(rv: ResourceVersion, now: UnixTime) -> bool {
    let written = (rv.0 & !ResourceVersion::OWN_BIT) / 1_000_000;
    u64::try_from(now.secs).is_ok_and(|now| now.saturating_sub(written) >= TTL_SECONDS)
}

impl Strategy for Events {
    fn validate(&self, object: &Value, _old: Option<&Value>) -> Result<Vec<FieldError>, Status> {
        let about = object["involvedObject"]["namespace"].as_str().unwrap_or_default();
        // Events of cluster-scoped objects are kept in default.
        let expected = if about.is_empty() { "default" } else { about };
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
        let is_legacy = object["eventTime"].is_null();
        if is_legacy && namespace != expected && !(about.is_empty() && namespace == "kube-system") {
            let why = "does not match event.namespace";
            return Ok(vec![FieldError::invalid("involvedObject.namespace", about, why)]);
        }
        Ok(Vec::new())
    }

    /// In a pool an event may be about an object of a namespace that only the cloud has.
    fn needs_namespace(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_live_for_an_hour_after_their_last_change() {
        let written = ResourceVersion(ResourceVersion::OWN_BIT | (1_000_000 * 1_000_000));
        let at = |secs| UnixTime { secs, nanos: 0 };
        assert!(!is_expired(written, at(1_003_599)) && is_expired(written, at(1_003_600)));
        assert!(!is_expired(written, at(10)), "the clock was set back");
    }
}
