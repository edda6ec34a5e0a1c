//! Events: they live in the namespace of the object they refer to, and for a limited time after their last change.
//!
//! Core events may be incomplete, for compatibility. Events of `events.k8s.io` have to be complete, and only their
//! series changes.

use serde_json::Value;
use yurt_apimachinery::Status;
use yurt_apimachinery::meta::{self, dns_subdomain_errors, label_key_errors};
use yurt_apimachinery::status::{ErrorList, FieldError};

use super::fields::{at, invalid, is_set, text};
use super::strategy::{MetaPass, Strategy};

/// Rules of `events`, by the group they are written through.
pub(crate) enum Events {
    /// The core group.
    Core,
    /// `events.k8s.io`.
    Strict,
}

/// Maximum length of `reportingInstance`, `action` and `reason`.
const WORD_MAX_LEN: usize = 128;
/// Maximum length of `message`.
const MESSAGE_MAX_LEN: usize = 1024;

impl Strategy for Events {
    fn validate(&self, object: &Value, old: Option<&Value>) -> Result<ErrorList, Status> {
        let mut errors = ErrorList::default();
        self.check_common(object, &mut errors);
        match (self, old) {
            (Self::Core, _) => {}
            (Self::Strict, None) => check_whole(object, &mut errors),
            (Self::Strict, Some(old)) => check_change(object, old, &mut errors),
        }
        Ok(errors)
    }

    fn meta_passes(&self) -> &'static [MetaPass] {
        match self {
            Self::Core => &[],
            Self::Strict => &[MetaPass::Change],
        }
    }

    /// In a pool an event may refer to an object of a namespace that only the cloud has.
    fn needs_namespace(&self) -> bool {
        false
    }
}

// === impl Events ===

impl Events {
    fn check_common(&self, object: &Value, errors: &mut ErrorList) {
        let namespace = meta::text(object, "namespace");
        let about = text(object, &["involvedObject", "namespace"]);
        let has_event_time = is_set(object, &["eventTime"]);
        let belongs = match (about, has_event_time) {
            ("", false) => matches!(namespace, "" | "default"),
            ("", true) => matches!(namespace, "default" | "kube-system"),
            (about, false) => about == namespace,
            (_, true) => true,
        };
        if !belongs {
            let why = "does not match event.namespace";
            errors.push(FieldError::invalid("involvedObject.namespace", about, why));
        }
        if has_event_time {
            let reporter = match self {
                Self::Core => "reportingComponent",
                Self::Strict => "reportingController",
            };
            check_words(object, reporter, errors);
        }
        let faults = dns_subdomain_errors(namespace);
        invalid(errors, "namespace", &namespace.into(), faults);
    }
}

/// Checks the fields that an event with `eventTime` requires; `reporter` is the view's name of the reporting
/// component.
fn check_words(object: &Value, reporter: &str, errors: &mut ErrorList) {
    let component = text(object, &["reportingComponent"]);
    if component.is_empty() {
        errors.push(FieldError::required(reporter, ""));
    }
    invalid(errors, reporter, &component.into(), label_key_errors(component));
    for field in ["reportingInstance", "action", "reason"] {
        let word = text(object, &[field]);
        if word.is_empty() {
            errors.push(FieldError::required(field, ""));
        }
        check_length(field, word, WORD_MAX_LEN, errors);
    }
    check_length("message", text(object, &["message"]), MESSAGE_MAX_LEN, errors);
}

fn check_length(field: &str, text: &str, limit: usize, errors: &mut ErrorList) {
    if text.len() > limit {
        let why = format!("can have at most {limit} characters");
        errors.push(FieldError::invalid(field, "", &why));
    }
}

fn check_series(object: &Value, errors: &mut ErrorList) {
    if !is_set(object, &["series"]) {
        return;
    }
    if at(object, &["series", "count"]).as_i64().unwrap_or_default() < 2 {
        errors.push(FieldError::invalid("series.count", "", "should be at least 2"));
    }
    if !is_set(object, &["series", "lastObservedTime"]) {
        errors.push(FieldError::required("series.lastObservedTime", ""));
    }
}

/// Checks a new event of `events.k8s.io`.
fn check_whole(object: &Value, errors: &mut ErrorList) {
    check_series(object, errors);
    if !is_set(object, &["eventTime"]) {
        errors.push(FieldError::required("eventTime", ""));
    }
    let kind = text(object, &["type"]);
    if !matches!(kind, "Normal" | "Warning") {
        let why = format!("has invalid value: {kind}");
        errors.push(FieldError::invalid("type", "", &why));
    }
    let source = |field: &str| !text(object, &["source", field]).is_empty();
    for (field, is_there) in [
        ("firstTimestamp", is_set(object, &["firstTimestamp"])),
        ("lastTimestamp", is_set(object, &["lastTimestamp"])),
        ("count", at(object, &["count"]).as_i64().unwrap_or_default() != 0),
        ("source", source("component") || source("host")),
    ] {
        if is_there {
            errors.push(FieldError::invalid(field, "", "needs to be unset"));
        }
    }
}

/// Checks a change through `events.k8s.io`: only the series may change.
fn check_change(object: &Value, old: &Value, errors: &mut ErrorList) {
    if object["series"] != old["series"] {
        check_series(object, errors);
    }
    for field in [
        "involvedObject",
        "reason",
        "message",
        "source",
        "firstTimestamp",
        "lastTimestamp",
        "count",
        // kube-apiserver checks it twice, and reports it twice.
        "reason",
        "type",
        "eventTime",
        "action",
        "related",
        "reportingComponent",
        "reportingInstance",
    ] {
        if object[field] != old[field] {
            let shown = match field {
                "reportingComponent" => "reportingController",
                field => field,
            };
            let mut error = FieldError::invalid(shown, object[field].clone(), "field is immutable");
            if matches!(field, "involvedObject" | "related") {
                error.message = format!("Invalid value: {}: field is immutable", go_reference(&object[field]));
            }
            errors.push(error);
        }
    }
}

/// Formats a reference as Go prints its type: every member, in its order.
fn go_reference(reference: &Value) -> String {
    let members = [
        ("Kind", "kind"),
        ("Namespace", "namespace"),
        ("Name", "name"),
        ("UID", "uid"),
        ("APIVersion", "apiVersion"),
        ("ResourceVersion", "resourceVersion"),
        ("FieldPath", "fieldPath"),
    ];
    let shown = members.map(|(go, json)| format!("\"{go}\":{}", Value::from(text(reference, &[json]))));
    format!("{{{}}}", shown.join(","))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn faults(strategy: &Events, object: &Value, old: Option<&Value>) -> Vec<String> {
        let errors = strategy.validate(object, old).unwrap();
        errors.iter().map(|error| error.field.clone()).collect()
    }

    /// Conformance: 5.11
    #[test]
    fn a_core_event_lives_beside_what_it_is_about() {
        let event = |namespace: &str, about: &str, time: Value| {
            json!({"metadata": {"namespace": namespace}, "involvedObject": {"namespace": about}, "eventTime": time,
                "reportingComponent": "a", "reportingInstance": "b", "action": "c", "reason": "d"})
        };
        let time = json!("2026-01-01T00:00:00.000000Z");
        for (namespace, about, time, is_right) in [
            ("a", "a", json!(null), true),
            ("a", "b", json!(null), false),
            ("default", "", json!(null), true),
            ("kube-system", "", json!(null), false),
            ("kube-system", "", time.clone(), true),
            ("a", "", time.clone(), false),
            ("a", "b", time, true),
        ] {
            let found = faults(&Events::Core, &event(namespace, about, time), None);
            assert_eq!(found.is_empty(), is_right, "{namespace} {about}: {found:?}");
        }
    }

    /// Conformance: 5.12
    #[test]
    fn a_new_event_is_whole_and_only_its_series_changes() {
        let event = json!({"metadata": {"namespace": "a"}, "involvedObject": {"namespace": "a"}, "type": "Normal",
            "eventTime": "2026-01-01T00:00:00.000000Z", "reportingComponent": "a/b", "reportingInstance": "i",
            "action": "x", "reason": "r", "message": "m"});
        assert!(faults(&Events::Strict, &event, None).is_empty());
        for (field, value, fault) in [
            ("eventTime", json!(null), "eventTime"),
            ("type", json!("Odd"), "type"),
            ("count", json!(1), "count"),
            ("source", json!({"host": "h"}), "source"),
            ("reportingComponent", json!("a b"), "reportingController"),
            ("action", json!("x".repeat(129)), "action"),
            ("message", json!("x".repeat(1025)), "message"),
            ("series", json!({"count": 1, "lastObservedTime": "t"}), "series.count"),
        ] {
            let mut odd = event.clone();
            odd[field] = value;
            assert_eq!(faults(&Events::Strict, &odd, None), [fault], "{field}");
        }
        let mut next = event.clone();
        next["series"] = json!({"count": 2, "lastObservedTime": "t"});
        assert!(faults(&Events::Strict, &next, Some(&event)).is_empty());
        next["message"] = json!("other");
        assert_eq!(faults(&Events::Strict, &next, Some(&event)), ["message"]);
        assert!(faults(&Events::Core, &next, Some(&event)).is_empty());
    }
}
