//! The security of a pod and of its containers: users, profiles, host namespaces.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use yurt_apimachinery::status::{ErrorList, FieldError};

use super::{check_descending, check_ids};
use crate::registry::fields::{at, is_set, items, one_of, text};

/// Longest name of a kernel parameter.
const SYSCTL_MAX_LEN: usize = 253;
/// kube-apiserver's expression for them, as its message shows it.
const SYSCTL_PATTERN: &str = r"^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
const PROFILES: [&str; 3] = ["Localhost", "RuntimeDefault", "Unconfined"];

/// The faults of the pod's own settings.
pub(super) fn check_pod(spec: &Value, errors: &mut ErrorList) {
    let path = "spec.securityContext";
    let context = at(spec, &["securityContext"]);
    check_ids(context, path, &["fsGroup", "runAsUser", "runAsGroup"], errors);
    for (index, group) in items(context, &["supplementalGroups"]).iter().enumerate() {
        let group = json!({ "id": group });
        let mut faults = ErrorList::default();
        check_ids(&group, "", &["id"], &mut faults);
        let field = format!("{path}.supplementalGroups[{index}]");
        errors.extend(faults.iter().map(|fault| FieldError {
            field: field.clone(),
            ..fault.clone()
        }));
    }
    let is_on = |name: &str| at(spec, &[name]).as_bool() == Some(true);
    if is_on("shareProcessNamespace") && is_on("hostPID") {
        let why = "ShareProcessNamespace and HostPID cannot both be enabled";
        errors.push(FieldError::invalid(format!("{path}.shareProcessNamespace"), true, why));
    }
    check_sysctls(context, &format!("{path}.sysctls"), errors);
    check_word(
        context,
        path,
        "fsGroupChangePolicy",
        &["Always", "OnRootMismatch"],
        errors,
    );
    check_seccomp(
        at(context, &["seccompProfile"]),
        &format!("{path}.seccompProfile"),
        errors,
    );
    check_apparmor(
        at(context, &["appArmorProfile"]),
        &format!("{path}.appArmorProfile"),
        errors,
    );
    check_word(context, path, "supplementalGroupsPolicy", &["Merge", "Strict"], errors);
}

/// Checks that a pod with a user namespace shares no other namespace of the host.
pub(super) fn check_host_users(spec: &Value, errors: &mut ErrorList) {
    if at(spec, &["hostUsers"]).as_bool() != Some(false) {
        return;
    }
    // The names of the last two are kube-apiserver's own.
    for (name, field) in [
        ("hostNetwork", "hostNetwork"),
        ("hostPID", "HostPID"),
        ("hostIPC", "HostIPC"),
    ] {
        if at(spec, &[name]).as_bool() == Some(true) {
            errors.push(FieldError::forbidden(
                format!("spec.{field}"),
                "when `hostUsers` is false",
            ));
        }
    }
}

/// The faults of a container's settings.
pub(super) fn check_container(container: &Value, path: &str, errors: &mut ErrorList) {
    let path = format!("{path}.securityContext");
    let context = at(container, &["securityContext"]);
    check_ids(context, &path, &["runAsUser", "runAsGroup"], errors);
    check_word(context, &path, "procMount", &["Default", "Unmasked"], errors);
    check_seccomp(
        at(context, &["seccompProfile"]),
        &format!("{path}.seccompProfile"),
        errors,
    );
    if at(context, &["allowPrivilegeEscalation"]).as_bool() == Some(false) {
        let mut contradict = |what: &str| {
            let why = format!("cannot set `allowPrivilegeEscalation` to false and {what}");
            errors.push(FieldError::invalid(path.clone(), context.clone(), &why));
        };
        if at(context, &["privileged"]).as_bool() == Some(true) {
            contradict("`privileged` to true");
        }
        if items(context, &["capabilities", "add"])
            .iter()
            .any(|one| one == "CAP_SYS_ADMIN")
        {
            contradict("`capabilities.Add` CAP_SYS_ADMIN");
        }
    }
    check_apparmor(
        at(context, &["appArmorProfile"]),
        &format!("{path}.appArmorProfile"),
        errors,
    );
}

/// Checks an optional enumerated field.
fn check_word(context: &Value, path: &str, name: &str, known: &[&str], errors: &mut ErrorList) {
    if is_set(context, &[name]) {
        let word = text(context, &[name]);
        if !known.contains(&word) {
            errors.push(FieldError::not_supported(format!("{path}.{name}"), word, known));
        }
    }
}

fn check_sysctls(context: &Value, path: &str, errors: &mut ErrorList) {
    let mut seen = BTreeSet::new();
    for (index, sysctl) in items(context, &["sysctls"]).iter().enumerate() {
        let (name, field) = (text(sysctl, &["name"]), format!("{path}[{index}].name"));
        if name.is_empty() {
            errors.push(FieldError::required(field, ""));
        } else if !is_sysctl(name) {
            let why = format!("must have at most {SYSCTL_MAX_LEN} characters and match regex {SYSCTL_PATTERN}");
            errors.push(FieldError::invalid(field, name, &why));
        } else if seen.contains(name) {
            errors.push(FieldError::duplicate(field, name));
        }
        seen.insert(name);
    }
}

fn is_sysctl(name: &str) -> bool {
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.len() <= SYSCTL_MAX_LEN
        && name.split(['.', '/']).all(|part| {
            part.starts_with(is_word)
                && part.ends_with(is_word)
                && part.chars().all(|c| is_word(c) || matches!(c, '-' | '_'))
        })
}

fn check_seccomp(profile: &Value, path: &str, errors: &mut ErrorList) {
    if !profile.is_object() {
        return;
    }
    let (kind, local) = (text(profile, &["type"]), at(profile, &["localhostProfile"]));
    let field = format!("{path}.localhostProfile");
    one_of(errors, &format!("{path}.type"), kind, &PROFILES);
    match (kind, local.as_str()) {
        ("Localhost", None) => {
            errors.push(FieldError::required(
                field,
                "must be set when seccomp type is Localhost",
            ));
        }
        ("Localhost", Some(local)) => check_descending(local, &field, errors),
        (_, Some(local)) => {
            // As in the Go type of the API.
            let shown = json!({ "Type": kind, "LocalhostProfile": local });
            errors.push(FieldError::invalid(
                field,
                shown,
                "can only be set when seccomp type is Localhost",
            ));
        }
        (_, None) => {}
    }
}

fn check_apparmor(profile: &Value, path: &str, errors: &mut ErrorList) {
    if !profile.is_object() {
        return;
    }
    let (kind, local) = (text(profile, &["type"]), at(profile, &["localhostProfile"]).as_str());
    let field = format!("{path}.localhostProfile");
    let missing = "must be set when AppArmor type is Localhost";
    match (kind, local) {
        ("Localhost", None | Some("")) => errors.push(FieldError::required(field, missing)),
        ("Localhost", Some(local)) if local.trim() != local => {
            errors.push(FieldError::invalid(field, local, "must not be padded with whitespace"));
        }
        ("RuntimeDefault" | "Unconfined", Some(local)) => {
            let why = "can only be set when AppArmor type is Localhost";
            errors.push(FieldError::invalid(field, local, why));
        }
        ("", _) => {
            let why = "type is required when appArmorProfile is set";
            errors.push(FieldError::required(format!("{path}.type"), why));
        }
        ("Localhost" | "RuntimeDefault" | "Unconfined", _) => {}
        _ => errors.push(FieldError::not_supported(format!("{path}.type"), kind, &PROFILES)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictions_and_unknown_words_are_named() {
        let spec = json!({"shareProcessNamespace": true, "hostPID": true, "hostUsers": false, "securityContext": {
            "fsGroup": -1, "supplementalGroups": [1, -2], "fsGroupChangePolicy": "Odd",
            "sysctls": [{"name": "kernel.x"}, {"name": "a b"}, {"name": "kernel.x"}, {"name": ""}],
            "seccompProfile": {"type": "Localhost"}, "appArmorProfile": {"type": "RuntimeDefault", "localhostProfile": "x"}}});
        let mut errors = ErrorList::default();
        check_pod(&spec, &mut errors);
        check_host_users(&spec, &mut errors);
        let fields: Vec<&str> = errors
            .iter()
            .map(|error| error.field.trim_start_matches("spec.securityContext."))
            .collect();
        let want = [
            "fsGroup",
            "supplementalGroups[1]",
            "shareProcessNamespace",
            "sysctls[1].name",
            "sysctls[2].name",
            "sysctls[3].name",
            "fsGroupChangePolicy",
            "seccompProfile.localhostProfile",
            "appArmorProfile.localhostProfile",
            "spec.HostPID",
        ];
        assert_eq!(fields, want);
        let container =
            json!({"securityContext": {"privileged": true, "allowPrivilegeEscalation": false, "procMount": "Odd"}});
        let mut errors = ErrorList::default();
        check_container(&container, "c", &mut errors);
        assert_eq!(errors.len(), 2, "{errors:?}");
        let good = json!({"hostUsers": true, "securityContext": {"runAsUser": 5, "sysctls": [{"name": "net.ipv4/x_y.z"}],
            "seccompProfile": {"type": "RuntimeDefault"}, "appArmorProfile": {"type": "Localhost", "localhostProfile": "p"}}});
        let mut errors = ErrorList::default();
        check_pod(&good, &mut errors);
        check_container(&good, "c", &mut errors);
        assert!(errors.is_empty(), "{errors:?}");
    }
}
