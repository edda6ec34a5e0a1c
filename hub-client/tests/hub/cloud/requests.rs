//! Certificate requests of the scripted cloud, and its join tokens.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD as BASE64, URL_SAFE_NO_PAD};
use http::request::Parts;
use http::{Method, Response, StatusCode};
use parking_lot::Mutex;
use ring::hmac;
use serde_json::{Value, json};
use yurt_apimachinery::Status;
use yurt_runtime::http::{self as our_http, Body, status_response};
use yurt_test_support::TestPki;

/// Collection of the requests.
pub(crate) const CSRS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
/// ConfigMap with the cluster's CA.
pub(crate) const CLUSTER_INFO: &str = "/api/v1/namespaces/kube-public/configmaps/cluster-info";

/// The requests, and the tokens that may create some.
#[derive(Default)]
pub(crate) struct Requests {
    known: Mutex<BTreeMap<String, Value>>,
    tokens: Mutex<BTreeSet<String>>,
    /// True while the authority of client certificates is another one.
    refuses_certificates: AtomicBool,
    /// Validity of certificates issued without an approval.
    automatic: Mutex<Option<Duration>>,
}

// === impl Requests ===

impl Requests {
    pub(crate) fn accept_token(&self, token: &str) {
        self.tokens.lock().insert(token.to_owned());
    }

    pub(crate) fn refuse_certificates(&self) {
        self.refuses_certificates.store(true, Ordering::Relaxed);
    }

    pub(crate) fn approve_all(&self, validity: Duration) {
        *self.automatic.lock() = Some(validity);
    }

    /// Names of the requests without a decision.
    pub(crate) fn pending(&self) -> Vec<String> {
        let known = self.known.lock();
        let undecided = known.iter().filter(|(_, object)| object["status"].is_null());
        undecided.map(|(name, _)| name.clone()).collect()
    }

    pub(crate) fn all(&self) -> Vec<Value> {
        self.known.lock().values().cloned().collect()
    }

    pub(crate) fn deny(&self, name: &str, why: &str) {
        let condition = json!({"type": "Denied", "status": "True", "reason": "ByAdministrator", "message": why});
        self.known.lock().get_mut(name).unwrap()["status"] = json!({"conditions": [condition]});
    }

    /// Approves and signs for `user`.
    pub(crate) fn approve(&self, pki: &TestPki, name: &str, user: &str, validity: Duration) {
        let mut known = self.known.lock();
        let object = known.get_mut(name).unwrap();
        sign(pki, object, user, validity);
    }

    pub(crate) fn answer(&self, pki: &TestPki, head: &Parts, user: Option<&str>, body: &[u8]) -> Response<Body> {
        let path = head.uri.path();
        let authorization = head.headers.get("authorization");
        let bearer = authorization.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        let is_known = bearer.is_some_and(|token| self.tokens.lock().contains(token));
        let user = user.filter(|_| !self.refuses_certificates.load(Ordering::Relaxed));
        if user.is_none() && !is_known {
            return status_response(&Status::unauthorized());
        }
        let mut known = self.known.lock();
        if head.method == Method::POST {
            let mut object: Value = serde_json::from_slice(body).unwrap();
            let name = object["metadata"]["name"].as_str().unwrap().to_owned();
            if known.contains_key(&name) {
                return status_response(&Status::failure(409, "AlreadyExists", "it exists"));
            }
            if let Some(validity) = *self.automatic.lock() {
                sign(pki, &mut object, "system:node:n1", validity);
            }
            known.insert(name, object.clone());
            return our_http::json(StatusCode::CREATED, object.to_string());
        }
        match known.get(path.trim_start_matches(CSRS).trim_start_matches('/')) {
            Some(object) => our_http::json(StatusCode::OK, object.to_string()),
            None => status_response(&Status::failure(404, "NotFound", "no such request")),
        }
    }
}

fn sign(pki: &TestPki, object: &mut Value, user: &str, validity: Duration) {
    let request = BASE64.decode(object["spec"]["request"].as_str().unwrap()).unwrap();
    let request = String::from_utf8(request).unwrap();
    let pem = pki.sign(&request, user, &["openyurt:yurthub", "system:nodes"], validity);
    let condition = json!({"type": "Approved", "status": "True"});
    object["status"] = json!({"conditions": [condition], "certificate": BASE64.encode(pem)});
}

/// The ConfigMap `cluster-info` of this cluster, signed with `token` as Kubernetes' bootstrap signer does.
pub(crate) fn cluster_info(pki: &TestPki, token: &str) -> Value {
    let (id, secret) = token.split_once('.').unwrap();
    let ca = BASE64.encode(pki.ca_pem());
    let cluster = json!({"name": "", "cluster": {"server": "https://elsewhere", "certificate-authority-data": ca}});
    let kubeconfig = json!({"apiVersion": "v1", "kind": "Config", "clusters": [cluster]}).to_string();
    let header = URL_SAFE_NO_PAD.encode(json!({"alg": "HS256", "kid": id}).to_string());
    let input = format!("{header}.{}", URL_SAFE_NO_PAD.encode(&kubeconfig));
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let signature = URL_SAFE_NO_PAD.encode(hmac::sign(&key, input.as_bytes()));
    json!({"data": {"kubeconfig": kubeconfig, format!("jws-kubeconfig-{id}"): format!("{header}..{signature}")}})
}
