//! A small client of the Kubernetes API, limited to the needs of the testbed.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use futures_util::StreamExt as _;
use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use hyper::body::Incoming;
use serde_json::Value;
use yurt_runtime::http::client::{HttpClient, MAX_JSON_RESPONSE, Protocol};
use yurt_runtime::http::{APPLICATION_JSON, empty, full, stream};
use yurt_runtime::tls::{ClientTls, PemIdentity, PemPair, PemSource};

/// A client of one server. Cheap to clone.
#[derive(Clone)]
pub struct Api {
    http: HttpClient,
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
const MERGE_PATCH: HeaderValue = HeaderValue::from_static("application/merge-patch+json");

// === impl Api ===

impl Api {
    /// A server on the loopback interface that trusts and is trusted by `ca_pem`.
    pub fn https(port: u16, ca_pem: &str, identity: &PemPair) -> Result<Self> {
        let identity = PemIdentity::inline("the demo's administrator", identity);
        Self::tls(port, ca_pem, Some(identity), Protocol::Auto)
    }

    /// As [`Self::https`], without a certificate of its own, and with a connection for each request.
    pub fn anonymous(port: u16, ca_pem: &str) -> Result<Self> {
        Self::tls(port, ca_pem, None, Protocol::Http1)
    }

    fn tls(port: u16, ca_pem: &str, identity: Option<PemIdentity>, protocol: Protocol) -> Result<Self> {
        let ca = PemSource::inline("the demo's CA", ca_pem);
        let tls = ClientTls { ca, identity };
        let base = format!("https://127.0.0.1:{port}")
            .parse()
            .context("a loopback URL must parse")?;
        let http = HttpClient::new(base, Some(tls.config()?), protocol, CONNECT_TIMEOUT)?;
        Ok(Self {
            http,
            user_agent: HeaderValue::from_static("admin/demo"),
        })
    }

    /// A plain HTTP port on the loopback interface: a hub's proxy or its health server.
    pub fn plain(port: u16, user_agent: &'static str) -> Result<Self> {
        let base = format!("http://127.0.0.1:{port}")
            .parse()
            .context("a loopback URL must parse")?;
        let http = HttpClient::new(base, None, Protocol::Http1, CONNECT_TIMEOUT)?;
        Ok(Self {
            http,
            user_agent: HeaderValue::from_static(user_agent),
        })
    }

    /// Reads one object, or any JSON document.
    ///
    /// # Errors
    /// [`Refused`], or no answer.
    pub async fn get(&self, path: &str) -> Result<Value> {
        parse(&self.raw(Method::GET, path, APPLICATION_JSON, None).await?)
    }

    /// Succeeds if a health endpoint answers with success.
    pub async fn ping(&self, path: &str) -> Result<()> {
        self.raw(Method::GET, path, APPLICATION_JSON, None).await.map(drop)
    }

    /// Creates an object and returns it as stored.
    ///
    /// # Errors
    /// [`Refused`], or no answer.
    pub async fn create(&self, collection: &str, object: &Value) -> Result<Value> {
        parse(
            &self
                .raw(Method::POST, collection, APPLICATION_JSON, Some(object))
                .await?,
        )
    }

    /// Replaces an object and returns it as stored.
    ///
    /// # Errors
    /// [`Refused`], or no answer.
    pub async fn replace(&self, path: &str, object: &Value) -> Result<Value> {
        parse(&self.raw(Method::PUT, path, APPLICATION_JSON, Some(object)).await?)
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
        self.raw(Method::DELETE, path, APPLICATION_JSON, None).await.map(drop)
    }

    /// A whole collection.
    pub async fn list(&self, path: &str) -> Result<Listing> {
        let bytes = self.raw(Method::GET, path, APPLICATION_JSON, None).await?;
        let list = parse(&bytes)?;
        let items = list["items"]
            .as_array()
            .with_context(|| format!("{path} is not a list"))?;
        let objects = items.iter().map(key_and_version).collect();
        Ok(Listing {
            resource_version: key_and_version(&list).1,
            objects,
            bytes: bytes.len(),
        })
    }

    /// Sends a request with these headers; returns status and body of any answer.
    ///
    /// # Errors
    /// When there is no complete answer.
    pub async fn ask(
        &self,
        (method, path): (Method, &str),
        headers: &HeaderMap,
        body: Option<&Value>,
    ) -> Result<(u16, Bytes)> {
        let what = format!("{method} {path}");
        let mut request = self.request(method, path, APPLICATION_JSON, body)?;
        request.headers_mut().extend(headers.clone());
        let answer = self
            .http
            .request_bytes(request, ANSWER_TIMEOUT, MAX_JSON_RESPONSE)
            .await;
        let (status, _, bytes) = answer.context(what)?;
        Ok((status.as_u16(), bytes))
    }

    /// Sends a POST with these headers whose body begins and never ends; returns its answer within `limit`.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub async fn begin(&self, path: &str, headers: &HeaderMap, limit: Duration) -> Result<(u16, Bytes)> {
        let mut request = self.request(Method::POST, path, APPLICATION_JSON, None)?;
        request.headers_mut().extend(headers.clone());
        request.headers_mut().insert(CONTENT_TYPE, APPLICATION_JSON);
        let begun = futures_util::stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(b"{"))]);
        *request.body_mut() = stream(begun.chain(futures_util::stream::pending()));
        let answer = self.http.request_bytes(request, limit, MAX_JSON_RESPONSE).await;
        let (status, _, bytes) = answer.with_context(|| format!("POST {path}"))?;
        Ok((status.as_u16(), bytes))
    }

    /// Sends a request whose answer is a stream; returns it with any status.
    pub async fn stream(&self, path: &str) -> Result<Response<Incoming>> {
        let request = self.request(Method::GET, path, APPLICATION_JSON, None)?;
        tokio::time::timeout(ANSWER_TIMEOUT, self.http.send(request))
            .await
            .context("no answer")?
            .map_err(Into::into)
    }

    async fn raw(&self, method: Method, path: &str, kind: HeaderValue, body: Option<&Value>) -> Result<Bytes> {
        let what = format!("{method} {path}");
        let request = self.request(method, path, kind, body)?;
        let answer = self
            .http
            .request_bytes(request, ANSWER_TIMEOUT, MAX_JSON_RESPONSE)
            .await;
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

    fn request(
        &self,
        method: Method,
        path: &str,
        content_type: HeaderValue,
        body: Option<&Value>,
    ) -> Result<Request<yurt_runtime::http::Body>> {
        let mut request = Request::new(body.map_or_else(empty, |value| full(value.to_string())));
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().with_context(|| format!("{path} must be a path"))?;
        let headers = request.headers_mut();
        headers.insert(ACCEPT, APPLICATION_JSON);
        headers.insert(USER_AGENT, self.user_agent.clone());
        if body.is_some() {
            headers.insert(CONTENT_TYPE, content_type);
        }
        Ok(request)
    }
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
