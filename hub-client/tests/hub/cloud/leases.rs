//! Leases at a server: created, replaced and merged like kube-apiserver's, as far as a hub needs it. The election lease
//! has the headers of a coordinator.

use http::{HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::{Value, json};
use yurt_apimachinery::{RequestInfo, Status, Verb};
use yurt_runtime::http::{Body, json as answer_json, read_body};

use super::{BODY_MAX, CloudState};
use crate::hub::relay_pool::merge;

/// Namespace and name of the election lease.
pub(crate) const ELECTION: (&str, &str) = ("kube-system", "yurthub");

// === impl CloudState ===

impl CloudState {
    /// Answers a create, an update or a merge patch of a lease.
    pub(super) async fn write_lease(
        &self,
        info: &RequestInfo,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Status> {
        let body = read_body(request.into_body(), BODY_MAX).await?;
        let mut body: Value = serde_json::from_slice(&body).unwrap();
        let name = info.name.as_deref().or(body["metadata"]["name"].as_str()).unwrap();
        let (namespace, name) = (info.namespace.clone().unwrap(), name.to_owned());
        let group = info.group_resource();
        let known = self.resources.get("leases", Some(&namespace), &name);
        let sent = &body["metadata"]["resourceVersion"];
        let stale = |known: &Value| !sent.is_null() && *sent != known["metadata"]["resourceVersion"];
        let (code, mut lease) = match (info.verb, known) {
            (Verb::Create, Some(_)) => return Err(Status::already_exists(&group, &name)),
            (Verb::Update, Some(known)) if sent.is_null() || stale(&known) => {
                return Err(Status::conflict(&group, &name, "it was changed"));
            }
            (Verb::Patch, None) => return Err(Status::not_found(&group, &name)),
            (Verb::Patch, Some(known)) if stale(&known) => {
                return Err(Status::conflict(&group, &name, "it was changed"));
            }
            (Verb::Patch, Some(known)) => {
                let mut lease = known.clone();
                merge(&mut lease, &body);
                // As if there were none.
                let metadata = lease["metadata"].as_object_mut().unwrap();
                metadata.retain(|field, value| field != "annotations" || *value != json!({}));
                if lease == known {
                    // A write without a change does not count.
                    return Ok(answer_json(StatusCode::OK, lease.to_string()));
                }
                (StatusCode::OK, lease)
            }
            (_, Some(_)) => (StatusCode::OK, body.take()),
            (_, None) => (StatusCode::CREATED, body.take()),
        };
        lease["metadata"]["namespace"] = json!(namespace);
        let lease = self.put_lease(lease);
        let mut response = answer_json(code, lease.to_string());
        if (&*namespace, &*name) == ELECTION {
            let headers = response.headers_mut();
            let store = self.store.lock().clone();
            headers.insert("yurt-store", store.parse::<HeaderValue>().unwrap());
            headers.insert("yurt-epoch", self.epoch.lock().1.into());
        }
        Ok(response)
    }

    /// Stores a lease; another holder of the election lease begins another epoch.
    pub(super) fn put_lease(&self, lease: Value) -> Value {
        let metadata = &lease["metadata"];
        if (metadata["namespace"].as_str(), metadata["name"].as_str()) == (Some(ELECTION.0), Some(ELECTION.1)) {
            let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
            let mut epoch = self.epoch.lock();
            if epoch.0 != holder {
                *epoch = (holder.to_owned(), epoch.1 + 1);
            }
        }
        self.resources.put("leases", lease)
    }
}
