//! A small client of the Kubernetes API, limited to the needs of the testbed.
//!
//! Requests go through kube's client, not through the one of our programs: a bug of that client would hide itself.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Limited};
use kube_client::config::AuthInfo;
use kube_client::{Client, Config};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use serde_json::Value;
use yurt_runtime::tls::PemPair;

pub use kube_client::client::Body;

/// A client of one server. Cheap to clone. It is made inside a runtime.
#[derive(Clone)]
pub struct Api {
    client: Client,
    user_agent: HeaderValue,
}

/// An answer of the server that refuses the request.
#[derive(Debug)]
pub struct Refused {
    /// HTTP status code.
    pub code: u16,
    /// True if it has a `Retry-After`.
    pub retry_after: bool,
    what: String,
    message: String,
}

/// The parts of a list that the story compares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// resourceVersion of the list.
    pub resource_version: u64,
    /// `namespace/name` and resourceVersion of every object.
    pub objects: BTreeMap<String, u64>,
    /// Bytes of the answer.
    pub bytes: usize,
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest answer that is read.
const ANSWER_BYTES_MAX: usize = 64 << 20;
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const MERGE_PATCH: HeaderValue = HeaderValue::from_static("application/merge-patch+json");

// === impl Listing ===

impl Listing {
    /// Reads a list; its bytes are not counted.
    ///
    /// # Errors
    /// It has no items.
    pub fn parse(list: &Value) -> Result<Self> {
        let items = list["items"].as_array().context("it is not a list")?;
        Ok(Self {
            resource_version: key_and_version(list).1,
            objects: items.iter().map(key_and_version).collect(),
            bytes: 0,
        })
    }
}

// === impl Api ===

impl Api {
    /// A server on the loopback interface that trusts and is trusted by `ca_pem`.
    ///
    /// # Errors
    /// The certificates are no PEM.
    pub fn https(port: u16, ca_pem: &str, identity: &PemPair) -> Result<Self> {
        let ca = CertificateDer::from_pem_slice(ca_pem.as_bytes()).context("the CA is no PEM")?;
        let mut config = Config::new(loopback("https", port)?);
        config.root_cert = Some(vec![ca.to_vec()]);
        config.auth_info = AuthInfo {
            client_certificate_data: Some(BASE64_STANDARD.encode(&identity.cert_pem)),
            client_key_data: Some(BASE64_STANDARD.encode(&identity.key_pem).into()),
            ..AuthInfo::default()
        };
        Self::new(config, "admin/demo")
    }

    /// A server on the loopback interface that trusts `ca_pem`, for a caller with a service account token.
    ///
    /// # Errors
    /// The certificate is no PEM.
    pub fn bearer(port: u16, ca_pem: &str, token: &str, user_agent: &'static str) -> Result<Self> {
        let ca = CertificateDer::from_pem_slice(ca_pem.as_bytes()).context("the CA is no PEM")?;
        let mut config = Config::new(loopback("https", port)?);
        config.root_cert = Some(vec![ca.to_vec()]);
        config.auth_info.token = Some(token.to_owned().into());
        Self::new(config, user_agent)
    }

    /// A plain HTTP port on the loopback interface: a hub's proxy or its health server.
    ///
    /// # Errors
    /// The client cannot be made.
    pub fn plain(port: u16, user_agent: &'static str) -> Result<Self> {
        let mut config = Config::new(loopback("http", port)?);
        // Without TLS, kube would still load the roots of the system.
        config.root_cert = Some(Vec::new());
        Self::new(config, user_agent)
    }

    fn new(mut config: Config, user_agent: &'static str) -> Result<Self> {
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        // Refusals are what is tested.
        config.default_retry = false;
        Ok(Self {
            client: Client::try_from(config).context("the client cannot be made")?,
            user_agent: HeaderValue::from_static(user_agent),
        })
    }

    /// Reads one object, or any JSON document.
    ///
    /// # Errors
    /// [`Refused`], or no answer.
    pub async fn get(&self, path: &str) -> Result<Value> {
        parse(&self.raw(Method::GET, path, JSON, None).await?)
    }

    /// Succeeds if a health endpoint answers with success.
    pub async fn ping(&self, path: &str) -> Result<()> {
        self.raw(Method::GET, path, JSON, None).await.map(drop)
    }

    /// Creates an object and returns it as stored.
    ///
    /// # Errors
    /// [`Refused`], or no answer.
    pub async fn create(&self, collection: &str, object: &Value) -> Result<Value> {
        parse(&self.raw(Method::POST, collection, JSON, Some(object)).await?)
    }

    /// Replaces an object and returns it as stored.
    ///
    /// # Errors
    /// [`Refused`], or no answer.
    pub async fn replace(&self, path: &str, object: &Value) -> Result<Value> {
        parse(&self.raw(Method::PUT, path, JSON, Some(object)).await?)
    }

    /// Applies a JSON merge patch and returns the object as stored.
    ///
    /// # Errors
    /// [`Refused`], or no answer.
    pub async fn merge(&self, path: &str, patch: &Value) -> Result<Value> {
        parse(&self.raw(Method::PATCH, path, MERGE_PATCH, Some(patch)).await?)
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// [`Refused`], or no answer.
    pub async fn delete(&self, path: &str) -> Result<()> {
        self.raw(Method::DELETE, path, JSON, None).await.map(drop)
    }

    /// A whole collection.
    pub async fn list(&self, path: &str) -> Result<Listing> {
        let bytes = self.raw(Method::GET, path, JSON, None).await?;
        let listing = Listing::parse(&parse(&bytes)?).with_context(|| path.to_owned())?;
        Ok(Listing {
            bytes: bytes.len(),
            ..listing
        })
    }

    /// Sends a request whose answer is a stream; returns it with any status.
    ///
    /// # Errors
    /// The answer has not begun in time.
    pub async fn stream(&self, path: &str) -> Result<Response<Body>> {
        let request = self.request(Method::GET, path, JSON, None)?;
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, self.client.send(request));
        answer.await.context("no answer")?.map_err(Into::into)
    }

    async fn raw(&self, method: Method, path: &str, kind: HeaderValue, body: Option<&Value>) -> Result<Bytes> {
        let what = format!("{method} {path}");
        let request = self.request(method, path, kind, body)?;
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, self.exchange(request));
        let answer = answer.await.context("no answer in time").flatten();
        let (status, headers, bytes) = answer.with_context(|| what.clone())?;
        if status.is_success() {
            return Ok(bytes);
        }
        let status_object: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let message = status_object["message"].as_str().unwrap_or_default().to_owned();
        Err(Refused {
            code: status.as_u16(),
            retry_after: headers.contains_key(RETRY_AFTER),
            what,
            message,
        }
        .into())
    }

    async fn exchange(&self, request: Request<Body>) -> Result<(StatusCode, HeaderMap, Bytes)> {
        let (head, body) = self.client.send(request).await?.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| anyhow!(error).context("the answer broke off"))?;
        Ok((head.status, head.headers, body.to_bytes()))
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        content_type: HeaderValue,
        body: Option<&Value>,
    ) -> Result<Request<Body>> {
        let bytes = body.map(|value| value.to_string().into_bytes()).unwrap_or_default();
        let mut request = Request::new(Body::from(bytes));
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().with_context(|| format!("{path} must be a path"))?;
        let headers = request.headers_mut();
        headers.insert(ACCEPT, JSON);
        headers.insert(USER_AGENT, self.user_agent.clone());
        if body.is_some() {
            headers.insert(CONTENT_TYPE, content_type);
        }
        Ok(request)
    }
}

fn loopback(scheme: &str, port: u16) -> Result<Uri> {
    let uri = format!("{scheme}://127.0.0.1:{port}").parse();
    uri.context("a loopback URL must parse")
}

/// The status code, if the server answered with a refusal.
pub fn refusal(error: &anyhow::Error) -> Option<u16> {
    error.downcast_ref::<Refused>().map(|refused| refused.code)
}

/// `namespace/name` (or `name`) and resourceVersion of an object.
pub fn key_and_version(object: &Value) -> (String, u64) {
    let metadata = &object["metadata"];
    let name = metadata["name"].as_str().unwrap_or_default();
    let key = match metadata["namespace"].as_str() {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    };
    let version = metadata["resourceVersion"]
        .as_str()
        .and_then(|version| version.parse().ok())
        .unwrap_or(0);
    (key, version)
}

fn parse(bytes: &[u8]) -> Result<Value> {
    serde_json::from_slice(bytes).context("the answer is not JSON")
}

// === impl Refused ===

impl Refused {
    /// Refusal with an invented text, for tests of callers.
    pub fn sample(code: u16, retry_after: bool) -> Self {
        Self {
            code,
            retry_after,
            what: "PUT /x".to_owned(),
            message: "no".to_owned(),
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} {}", self.what, self.code, self.message)
    }
}

impl std::error::Error for Refused {}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_carry_the_namespace_and_versions_are_numbers() {
        let object = json!({"metadata": {"namespace": "demo", "name": "a", "resourceVersion": "17"}});
        assert_eq!(key_and_version(&object), ("demo/a".to_owned(), 17));
        let node = json!({"metadata": {"name": "n"}});
        assert_eq!(key_and_version(&node), ("n".to_owned(), 0));
    }

    #[test]
    fn a_refusal_is_told_from_a_broken_connection() {
        let refused = Refused::sample(409, false);
        assert_eq!(refusal(&anyhow::Error::from(refused).context("renewing")), Some(409));
        assert_eq!(refusal(&anyhow::anyhow!("connection refused")), None);
    }
}
