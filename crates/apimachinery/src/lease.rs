//! The part of a Lease that elections and heartbeats read and write.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::mapping::Mapping;
use crate::meta::label_key_errors;
use crate::object::Object;
use crate::status::{ErrorList, FieldError, Status};
use crate::time::MicroTime;

/// A view of a Lease's spec. Writing it back keeps every field it does not know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaseSpec {
    /// Holder of the lease; empty or unset if it is free.
    pub holder_identity: Option<String>,
    /// Time a candidate waits after the last renewal it saw, in seconds.
    pub lease_duration_seconds: Option<i64>,
    /// Time at which the present holder acquired the lease.
    pub acquire_time: Option<MicroTime>,
    /// Time at which the present holder last renewed it.
    pub renew_time: Option<MicroTime>,
    /// Number of changes of the holder.
    pub lease_transitions: Option<i64>,
    /// Strategy of the coordinated election.
    pub strategy: Option<String>,
    /// Candidate that the holder shall yield to.
    pub preferred_holder: Option<String>,
}

/// The strategy that kube-apiserver knows; others must be qualified names.
const KNOWN_STRATEGY: &str = "OldestEmulationVersion";

// === impl LeaseSpec ===

impl LeaseSpec {
    /// Reads the spec of a stored Lease.
    ///
    /// # Errors
    ///
    /// 400 if a field has the wrong type or format.
    pub fn from_object(object: &Object) -> Result<Self, Status> {
        #[derive(Deserialize)]
        struct Lease {
            #[serde(default)]
            spec: Option<Mapping<LeaseSpec>>,
        }
        let lease: Result<Lease, _> = crate::mapping::from_slice(&object.bytes());
        lease
            .map_err(|error| undecodable(&error))?
            .spec
            .unwrap_or_default()
            .0
            .check_range()
    }

    /// Reads the spec of a Lease that is being edited.
    ///
    /// # Errors
    ///
    /// 400 if a field has the wrong type or format.
    pub fn from_value(lease: &Value) -> Result<Self, Status> {
        let spec = lease.get("spec").unwrap_or(&Value::Null);
        let spec: Result<Option<Mapping<Self>>, _> = Option::deserialize(spec);
        spec.map_err(|error| undecodable(&error))?
            .unwrap_or_default()
            .0
            .check_range()
    }

    /// Writes the spec into a Lease: unset fields are removed, unknown ones kept. Times come out in UTC.
    pub fn write_to(&self, lease: &mut Value) {
        if !lease.is_object() {
            *lease = Value::Object(Map::new());
        }
        let spec = &mut lease["spec"];
        if !spec.is_object() {
            *spec = Value::Object(Map::new());
        }
        let time = |time: Option<MicroTime>| time.map(|time| Value::from(time.to_string()));
        let text = |text: &Option<String>| text.clone().map(Value::from);
        for (field, value) in [
            ("holderIdentity", text(&self.holder_identity)),
            ("leaseDurationSeconds", self.lease_duration_seconds.map(Value::from)),
            ("acquireTime", time(self.acquire_time)),
            ("renewTime", time(self.renew_time)),
            ("leaseTransitions", self.lease_transitions.map(Value::from)),
            ("strategy", text(&self.strategy)),
            ("preferredHolder", text(&self.preferred_holder)),
        ] {
            match (value, spec.as_object_mut()) {
                (Some(value), Some(spec)) => drop(spec.insert(field.to_owned(), value)),
                (None, Some(spec)) => drop(spec.remove(field)),
                (_, None) => {}
            }
        }
    }

    /// The holder, if the lease is held.
    pub fn holder(&self) -> Option<&str> {
        self.holder_identity.as_deref().filter(|holder| !holder.is_empty())
    }

    /// Violations that kube-apiserver would reject with 422.
    pub fn validate(&self) -> ErrorList {
        let mut errors = ErrorList::default();
        if let Some(seconds) = self.lease_duration_seconds.filter(|seconds| *seconds <= 0) {
            errors.push(FieldError::invalid(
                "spec.leaseDurationSeconds",
                seconds,
                "must be greater than 0",
            ));
        }
        if let Some(count) = self.lease_transitions.filter(|count| *count < 0) {
            errors.push(FieldError::invalid(
                "spec.leaseTransitions",
                count,
                "must be greater than or equal to 0",
            ));
        }
        if let Some(strategy) = &self.strategy {
            check_strategy(strategy, &mut errors);
        }
        let has_strategy = self.strategy.as_ref().is_some_and(|strategy| !strategy.is_empty());
        if !has_strategy && self.preferred_holder.as_ref().is_some_and(|holder| !holder.is_empty()) {
            let why = "may only be specified if `strategy` is defined";
            errors.push(FieldError::forbidden("spec.preferredHolder", why));
        }
        errors
    }

    /// Both numbers are 32 bits wide in the API.
    fn check_range(self) -> Result<Self, Status> {
        let numbers = [self.lease_duration_seconds, self.lease_transitions];
        match numbers
            .into_iter()
            .flatten()
            .find(|number| i32::try_from(*number).is_err())
        {
            Some(number) => Err(Status::bad_request(format!(
                "Lease in version \"v1\" cannot be handled as a Lease: json: cannot unmarshal number {number} into Go \
                 value of type int32"
            ))),
            None => Ok(self),
        }
    }
}

fn undecodable(error: &serde_json::Error) -> Status {
    Status::bad_request(format!("Lease in version \"v1\" cannot be handled as a Lease: {error}"))
}

fn check_strategy(strategy: &str, errors: &mut ErrorList) {
    const FIELD: &str = "spec.strategy";
    if strategy == KNOWN_STRATEGY {
        return;
    }
    if !strategy.contains('/') {
        errors.push(FieldError::not_supported(FIELD, strategy, &[KNOWN_STRATEGY]));
        return;
    }
    errors.extend(
        label_key_errors(strategy)
            .iter()
            .map(|fault| FieldError::invalid(FIELD, strategy, fault)),
    );
}

#[cfg(test)]
mod tests;
