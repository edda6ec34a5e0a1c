//! The cells of a pod: one word for the state of all its containers.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::cells::{age, list, name, or, str};
use super::human;
use yurt_apimachinery::time::Time;

const NONE: &str = "<none>";

/// Summary of the containers.
struct Summary {
    reason: String,
    ready: usize,
    restarts: i64,
    /// Time at which a container last ended, of those whose restarts count.
    last: Option<Time>,
}

pub(super) fn cells(pod: &Value, now: Time) -> Vec<Value> {
    let (spec, status) = (&pod["spec"], &pod["status"]);
    let total =
        list(&spec["containers"]).len() + list(&spec["initContainers"]).iter().filter(|c| is_sidecar(c)).count();
    let summary = summarise(pod);
    let restarts = match summary.last.filter(|_| summary.restarts != 0) {
        Some(last) => {
            let ago = human::duration(now.unix() - last.unix());
            format!("{} ({ago} ago)", summary.restarts)
        }
        None => summary.restarts.to_string(),
    };
    let ip = list(&status["podIPs"]).first().map_or("", |ip| str(&ip["ip"]));
    vec![
        json!(name(pod)),
        json!(format!("{}/{total}", summary.ready)),
        json!(summary.reason),
        json!(restarts),
        json!(age(pod, now)),
        json!(or(ip, NONE)),
        json!(or(str(&spec["nodeName"]), NONE)),
        json!(or(str(&status["nominatedNodeName"]), NONE)),
        json!(readiness_gates(pod)),
    ]
}

/// Pods that are over are marked, so that tools can hide them.
pub(super) fn conditions(pod: &Value) -> Option<Value> {
    let (reason, message) = match str(&pod["status"]["phase"]) {
        "Succeeded" => ("Succeeded", "The pod has completed successfully."),
        "Failed" => ("Failed", "The pod failed."),
        _ => return None,
    };
    Some(json!([{ "type": "Completed", "status": "True", "reason": reason, "message": message }]))
}

fn summarise(pod: &Value) -> Summary {
    let status = &pod["status"];
    let (phase, why) = (str(&status["phase"]), str(&status["reason"]));
    let mut summary = Summary {
        reason: or(why, phase).to_owned(),
        ready: 0,
        restarts: 0,
        last: None,
    };
    let gated = |condition: &Value| condition["type"] == "PodScheduled" && condition["reason"] == "SchedulingGated";
    if list(&status["conditions"]).iter().any(gated) {
        summary.reason = "SchedulingGated".to_owned();
    }
    let sidecars = Restarts::of_sidecars(pod);
    let is_initializing = initialize(pod, &mut summary);
    if !is_initializing || has_condition(status, "Initialized") {
        (summary.restarts, summary.last) = (sidecars.count, sidecars.last);
        run(status, &mut summary);
    }
    if !str(&pod["metadata"]["deletionTimestamp"]).is_empty() {
        if why == "NodeLost" {
            summary.reason = "Unknown".to_owned();
        } else if !matches!(phase, "Succeeded" | "Failed") {
            summary.reason = "Terminating".to_owned();
        }
    }
    summary
}

/// Examines init containers in order, up to the first that is not done; true if there is one.
fn initialize(pod: &Value, summary: &mut Summary) -> bool {
    let total = list(&pod["spec"]["initContainers"]).len();
    let sidecars = sidecar_names(pod);
    for (at, container) in list(&pod["status"]["initContainerStatuses"]).iter().enumerate() {
        let (terminated, waiting) = (&container["state"]["terminated"], &container["state"]["waiting"]);
        summary.restarted(container);
        if terminated.is_object() && terminated["exitCode"].as_i64().unwrap_or_default() == 0 {
            continue;
        }
        if sidecars.contains(&container["name"]) && container["started"] == true {
            summary.ready += usize::from(container["ready"] == true);
            continue;
        }
        let waits_for = str(&waiting["reason"]);
        summary.reason = if terminated.is_object() {
            format!("Init:{}", ending(terminated))
        } else if !waits_for.is_empty() && waits_for != "PodInitializing" {
            format!("Init:{waits_for}")
        } else {
            format!("Init:{at}/{total}")
        };
        return true;
    }
    false
}

/// Examines the app containers, the last one first: the reason of the first container counts.
fn run(status: &Value, summary: &mut Summary) {
    let (mut is_running, mut failure) = (false, String::new());
    for container in list(&status["containerStatuses"]).iter().rev() {
        let state = &container["state"];
        let waits_for = str(&state["waiting"]["reason"]);
        summary.restarted(container);
        if !waits_for.is_empty() {
            summary.reason = waits_for.to_owned();
        } else if state["terminated"].is_object() {
            summary.reason = ending(&state["terminated"]);
            if state["terminated"]["exitCode"].as_i64().unwrap_or_default() != 0 {
                failure.clone_from(&summary.reason);
            }
        } else if container["ready"] == true && state["running"].is_object() {
            is_running = true;
            summary.ready += 1;
        }
    }
    if summary.reason == "Completed" {
        if is_running && has_condition(status, "Ready") {
            summary.reason = "Running".to_owned();
        } else if !failure.is_empty() {
            summary.reason = failure;
        } else if is_running {
            summary.reason = "NotReady".to_owned();
        }
    }
}

/// Reason for the end of a container.
fn ending(terminated: &Value) -> String {
    let signal = terminated["signal"].as_i64().unwrap_or_default();
    match str(&terminated["reason"]) {
        "" if signal != 0 => format!("Signal:{signal}"),
        "" => format!("ExitCode:{}", terminated["exitCode"].as_i64().unwrap_or_default()),
        reason => reason.to_owned(),
    }
}

struct Restarts {
    count: i64,
    last: Option<Time>,
}

// === impl Restarts ===

impl Restarts {
    /// Summary of the sidecars up to the first init container that is not done.
    fn of_sidecars(pod: &Value) -> Self {
        let mut summary = Summary {
            reason: String::new(),
            ready: 0,
            restarts: 0,
            last: None,
        };
        let sidecars = sidecar_names(pod);
        for container in list(&pod["status"]["initContainerStatuses"]) {
            let is_sidecar = sidecars.contains(&container["name"]);
            if is_sidecar {
                summary.restarted(container);
            }
            let terminated = &container["state"]["terminated"];
            let is_done = terminated.is_object() && terminated["exitCode"].as_i64().unwrap_or_default() == 0;
            if !(is_done || (is_sidecar && container["started"] == true)) {
                break;
            }
        }
        Self {
            count: summary.restarts,
            last: summary.last,
        }
    }
}

// === impl Summary ===

impl Summary {
    fn restarted(&mut self, container: &Value) {
        self.restarts += container["restartCount"].as_i64().unwrap_or_default();
        let ended = Time::parse(str(&container["lastState"]["terminated"]["finishedAt"])).ok();
        self.last = self.last.max(ended);
    }
}

fn is_sidecar(container: &Value) -> bool {
    container["restartPolicy"] == "Always"
}

/// Names of the sidecar containers.
fn sidecar_names(pod: &Value) -> HashSet<&Value> {
    let containers = list(&pod["spec"]["initContainers"]).iter();
    containers
        .filter(|container| is_sidecar(container))
        .map(|container| &container["name"])
        .collect()
}

fn has_condition(status: &Value, ty: &str) -> bool {
    let mut conditions = list(&status["conditions"]).iter();
    conditions.any(|condition| condition["type"] == ty && condition["status"] == "True")
}

fn readiness_gates(pod: &Value) -> String {
    let gates = list(&pod["spec"]["readinessGates"]);
    if gates.is_empty() {
        return NONE.to_owned();
    }
    let is_open = |gate: &&Value| has_condition(&pod["status"], str(&gate["conditionType"]));
    format!("{}/{}", gates.iter().filter(is_open).count(), gates.len())
}
