//! gRPC over the runtime's HTTP/2 client: unary calls and bidirectional streams.
//!
//! A message is one byte of flags (no compression here), four bytes of length, the protobuf. The outcome is in the
//! trailers, or in the headers if there is no message at all.

use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, TE};
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use prost::Message;
use tokio::sync::mpsc;
use yurt_runtime::http::client::{ClientError, HttpClient};
use yurt_runtime::http::{self as web, Body};

/// Maximum size of a received message in bytes. The smallest page of a list is one object, which etcd limits to 1.5 MiB
/// by default. A fragment of a watch contains at most that and the previous state. A larger message of an etcd with a
/// raised limit ends in a reload.
pub(super) const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// Maximum number of unsent messages of a stream.
const UNSENT_MAX: usize = 16;

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
/// Header with which etcd immediately rejects calls that need a leader while it has none, and ends such streams.
const HAS_LEADER: HeaderName = HeaderName::from_static("hasleader");

/// Refusals by one member alone, under codes that have other meanings as well: it is a learner, or it applies changes
/// too slowly.
const OF_MEMBER: [&str; 2] = ["not supported for learner", "too many requests"];

/// Refusals of a client's credentials under the code INVALID_ARGUMENT, which has other meanings as well.
const OF_CLIENT: [&str; 2] = ["user name is empty", "authentication failed"];

/// Reason why a call has no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum CallError {
    /// A failure of the transport to the server.
    #[error("{0}")]
    Transport(#[from] ClientError),
    /// The server's own message.
    #[error("{message} (gRPC code {code})")]
    Refused {
        /// gRPC's status code.
        code: u32,
        /// etcd's text.
        message: String,
    },
    /// The answer is above [`MESSAGE_BYTES_MAX`].
    #[error("a message of {0} bytes is too large")]
    TooLarge(usize),
    /// The answer is malformed, or ends early.
    #[error("broken answer: {0}")]
    Malformed(String),
    /// The member's version may lose changes, see [`super::version`].
    #[error("etcd {0:?} is too old, its watches may lose changes; upgrade it to 3.4.31, 3.5.13, 3.6 or later")]
    Outdated(String),
}

/// A stream in both directions.
pub(super) struct Duplex {
    requests: mpsc::Sender<Bytes>,
    answers: Answers,
}

/// Messages of one answer.
struct Answers {
    body: Body,
    buffer: BytesMut,
}

/// One request, one answer, all within `timeout`.
///
/// # Errors
/// [`CallError`].
pub(super) async fn unary<R: Message + Default>(
    client: &HttpClient,
    path: &'static str,
    query: &impl Message,
    timeout: Duration,
) -> Result<R, CallError> {
    let mut request = request(path, web::full(frame(query)));
    if let Ok(value) = HeaderValue::try_from(format!("{}m", timeout.as_millis())) {
        request.headers_mut().insert(TIMEOUT, value);
    }
    let exchange = async {
        let mut answers = answers(client, request).await?;
        let message = answers.next().await?;
        let message = message.ok_or_else(|| CallError::Malformed("no message in the answer".into()))?;
        // The outcome follows the message.
        while answers.next::<R>().await?.is_some() {}
        Ok(message)
    };
    match tokio::time::timeout(timeout, exchange).await {
        Ok(outcome) => outcome,
        Err(_) => Err(CallError::Transport(ClientError::Timeout {
            server: client.server(),
            after: timeout,
            connecting: false,
        })),
    }
}

/// True if one member refused the call before it did anything.
fn is_of_member(message: &str) -> bool {
    OF_MEMBER.iter().any(|text| message.contains(text))
}

// === impl CallError ===

impl CallError {
    /// True if the server certainly did nothing.
    pub(super) fn never_applied(&self) -> bool {
        match self {
            Self::Transport(error) => error.never_sent() || error.rejects_client(),
            // Rejected before a proposal, or because of the request itself.
            Self::Refused { code, message } => {
                matches!(code, 3 | 5 | 7 | 8 | 9 | 11 | 12 | 16)
                    || message.contains("no leader")
                    || is_of_member(message)
            }
            Self::TooLarge(_) | Self::Malformed(_) => false,
            Self::Outdated(_) => true,
        }
    }

    /// True if another server may succeed.
    pub(super) fn is_of_server(&self) -> bool {
        match self {
            Self::Transport(_) | Self::Malformed(_) | Self::Outdated(_) => true,
            // UNKNOWN, DEADLINE_EXCEEDED, UNIMPLEMENTED (no etcd behind the port), INTERNAL, UNAVAILABLE.
            Self::Refused { code, message } => {
                matches!(code, 2 | 4 | 12 | 13 | 14) || is_of_member(message) || self.is_of_client()
            }
            Self::TooLarge(_) => false,
        }
    }

    /// True if waiting does not help: the server rejects this client, is too old, or holds a value that is too large.
    pub(super) fn is_lasting(&self) -> bool {
        self.is_of_client() || matches!(self, Self::Outdated(_) | Self::TooLarge(_))
    }

    /// True if the server does not know the call.
    pub(super) fn is_unimplemented(&self) -> bool {
        matches!(self, Self::Refused { code: 12, .. })
    }

    /// True if the server rejects this client, whatever it asks.
    pub(super) fn is_of_client(&self) -> bool {
        match self {
            // PERMISSION_DENIED, UNAUTHENTICATED; INVALID_ARGUMENT if credentials are missing or wrong.
            Self::Refused { code: 7 | 16, .. } => true,
            Self::Refused { code: 3, message } => OF_CLIENT.iter().any(|text| message.contains(text)),
            // etcd with --client-cert-auth.
            Self::Transport(error) => error.rejects_client(),
            _ => false,
        }
    }
}

// === impl Duplex ===

impl Duplex {
    /// Opens a stream with its first message; returns when the server has answered the header.
    ///
    /// # Errors
    /// [`CallError`].
    pub(super) async fn open(client: &HttpClient, path: &'static str, first: &impl Message) -> Result<Self, CallError> {
        let (requests, unsent) = mpsc::channel::<Bytes>(UNSENT_MAX);
        // The channel is empty and open.
        let _ = requests.try_send(frame(first));
        let pieces = futures_util::stream::unfold(unsent, |mut unsent| async move {
            let piece = unsent.recv().await?;
            Some((Ok::<_, std::convert::Infallible>(piece), unsent))
        });
        let answers = answers(client, request(path, web::stream(pieces))).await?;
        Ok(Self { requests, answers })
    }

    /// Sends another message; drops it while earlier ones are still unsent.
    pub(super) fn send(&self, message: &impl Message) {
        let _ = self.requests.try_send(frame(message));
    }

    /// The next message; `None` at a clean end.
    ///
    /// # Errors
    /// [`CallError`].
    ///
    /// # Cancel safety
    /// Safe: data that has arrived is kept.
    pub(super) async fn next<R: Message + Default>(&mut self) -> Result<Option<R>, CallError> {
        self.answers.next().await
    }
}

// === impl Answers ===

impl Answers {
    async fn next<R: Message + Default>(&mut self) -> Result<Option<R>, CallError> {
        loop {
            if let Some(message) = take_message(&mut self.buffer)? {
                let decoded = R::decode(message).map_err(|error| CallError::Malformed(error.to_string()))?;
                return Ok(Some(decoded));
            }
            let Some(frame) = self.body.frame().await else {
                return if self.buffer.is_empty() {
                    Ok(None)
                } else {
                    Err(CallError::Malformed("the stream ends inside a message".into()))
                };
            };
            let frame = frame.map_err(|error| CallError::Malformed(error.to_string()))?;
            match frame.into_data() {
                Ok(data) => self.buffer.extend_from_slice(&data),
                Err(frame) => {
                    if let Ok(trailers) = frame.into_trailers() {
                        check_status(&trailers)?;
                    }
                }
            }
        }
    }
}

async fn answers(client: &HttpClient, request: Request<Body>) -> Result<Answers, CallError> {
    let (head, body) = client.send(request).await?.into_parts();
    if head.status != StatusCode::OK {
        return Err(CallError::Malformed(format!("HTTP status {}", head.status)));
    }
    check_status(&head.headers)?;
    Ok(Answers {
        body: web::pass(body),
        buffer: BytesMut::new(),
    })
}

fn request(path: &'static str, body: Body) -> Request<Body> {
    let mut request = Request::new(body);
    *request.method_mut() = Method::POST;
    *request.uri_mut() = http::Uri::from_static(path);
    let headers = request.headers_mut();
    headers.insert(CONTENT_TYPE, GRPC);
    headers.insert(TE, HeaderValue::from_static("trailers"));
    headers.insert(HAS_LEADER, HeaderValue::from_static("true"));
    request
}

pub(super) fn frame(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(5 + length);
    bytes.put_u8(0);
    // Requests are far smaller: etcd limits a transaction.
    bytes.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // A BytesMut grows; encoding into it cannot fail.
    let _ = message.encode(&mut bytes);
    bytes.freeze()
}

/// Takes a whole message from the front of `buffer`, if it is complete.
fn take_message(buffer: &mut BytesMut) -> Result<Option<Bytes>, CallError> {
    let Some(head) = buffer.first_chunk::<5>() else {
        return Ok(None);
    };
    if head[0] != 0 {
        return Err(CallError::Malformed("the message is compressed".into()));
    }
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    if length > MESSAGE_BYTES_MAX {
        return Err(CallError::TooLarge(length));
    }
    if buffer.len() < 5 + length {
        return Ok(None);
    }
    buffer.advance(5);
    Ok(Some(buffer.split_to(length).freeze()))
}

/// Returns an error if `headers` report a failed call.
fn check_status(headers: &HeaderMap) -> Result<(), CallError> {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let Some(status) = text(STATUS) else { return Ok(()) };
    match status.parse() {
        Ok(0) => Ok(()),
        Ok(code) => {
            let message = text(MESSAGE).unwrap_or_default();
            let message = percent_encoding::percent_decode_str(message).decode_utf8_lossy();
            Err(CallError::Refused {
                code,
                message: message.into_owned(),
            })
        }
        Err(_) => Err(CallError::Malformed(format!("status {status:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd3::wire::{CompactionRequest, ResponseHeader};

    #[test]
    fn messages_come_back_whole_whatever_the_pieces() {
        let message = ResponseHeader {
            cluster_id: 7,
            revision: 300,
        };
        let sent = [frame(&message), frame(&CompactionRequest { revision: 1 })].concat();
        let mut buffer = BytesMut::new();
        let mut taken = Vec::new();
        for byte in sent {
            buffer.put_u8(byte);
            taken.extend(take_message(&mut buffer).expect("well formed"));
        }
        assert_eq!(taken.len(), 2);
        assert_eq!(ResponseHeader::decode(taken[0].clone()), Ok(message));
    }

    #[test]
    fn announced_giants_and_compressed_messages_are_refused() {
        let limit = u32::try_from(MESSAGE_BYTES_MAX).expect("it is small");
        let announced = |flag: u8, length: u32| {
            let mut buffer = BytesMut::new();
            buffer.put_u8(flag);
            buffer.put_u32(length);
            take_message(&mut buffer)
        };
        assert!(matches!(announced(0, limit), Ok(None)));
        assert!(matches!(announced(0, limit + 1), Err(CallError::TooLarge(_))));
        assert!(matches!(announced(1, 0), Err(CallError::Malformed(_))));
    }

    /// etcd `isRPCSupportedForLearner`, and `ErrTooManyRequests` before a proposal.
    #[test]
    fn learner_and_slow_member_are_left_for_another_one() {
        let is_left = |code, message: &str| {
            let message = message.into();
            let error = CallError::Refused { code, message };
            error.is_of_server() && error.never_applied()
        };
        assert!(is_left(9, "etcdserver: rpc not supported for learner"));
        assert!(is_left(14, "etcdserver: rpc not supported for learner"), "etcd 3.5");
        assert!(is_left(8, "etcdserver: too many requests"));
        assert!(!is_left(9, "etcdserver: not leader"));
        assert!(!is_left(8, "etcdserver: mvcc: database space exceeded"));
    }

    #[test]
    fn large_request_is_no_fault_of_the_client() {
        let refused = |code, message: &str| CallError::Refused {
            code,
            message: message.into(),
        };
        assert!(refused(3, "etcdserver: user name is empty").is_of_client());
        assert!(refused(7, "etcdserver: permission denied").is_of_client());
        let large = refused(3, "etcdserver: request is too large");
        assert!(!large.is_of_client() && !large.is_of_server());
    }

    #[test]
    fn client_whose_certificate_is_rejected_is_refused() {
        let tls = |cause: &str, handshake| {
            CallError::Transport(ClientError::Tls {
                server: "https://etcd:2379".into(),
                cause: cause.into(),
                handshake,
            })
        };
        for handshake in [true, false] {
            let refused = tls("received fatal alert: CertificateRequired", handshake);
            assert!(refused.is_of_client() && refused.is_of_server() && refused.never_applied());
        }
        let other = tls("invalid peer certificate: UnknownIssuer", true);
        assert!(!other.is_of_client(), "the member may get another certificate");
    }

    #[test]
    fn outcome_is_read_from_headers_and_trailers() {
        let with = |status: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(STATUS, HeaderValue::from_static(status));
            headers.insert(MESSAGE, HeaderValue::from_static("etcdserver: no%20leader"));
            check_status(&headers)
        };
        assert!(with("0").is_ok() && check_status(&HeaderMap::new()).is_ok());
        let Err(refused) = with("14") else { panic!("refused") };
        assert_eq!(refused.to_string(), "etcdserver: no leader (gRPC code 14)");
        assert!(refused.never_applied() && refused.is_of_server());
        assert!(matches!(with("x"), Err(CallError::Malformed(_))));
    }
}
