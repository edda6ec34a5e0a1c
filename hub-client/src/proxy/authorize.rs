//! May this caller read this from the hub's own copy? Exactly what the cloud would allow, asked there and remembered.
//!
//! A caller with a token is asked about with its own token (SelfSubjectAccessReview), one with a certificate through the
//! node's right to create SubjectAccessReviews. An answer is used past its time only while the cloud is away; what was
//! never asked is refused then.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, StatusCode};
use parking_lot::Mutex;
use serde_json::{Value, json};
use yurt_apimachinery::{RequestInfo, Status};
use yurt_runtime::http::{APPLICATION_JSON, full};
use yurt_runtime::{BootTime, Clock};

use super::caller::{Caller, Credential};
use crate::upstream::Cloud;

/// How long a yes is good for.
const ALLOWED_FOR: Duration = Duration::from_secs(60);
/// How long a no is good for.
const DENIED_FOR: Duration = Duration::from_secs(10);
/// Answers remembered; the oldest goes first.
const ANSWERS_MAX: usize = 4096;
/// Longest wait for the cloud's answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of an answer at the most.
const ANSWER_BYTES: usize = 1 << 20;

/// Asks and remembers.
pub struct Authorizer {
    cloud: Arc<Cloud>,
    clock: Clock,
    // Leaf lock: never held while asking.
    answers: Mutex<HashMap<Question, Answer>>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Question {
    credential: String,
    attributes: String,
}

#[derive(Clone, Copy)]
struct Answer {
    verdict: Verdict,
    at: BootTime,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Allowed,
    Denied,
    /// The cloud does not know the token.
    Unauthorized,
}

// === impl Authorizer ===

impl Authorizer {
    /// Remembers nothing yet.
    #[must_use]
    pub fn new(cloud: Arc<Cloud>, clock: Clock) -> Self {
        Self {
            cloud,
            clock,
            answers: Mutex::default(),
        }
    }

    /// Whether `caller` may do what `info` says.
    ///
    /// # Errors
    /// 401 or 403, as the cloud would answer; 403 when it cannot be asked and never was.
    pub async fn check(&self, caller: &Caller, info: &RequestInfo) -> Result<(), Status> {
        let attributes = attributes(info);
        let credential = match &caller.credential {
            // The copy was made with this identity's own rights.
            Credential::Node => return Ok(()),
            Credential::Token(token) => token.clone(),
            Credential::Certificate { user, groups } => format!("{user}\n{}", groups.join("\n")),
        };
        let question = Question {
            credential,
            attributes: attributes.to_string(),
        };
        let known = self.answers.lock().get(&question).copied();
        if let Some(answer) = known.filter(|answer| self.is_good(answer)) {
            return verdict(answer.verdict, caller, info);
        }
        let verdict_now = match self.ask(caller, &attributes).await {
            Some(verdict) => {
                self.remember(question, verdict);
                verdict
            }
            None => known.map_or(Verdict::Denied, |answer| answer.verdict),
        };
        verdict(verdict_now, caller, info)
    }

    fn is_good(&self, answer: &Answer) -> bool {
        let good_for = if answer.verdict == Verdict::Allowed {
            ALLOWED_FOR
        } else {
            DENIED_FOR
        };
        self.clock.boot().since(answer.at) < good_for
    }

    fn remember(&self, question: Question, verdict: Verdict) {
        let mut answers = self.answers.lock();
        if answers.len() >= ANSWERS_MAX
            && let Some(oldest) = answers
                .iter()
                .min_by_key(|(_, answer)| answer.at)
                .map(|(question, _)| question.clone())
        {
            answers.remove(&oldest);
        }
        answers.insert(
            question,
            Answer {
                verdict,
                at: self.clock.boot(),
            },
        );
    }

    /// `None` when the cloud does not answer.
    async fn ask(&self, caller: &Caller, attributes: &Value) -> Option<Verdict> {
        let server = self.cloud.server();
        let (client, kind, mut spec) = match &caller.credential {
            Credential::Token(_) => (&server.token, "SelfSubjectAccessReview", json!({})),
            Credential::Certificate { user, groups } => {
                // kube-apiserver adds this group to every authenticated user.
                let groups: Vec<&str> = groups
                    .iter()
                    .map(String::as_str)
                    .chain(["system:authenticated"])
                    .collect();
                (
                    &server.beats,
                    "SubjectAccessReview",
                    json!({"user": user, "groups": groups}),
                )
            }
            Credential::Node => return Some(Verdict::Allowed),
        };
        spec["resourceAttributes"] = attributes.clone();
        let body = json!({"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec});
        let mut request = Request::new(full(body.to_string()));
        *request.method_mut() = Method::POST;
        let path = format!("/apis/authorization.k8s.io/v1/{}s", kind.to_lowercase());
        *request.uri_mut() = path.parse().ok()?;
        request.headers_mut().insert(CONTENT_TYPE, APPLICATION_JSON);
        request.headers_mut().insert(ACCEPT, APPLICATION_JSON);
        if let Credential::Token(token) = &caller.credential {
            let value = HeaderValue::try_from(format!("Bearer {token}")).ok()?;
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        let (status, _, body) = client.request_bytes(request, TIMEOUT, ANSWER_BYTES).await.ok()?;
        match status {
            StatusCode::CREATED | StatusCode::OK => {
                let review: Value = serde_json::from_slice(&body).ok()?;
                Some(if review["status"]["allowed"] == true {
                    Verdict::Allowed
                } else {
                    Verdict::Denied
                })
            }
            StatusCode::UNAUTHORIZED => Some(Verdict::Unauthorized),
            StatusCode::FORBIDDEN => Some(Verdict::Denied),
            _ => None,
        }
    }
}

fn attributes(info: &RequestInfo) -> Value {
    let mut attributes = json!({
        "verb": info.verb.as_str(),
        "group": info.group,
        "version": info.version,
        "resource": info.resource,
    });
    for (name, value) in [
        ("namespace", &info.namespace),
        ("subresource", &info.subresource),
        ("name", &info.name),
    ] {
        if let Some(value) = value {
            attributes[name] = value.as_str().into();
        }
    }
    attributes
}

fn verdict(verdict: Verdict, caller: &Caller, info: &RequestInfo) -> Result<(), Status> {
    let user = match &caller.credential {
        Credential::Certificate { user, .. } => user.as_str(),
        Credential::Node | Credential::Token(_) => "the bearer of this token",
    };
    match verdict {
        Verdict::Allowed => Ok(()),
        Verdict::Unauthorized => Err(Status::unauthorized()),
        Verdict::Denied => Err(Status::forbidden(user, info, "")),
    }
}
