//! Reads and writes Leases as JSON and preserves unknown fields.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use serde_json::{Value, json};
use yurt_apimachinery::time::MicroTime;
use yurt_pool_protocol::heartbeat::UnixMicros;
use yurt_runtime::http::client::{ClientError, HttpClient};
use yurt_runtime::{Clock, UnixTime};

use crate::upstream::describe_answer;

/// Duration of a watch on leases.
pub(crate) const WATCH_LASTS: Duration = Duration::from_secs(300);

/// Client of one Lease at one server.
#[derive(Clone, Debug)]
pub struct LeaseClient {
    client: HttpClient,
    namespace: String,
    name: String,
}

/// LeaseAnswer about the Lease.
#[derive(Debug)]
pub struct LeaseAnswer {
    /// HTTP status.
    pub status: StatusCode,
    /// Headers (epoch and store, for the election lease).
    pub headers: HeaderMap,
    /// The Lease, when the status is 200 or 201.
    pub lease: Option<Value>,
    /// The body as received.
    pub body: Bytes,
}

// === impl LeaseClient ===

impl LeaseClient {
    /// Creates a client of the Lease `namespace`/`name` at the server of `client`.
    #[must_use]
    pub fn new(client: HttpClient, namespace: &str, name: &str) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    /// Reads the Lease.
    ///
    /// # Errors
    /// Fails if no answer came.
    pub async fn read(&self, timeout: Duration) -> Result<LeaseAnswer, ClientError> {
        self.ask(Method::GET, &self.path(), None, timeout).await
    }

    /// Replaces the Lease; `lease` carries the resourceVersion that the stored Lease must still have.
    ///
    /// # Errors
    /// Fails if no answer came. The write may have happened unless [`ClientError::never_sent`].
    pub async fn replace(&self, lease: &Value, timeout: Duration) -> Result<LeaseAnswer, ClientError> {
        self.ask(Method::PUT, &self.path(), Some(lease), timeout).await
    }

    /// Creates the Lease.
    ///
    /// # Errors
    /// Same as [`Self::replace`].
    pub async fn create(&self, lease: &Value, timeout: Duration) -> Result<LeaseAnswer, ClientError> {
        self.ask(Method::POST, &self.collection(), Some(lease), timeout).await
    }

    /// Returns the query path of a watch on this Lease alone, starting at the present state.
    #[must_use]
    pub fn watch_path(&self) -> String {
        format!(
            "{}?watch=1&fieldSelector=metadata.name%3D{}&timeoutSeconds={}",
            self.collection(),
            self.name,
            WATCH_LASTS.as_secs()
        )
    }

    /// Returns the underlying HTTP client.
    #[must_use]
    pub fn http(&self) -> &HttpClient {
        &self.client
    }

    /// Returns a Lease without spec.
    #[must_use]
    pub fn blank(&self) -> Value {
        json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": {},
        })
    }

    /// Returns a Lease that replaces `last` and removes all that its holders added, managed fields included: a lease
    /// that a member has filled up to the coordinator's limit would have no room for another holder.
    #[must_use]
    pub fn blank_over(&self, last: &Value) -> Value {
        let mut blank = self.blank();
        for field in ["uid", "resourceVersion"] {
            blank["metadata"][field] = last["metadata"][field].clone();
        }
        blank["metadata"]["managedFields"] = json!([{}]);
        blank
    }

    fn collection(&self) -> String {
        format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.namespace)
    }

    fn path(&self) -> String {
        format!("{}/{}", self.collection(), self.name)
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        timeout: Duration,
    ) -> Result<LeaseAnswer, ClientError> {
        let (status, headers, body) = self.client.request_json(method, path, body, timeout).await?;
        let parsed = || serde_json::from_slice(&body).ok().filter(is_lease);
        let lease = status.is_success().then(parsed).flatten();
        Ok(LeaseAnswer {
            status,
            headers,
            lease,
            body,
        })
    }
}

// === impl LeaseAnswer ===

impl LeaseAnswer {
    /// Returns the reason why the server did not accept or return the Lease; `None` on success. A conflict and an
    /// absent Lease are expected and also give `None`.
    #[must_use]
    pub fn refusal(&self) -> Option<String> {
        let is_expected = [StatusCode::CONFLICT, StatusCode::NOT_FOUND].contains(&self.status);
        if self.status.is_success() || is_expected {
            return None;
        }
        Some(format!("coordinator: {}", describe_answer(self.status, &self.body)))
    }
}

/// True if `lease` has the form in which this hub changes it: a map of maps where a Lease has those.
#[must_use]
pub fn is_lease(lease: &Value) -> bool {
    let (metadata, spec) = (&lease["metadata"], &lease["spec"]);
    let is_map = |part: &Value| part.is_object() || part.is_null();
    lease.is_object() && [metadata, &metadata["annotations"], spec].into_iter().all(is_map)
}

/// Sets an annotation of an object, or removes it if `value` is `None`.
pub fn set_annotation(object: &mut Value, name: &str, value: Option<&str>) {
    let annotations = &mut object["metadata"]["annotations"];
    match value {
        Some(value) => annotations[name] = value.into(),
        None => {
            if let Some(annotations) = annotations.as_object_mut() {
                annotations.remove(name);
            }
        }
    }
}

/// Formats a wall-clock time as Leases hold it.
#[must_use]
pub fn micro_time(time: UnixTime) -> String {
    MicroTime::from_unix(time.secs, time.nanos).to_string()
}

/// Returns the present time, but always later than `previous`: to observers an unchanged record looks expired.
#[must_use]
pub fn renew_time(clock: &Clock, previous: Option<&str>) -> String {
    let now = clock.unix();
    let now = MicroTime::from_unix(now.secs, now.nanos);
    let previous = previous
        .and_then(|text| MicroTime::parse(text).ok())
        .map(UnixMicros::from);
    let next = previous.map_or(now, |UnixMicros(previous)| from_micros(previous + 1).max(now));
    next.to_string()
}

/// Returns the time `micros` microseconds after 1970.
#[must_use]
pub fn from_micros(micros: i64) -> MicroTime {
    let nanos = u32::try_from(micros.rem_euclid(1_000_000)).unwrap_or(0) * 1000;
    MicroTime::from_unix(micros.div_euclid(1_000_000), nanos)
}
