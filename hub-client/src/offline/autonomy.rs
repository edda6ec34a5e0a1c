//! Condition `Autonomy` of the Node, as OpenYurt's hub writes it: True while the hub keeps this node's data on the
//! disk, Unknown while it fails to, False if autonomy is off.
//!
//! The condition takes the way of the kubelet's own status (`own`): an entry on the disk that is brought to the cloud,
//! now or when it is back.
//!
//! | annotation of the Node | autonomy |
//! |---|---|
//! | `node.beta.openyurt.io/autonomy`, `node.openyurt.io/autonomy`, `apps.openyurt.io/binding`: any value but `false` | on |
//! | `node.openyurt.io/autonomy-duration` | on |
//! | none of them, or label `openyurt.io/is-edge-worker: "false"` | off |
//!
//! A Node without these annotations and without the condition is left alone; OpenYurt writes False.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method, header};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::Status;
use yurt_apimachinery::time::Time;
use yurt_runtime::Clock;

use super::own::pending::Pending;
use super::own::write::{OwnKey, Write};
use crate::failures::Failures;

/// Type of the condition.
const CONDITION: &str = "Autonomy";
/// Annotations that switch autonomy on, with any value but `false`.
const SWITCHES: [&str; 3] = [
    "node.beta.openyurt.io/autonomy",
    "node.openyurt.io/autonomy",
    "apps.openyurt.io/binding",
];
/// Annotation with the time for which pods stay on a silent node.
const DURATION: &str = "node.openyurt.io/autonomy-duration";
/// Label of a node at the edge.
const EDGE: &str = "openyurt.io/is-edge-worker";
/// Interval between two looks at the Node.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Minimum time between two writes of the same status: the cloud may refuse it, or be late to show it.
const REPEATED_AFTER: Duration = Duration::from_secs(300);
/// Looks in a row with a failing disk before the condition is Unknown; OpenYurt's number of failures.
const FAILURES_MAX: u32 = 3;

/// Writer of the condition.
pub struct Autonomy {
    /// Name of the Node.
    pub node: String,
    /// Local statuses.
    pub pending: Arc<Pending>,
    /// Returns the Node from the replicas of this hub.
    pub cached: super::own::Cached,
    /// Failures of the hub.
    pub failures: Failures,
    /// Names of the failures that make this node's data incomplete after a restart.
    pub disk: Vec<String>,
    /// Clock for the times in the condition.
    pub clock: Clock,
}

/// Content of the condition, without its times.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ConditionContent {
    status: &'static str,
    reason: &'static str,
    message: String,
}

// === impl Autonomy ===

impl Autonomy {
    /// Keeps the condition until `token` is cancelled.
    pub async fn run(self, token: CancellationToken) {
        let mut looks = tokio::time::interval(LOOK_EVERY);
        let (mut failed, mut last) = (0, None);
        while token.run_until_cancelled(looks.tick()).await.is_some() {
            let failure = self.disk.iter().find_map(|name| self.failures.why(name));
            failed = if failure.is_some() { failed + 1 } else { 0 };
            if let Err(status) = self.look(failure.filter(|_| failed > FAILURES_MAX), &mut last).await {
                tracing::debug!(why = status.message(), "Failed to write condition Autonomy");
            }
        }
    }

    /// Writes the condition if it differs; `failure` is that of the disk, `last` the last write.
    async fn look(&self, failure: Option<String>, last: &mut Option<(&str, Instant)>) -> Result<(), Status> {
        let key = OwnKey {
            namespace: None,
            name: self.node.clone(),
        };
        let held = (self.cached)(&key);
        let Some(node) = self.pending.local(&key).or_else(|| held.clone()) else {
            // Nothing on this node reads the Node through this hub.
            return Ok(());
        };
        let now = Time::from_unix(self.clock.unix().secs).to_string();
        let Some(wanted) = wanted(&node, failure) else {
            return Ok(());
        };
        let is_recent = last.is_some_and(|(status, at)| status == wanted.status && at.elapsed() < REPEATED_AFTER);
        let status = wanted.status;
        let Some(condition) = wanted.change(&node, &now).filter(|_| !is_recent) else {
            return Ok(());
        };
        *last = Some((status, Instant::now()));
        let body = json!({"status": {"conditions": [condition]}}).to_string().into();
        let (pending, node) = (self.pending.clone(), self.node.clone());
        let written = tokio::task::spawn_blocking(move || {
            let strategic = HeaderValue::from_static("application/strategic-merge-patch+json");
            let write = Write {
                method: &Method::PATCH,
                headers: &HeaderMap::from_iter([(header::CONTENT_TYPE, strategic)]),
                body: &body,
            };
            pending.accept(&key, &node, held.into(), write)
        });
        written
            .await
            .map_err(|lost| Status::internal(&lost.to_string()))?
            .map(|_| ())
    }
}

/// Returns the condition that a Node should have; `None` if it should have none.
fn wanted(node: &Value, failure: Option<String>) -> Option<ConditionContent> {
    let annotations = &node["metadata"]["annotations"];
    let is_on = SWITCHES
        .iter()
        .any(|name| annotations[*name].as_str().is_some_and(|value| value != "false"));
    let is_on = is_on || annotations[DURATION].is_string();
    if !is_on || node["metadata"]["labels"][EDGE] == "false" {
        return present(node).is_some().then(|| ConditionContent {
            status: "False",
            reason: "autonomy disabled",
            message: "The autonomy is disabled or this node is not edge node".to_owned(),
        });
    }
    Some(match failure {
        None => ConditionContent {
            status: "True",
            reason: "autonomy enabled successfully",
            message: "The autonomy is enabled and it works fine".to_owned(),
        },
        Some(message) => ConditionContent {
            status: "Unknown",
            reason: "cache failed",
            message,
        },
    })
}

/// The condition that the Node has.
fn present(node: &Value) -> Option<&Value> {
    let mut conditions = node["status"]["conditions"].as_array()?.iter();
    conditions.find(|condition| condition["type"] == CONDITION)
}

// === impl ConditionContent ===

impl ConditionContent {
    /// The condition to write; `None` if the Node has it. A new message alone is no change, as at OpenYurt.
    fn change(self, node: &Value, now: &str) -> Option<Value> {
        let is_held = present(node).is_some_and(|held| held["status"] == self.status);
        (!is_held).then(|| {
            json!({"type": CONDITION, "status": self.status, "reason": self.reason, "message": self.message,
                "lastHeartbeatTime": now, "lastTransitionTime": now})
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(annotations: Value, labels: Value, status: Option<&str>) -> Value {
        let conditions = status.map(|status| json!([{"type": "Ready"}, {"type": CONDITION, "status": status}]));
        json!({"metadata": {"annotations": annotations, "labels": labels}, "status": {"conditions": conditions}})
    }

    /// The status that is written; empty if none is.
    fn written(node: &Value, failure: Option<&str>) -> String {
        let wanted = wanted(node, failure.map(str::to_owned));
        let change = wanted.and_then(|wanted| wanted.change(node, "now"));
        change.map_or(String::new(), |change| change["status"].as_str().unwrap().to_owned())
    }

    #[test]
    fn condition_follows_annotation_label_and_disk() {
        let none = || json!({});
        for (name, value, expected) in [
            ("node.beta.openyurt.io/autonomy", "true", "True"),
            ("node.openyurt.io/autonomy", "true", "True"),
            ("apps.openyurt.io/binding", "true", "True"),
            ("node.openyurt.io/autonomy-duration", "0", "True"),
            ("node.beta.openyurt.io/autonomy", "false", ""),
            ("apps.openyurt.io/bound", "true", ""),
        ] {
            assert_eq!(
                written(&node(json!({name: value}), none(), None), None),
                expected,
                "{name}"
            );
        }
        let on = || json!({"node.beta.openyurt.io/autonomy": "true"});
        let at = |annotations: Value, status| node(annotations, json!({EDGE: "true"}), Some(status));
        assert_eq!(written(&at(on(), "True"), None), "", "nothing has changed");
        assert_eq!(written(&at(on(), "False"), None), "True");
        assert_eq!(written(&at(on(), "True"), Some("disk full")), "Unknown");
        assert_eq!(written(&at(on(), "Unknown"), None), "True");
        assert_eq!(written(&at(none(), "True"), None), "False");
        let cloud_node = node(on(), json!({EDGE: "false"}), Some("True"));
        assert_eq!(written(&cloud_node, None), "False");
        assert_eq!(written(&node(none(), none(), None), Some("disk full")), "");
        assert_eq!(
            wanted(&at(on(), "True"), Some("disk full".to_owned())).unwrap().message,
            "disk full"
        );
    }
}
