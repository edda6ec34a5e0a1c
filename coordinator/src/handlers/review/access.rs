//! Access reviews: questions about the rights of the caller and of others, and the list of a caller's rules.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use yurt_apimachinery::meta::{label_key_errors, label_value_errors};
use yurt_apimachinery::selector::LabelSelector;
use yurt_apimachinery::status::{ErrorList, FieldError};
use yurt_apimachinery::{GroupKind, Status};

use super::ReviewRequest;
use crate::authn::User;
use crate::authz::{Attributes, Decision, exact_fields};
use crate::config::Profile;

const RESOURCE: &str = "spec.resourceAttributes";
const PATH: &str = "spec.nonResourceAttributes";

/// Attributes in question, and the parts that could not be parsed.
struct AccessQuery<'a> {
    attributes: Attributes<'a>,
    warnings: Vec<String>,
}

/// SelfSubjectAccessReview: rights of the caller.
pub(super) fn may_i(question: &ReviewRequest<'_>) -> Result<Value, Status> {
    check(question, ErrorList::default())?;
    decide(question, question.user)
}

/// SubjectAccessReview: rights of another user.
pub(super) fn may_they(question: &ReviewRequest<'_>) -> Result<Value, Status> {
    let spec = &question.review["spec"];
    let text = |field: &str| spec[field].as_str().unwrap_or_default().to_owned();
    let words = |list: &Value| -> Vec<String> {
        let words = list.as_array().into_iter().flatten();
        words.filter_map(|word| word.as_str().map(str::to_owned)).collect()
    };
    let extra = spec["extra"].as_object().into_iter().flatten();
    // Exactly this user: its groups are not extended.
    let user = User {
        name: text("user"),
        uid: text("uid"),
        groups: words(&spec["groups"]),
        extra: extra
            .map(|(key, values)| (key.clone(), words(values)))
            .collect::<BTreeMap<_, _>>(),
    };
    let mut errors = ErrorList::default();
    if user.name.is_empty() && user.groups.is_empty() {
        let why = "at least one of user or group must be specified";
        errors.push(FieldError::invalid("spec.user", "", why));
    }
    check(question, errors)?;
    decide(question, &user)
}

fn check(question: &ReviewRequest<'_>, more: ErrorList) -> Result<(), Status> {
    let review = &question.review;
    let (resource, path) = (
        &review["spec"]["resourceAttributes"],
        &review["spec"]["nonResourceAttributes"],
    );
    let mut errors = ErrorList::default();
    match (resource.is_object(), path.is_object()) {
        (true, true) => {
            let why = "cannot be specified in combination with resourceAttributes";
            // As in the Go type of the API, whose members have no names of their own.
            let shown = json!({ "Path": path["path"], "Verb": path["verb"] });
            errors.push(FieldError::invalid(PATH, shown, why));
        }
        (false, false) => {
            let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            errors.push(FieldError::invalid(RESOURCE, Value::Null, why));
        }
        _ => {}
    }
    errors.append(more);
    for selector in ["fieldSelector", "labelSelector"] {
        check_selector(&resource[selector], &format!("{RESOURCE}.{selector}"), &mut errors);
    }
    let mut metadata = question.metadata();
    if let Some(members) = metadata.as_object_mut() {
        members.remove("managedFields");
        members.retain(|_, value| !value.is_null());
        if question.kind.namespaced {
            members.remove("namespace");
        }
    }
    if metadata.as_object().is_some_and(|members| !members.is_empty()) {
        let why = if question.kind.namespaced {
            "must be empty except for namespace"
        } else {
            "must be empty"
        };
        errors.push(FieldError::invalid("metadata", question.metadata(), why));
    }
    if let Some(namespace) = question.namespace {
        if resource.is_object() && resource["namespace"].as_str().unwrap_or_default() != namespace {
            errors.push(FieldError::invalid(
                format!("{RESOURCE}.namespace"),
                resource["namespace"].as_str().unwrap_or_default(),
                "must match metadata.namespace",
            ));
        }
        if path.is_object() {
            errors.push(FieldError::invalid(
                PATH,
                json!({ "Path": path["path"], "Verb": path["verb"] }),
                "disallowed on this kind of request",
            ));
        }
    }
    if errors.is_empty() {
        return Ok(());
    }
    // kube-apiserver has lost the kind at this point.
    let kind = GroupKind::new(question.kind.group, "");
    Err(Status::invalid(&kind, "", &errors))
}

fn check_selector(selector: &Value, field: &str, errors: &mut ErrorList) {
    if !selector.is_object() {
        return;
    }
    let has_raw = selector["rawSelector"].as_str().is_some_and(|raw| !raw.is_empty());
    let has_requirements = selector["requirements"].as_array().is_some_and(|list| !list.is_empty());
    if has_raw && has_requirements {
        let why = "may not specified at the same time as requirements";
        errors.push(FieldError::invalid(
            format!("{field}.rawSelector"),
            selector["rawSelector"].clone(),
            why,
        ));
    }
    if !has_raw && !has_requirements {
        let why = format!("when {field} is specified, requirements or rawSelector is required");
        errors.push(FieldError::required(format!("{field}.requirements"), &why));
    }
    let requirements = selector["requirements"].as_array().into_iter().flatten();
    for (index, requirement) in requirements.enumerate() {
        check_requirement(requirement, &format!("{field}.requirements[{index}]"), errors);
    }
}

fn check_requirement(requirement: &Value, field: &str, errors: &mut ErrorList) {
    let values = requirement["values"].as_array().map_or(&[][..], Vec::as_slice);
    let key = requirement["key"].as_str().unwrap_or_default();
    let is_label = field.contains(".labelSelector.");
    if !is_label && key.is_empty() {
        errors.push(FieldError::required(format!("{field}.key"), "must be specified"));
    }
    let of_values = format!("{field}.values");
    match requirement["operator"].as_str() {
        Some("In" | "NotIn") if values.is_empty() => {
            let why = "must be specified when `operator` is 'In' or 'NotIn'";
            errors.push(FieldError::required(of_values, why));
        }
        Some("Exists" | "DoesNotExist") if !values.is_empty() => {
            let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            errors.push(FieldError::forbidden(of_values, why));
        }
        // Operators of newer clients are unknown, and no fault.
        _ => {}
    }
    if !is_label {
        return;
    }
    for fault in label_key_errors(key) {
        errors.push(FieldError::invalid(format!("{field}.key"), key, &fault));
    }
    for (index, value) in values.iter().enumerate() {
        let value = value.as_str().unwrap_or_default();
        for fault in label_value_errors(value) {
            errors.push(FieldError::invalid(format!("{field}.values[{index}]"), value, &fault));
        }
    }
}

fn decide(question: &ReviewRequest<'_>, user: &User) -> Result<Value, Status> {
    let spec = &question.review["spec"];
    let asked = AccessQuery::read(spec);
    let (allowed, reason) = match question.app.authorize(user, &asked.attributes) {
        Decision::Allowed(why) => (true, why.to_string()),
        Decision::Denied(why) => (false, why),
    };
    let mut status = json!({ "allowed": allowed });
    if !reason.is_empty() {
        status["reason"] = json!(reason);
    }
    if !asked.warnings.is_empty() {
        status["evaluationError"] = json!(asked.warnings.join("; "));
    }
    let mut metadata = question.metadata();
    if let Some(namespace) = question.namespace {
        metadata["namespace"] = json!(namespace);
    }
    Ok(json!({ "metadata": metadata, "spec": spec, "status": status }))
}

// === impl AccessQuery ===

impl<'a> AccessQuery<'a> {
    fn read(spec: &'a Value) -> Self {
        let (resource, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
        let text = |from: &'a Value, field: &str| from[field].as_str().unwrap_or_default();
        let mut warnings = Vec::new();
        if path.is_object() {
            let attributes = Attributes {
                verb: text(path, "verb"),
                path: Some(text(path, "path")),
                ..Attributes::default()
            };
            return Self { attributes, warnings };
        }
        let fields = fields(&resource["fieldSelector"], &mut warnings);
        check_labels(&resource["labelSelector"], &mut warnings);
        let attributes = Attributes {
            verb: text(resource, "verb"),
            path: None,
            group: text(resource, "group"),
            resource: text(resource, "resource"),
            subresource: text(resource, "subresource"),
            namespace: text(resource, "namespace"),
            name: text(resource, "name"),
            fields,
        };
        Self { attributes, warnings }
    }
}

/// The fields that must have one value. Unparsable requirements are left out: the question then covers more.
fn fields(selector: &Value, warnings: &mut Vec<String>) -> Vec<(String, String)> {
    let raw = selector["rawSelector"].as_str().unwrap_or_default();
    let (found, is_whole) = if raw.is_empty() {
        let requirements = selector["requirements"].as_array().map_or(&[][..], Vec::as_slice);
        let exact: Vec<_> = requirements.iter().filter_map(exact_requirement).collect();
        let readable = requirements.iter().filter(|one| is_readable(one)).count();
        (exact, readable == requirements.len())
    } else {
        match yurt_apimachinery::FieldSelector::parse(raw) {
            Ok(selector) => (exact_fields(&selector), true),
            Err(_) => (Vec::new(), false),
        }
    };
    if !is_whole {
        warnings.push(ignored("fieldSelector", !found.is_empty()));
    }
    found
}

fn is_readable(requirement: &Value) -> bool {
    let has_one_value = requirement["values"].as_array().is_some_and(|values| values.len() == 1);
    matches!(requirement["operator"].as_str(), Some("In" | "NotIn")) && has_one_value
}

fn exact_requirement(requirement: &Value) -> Option<(String, String)> {
    if !is_readable(requirement) || requirement["operator"] != "In" {
        return None;
    }
    let text = |value: &Value| value.as_str().map(str::to_owned);
    Some((text(&requirement["key"])?, text(&requirement["values"][0])?))
}

/// Reports unparsable label selectors; no rule here uses labels.
fn check_labels(selector: &Value, warnings: &mut Vec<String>) {
    let raw = selector["rawSelector"].as_str().unwrap_or_default();
    let requirements = selector["requirements"].as_array().map_or(&[][..], Vec::as_slice);
    let is_known = |one: &&Value| {
        matches!(
            one["operator"].as_str(),
            Some("In" | "NotIn" | "Exists" | "DoesNotExist")
        )
    };
    let known = requirements.iter().filter(is_known).count();
    if LabelSelector::parse(raw).is_err() || known < requirements.len() {
        warnings.push(ignored("labelSelector", known > 0));
    }
}

fn ignored(selector: &str, is_partial: bool) -> String {
    let how = if is_partial { "partially ignored" } else { "ignored" };
    format!("{RESOURCE}.{selector} {how} due to parse error")
}

/// SelfSubjectRulesReview: the rules of roles that are bound to the caller. Rights of a node or of a pool's
/// member are not listed.
pub(super) fn my_rules(question: &ReviewRequest<'_>) -> Result<Value, Status> {
    let (app, user) = (question.app, question.user);
    let namespace = question.review["spec"]["namespace"].as_str().unwrap_or_default();
    if namespace.is_empty() {
        return Err(Status::bad_request("no namespace on request"));
    }
    let policy = app.filters.rbac.current();
    let found = policy.rules_for(user, namespace);
    let mut errors = Vec::new();
    if app.settings.profile == Profile::Pool {
        errors.push("the rules of profile pool are not listed".to_owned());
    } else if user.node_name().is_some() {
        errors.push("node authorizer does not support user rule resolution".to_owned());
    }
    let incomplete = !errors.is_empty();
    errors.extend(found.errors);
    let (mut resources, mut paths) = (Vec::new(), Vec::new());
    for rule in found.rules {
        if !rule.resources.is_empty() {
            let mut entry = json!({ "verbs": rule.verbs, "apiGroups": rule.api_groups, "resources": rule.resources });
            if !rule.resource_names.is_empty() {
                entry["resourceNames"] = json!(rule.resource_names);
            }
            resources.push(entry);
        } else if !rule.paths.is_empty() {
            paths.push(json!({ "verbs": rule.verbs, "nonResourceURLs": rule.paths }));
        }
    }
    let mut status = json!({ "resourceRules": resources, "nonResourceRules": paths, "incomplete": incomplete });
    if !errors.is_empty() {
        status["evaluationError"] = json!(errors.join(", "));
    }
    // As kube-apiserver: the answer does not repeat the question.
    Ok(json!({ "metadata": {}, "spec": {}, "status": status }))
}
