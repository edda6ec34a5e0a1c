//! Sends the requests of a stream and checks their answers.

use http::header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, HeaderName, USER_AGENT};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use yurt_collection::Collection;
use yurt_collection::generation::is_earlier;
use yurt_pool_protocol::members;
use yurt_pool_protocol::names::REPLICA_HEADER;
use yurt_pool_protocol::source::Source;
use yurt_runtime::http::client::{ClientError, HttpClient};
use yurt_runtime::http::{ACCEPT_GZIP, Body, empty, pass};

use super::answer::{generation_of, is_stale, read_all};
use super::{IDLE, Reflector, StreamEnd};
use crate::metrics::traffic::Direction;
use crate::replicas::history_check::{Connection, ConnectionKind};
use crate::upstream::{describe_answer, retry_after};

// === impl Reflector ===

impl Reflector {
    /// Returns an answer with status 200.
    pub(in crate::replicas) async fn get(&self, query: &str) -> Result<Response<Body>, StreamEnd> {
        let response = self.send(query).await?;
        self.require_ok(response).await
    }

    /// Returns any answer.
    pub(in crate::replicas) async fn send(&self, query: &str) -> Result<Response<Body>, StreamEnd> {
        self.send_as(query, false).await
    }

    /// Returns any answer. For a replica, a coordinator also reports how it obtained its data, even in the role of the
    /// cloud. kube-apiserver sends every change separately and ignores the header.
    pub(super) async fn send_as(&self, query: &str, is_replica: bool) -> Result<Response<Body>, StreamEnd> {
        let mut path = match &self.selected {
            Some(selected) => selected.request(query),
            None => format!("{}?{query}", self.wire_kind().collection_path()),
        };
        let mut accept = "application/json";
        if self.reads_nodes() {
            path.push_str(&format!(
                "&labelSelector={}%3D{}",
                members::POOL_LABEL.replace('/', "%2F"),
                self.pool
            ));
            accept = if query.starts_with("watch") {
                "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
            } else {
                "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
            };
        }
        let mut headers = vec![(ACCEPT_ENCODING, ACCEPT_GZIP)];
        if is_replica {
            headers.push((HeaderName::from_static(REPLICA_HEADER), HeaderValue::from_static("1")));
        }
        let authorization = self.selected.as_ref().and_then(|one| one.authorization.clone());
        headers.extend(authorization.map(|value| (AUTHORIZATION, value)));
        self.open(&path, accept, headers).await
    }

    /// Sends a GET and returns any answer.
    pub(in crate::replicas) async fn open(
        &self,
        path: &str,
        accept: &'static str,
        more: Vec<(HeaderName, HeaderValue)>,
    ) -> Result<Response<Body>, StreamEnd> {
        let mut request = Request::new(());
        *request.uri_mut() = path
            .parse()
            .map_err(|_| StreamEnd::Failed(format!("{path:?} is not a path")))?;
        let headers = request.headers_mut();
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        headers.extend(more);
        let agent = if self.source == Source::Cloud {
            "leader-yurthub"
        } else {
            "yurthub"
        };
        headers.insert(USER_AGENT, HeaderValue::from_static(agent));
        let sent = async {
            match &self.selected {
                Some(selected) => selected.send(request).await,
                None => self
                    .client
                    .send(request.map(|()| empty()))
                    .await
                    .map(|answer| answer.map(pass)),
            }
        };
        let sent = tokio::time::timeout(IDLE, sent).await;
        let sent = sent.map_err(|_| StreamEnd::Failed("no answer in time".into()))?;
        let response = sent.map_err(failed)?;
        self.may_be_taken(HttpClient::connection_of(&response)).await?;
        if self.source != Source::Cloud {
            return Ok(response);
        }
        let kind = self.wire_kind();
        let resource = (kind.group.as_ref(), kind.plural.as_ref());
        let received = |body| self.traffic.counted(Direction::Received, "yurthub", resource, body);
        Ok(response.map(received))
    }

    /// Waits until a proof covers the connection of a cloud answer, which has this number. The connection may be newer
    /// than the request, so nothing is read before that.
    async fn may_be_taken(&self, number: u64) -> Result<(), StreamEnd> {
        let has_token = self.selected.as_ref().map(|selected| selected.authorization.is_some());
        let kind = match has_token {
            None => ConnectionKind::Pool,
            Some(false) => ConnectionKind::Selections,
            Some(true) => ConnectionKind::TokenSelections,
        };
        let connection = Connection {
            server: self.place,
            kind,
            number,
        };
        if self.source == Source::Cloud && !self.data.history().proven_over(connection).await {
            return Err(StreamEnd::Failed("the cloud's history is not proved".into()));
        }
        Ok(())
    }

    /// Checks that the data of a coordinator may replace the replica. After a restore of its store from a copy, a
    /// coordinator serves data of an earlier history than the replica's, until a leader feeds it.
    pub(in crate::replicas) fn require_later_history(&self, headers: &HeaderMap) -> Result<(), StreamEnd> {
        let told = generation_of(headers).filter(|_| self.source == Source::Coordinator && is_stale(headers));
        let held = |held: &Collection| held.is_complete().then(|| held.generation());
        let Some((told, held)) = told.zip(self.replica.collection().read(held)) else {
            return Ok(());
        };
        match is_earlier(told, held) {
            true => Err(StreamEnd::Refused(format!(
                "no leader confirms the coordinator's generation {told}, which is earlier than {held}, the one held: its store \
                 may have been restored from a copy, or this hub began a generation of its own"
            ))),
            false => Ok(()),
        }
    }

    pub(in crate::replicas) async fn require_ok(&self, response: Response<Body>) -> Result<Response<Body>, StreamEnd> {
        match response.status() {
            StatusCode::OK => Ok(response),
            StatusCode::GONE => Err(StreamEnd::Expired),
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                Err(StreamEnd::NotReady(retry_after(response.headers())))
            }
            status => {
                let body = read_all(response).await.unwrap_or_default();
                let why = describe_answer(status, &body);
                Err(match status {
                    StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND => {
                        StreamEnd::Denied(status, why)
                    }
                    _ => StreamEnd::Refused(why),
                })
            }
        }
    }
}

fn failed(error: ClientError) -> StreamEnd {
    StreamEnd::Failed(error.to_string())
}
