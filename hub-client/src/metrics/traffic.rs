//! Bytes on the link to the cloud, by component, resource and direction: bodies as they travel, compressed or not.
//! Headers, TLS, upgraded connections, heartbeats and probes are not counted.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Frame, SizeHint};
use prometheus::{IntCounter, IntCounterVec, Opts};
use yurt_apimachinery::kind::find_kind;
use yurt_runtime::http::{Body, BoxError};

/// Label of all components that have none of their own, and of all resources that are not built in.
pub(crate) const OTHER: &str = "other";

/// Counter of the bytes. Cheap to clone; clones count together.
#[derive(Clone, Debug)]
pub(crate) struct Traffic(IntCounterVec);

/// Direction of a body.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Direction {
    /// To the cloud.
    Sent,
    /// From the cloud.
    Received,
}

/// A body whose bytes are counted as they pass.
struct Counted {
    body: Body,
    bytes: IntCounter,
}

// === impl Traffic ===

impl Default for Traffic {
    fn default() -> Self {
        let opts = Opts::new(
            "node_yurthub_cloud_bytes_total",
            "Bytes of bodies on the link to the cloud, as they travel",
        );
        let bytes = IntCounterVec::new(opts, &["component", "resource", "direction"]);
        Self(bytes.expect("the name and the labels are valid"))
    }
}

impl Traffic {
    /// The counter, to be registered.
    pub(crate) fn collector(&self) -> IntCounterVec {
        self.0.clone()
    }

    /// Returns the same body, counted. `component` must be one of a bounded set.
    pub(crate) fn counted(
        &self,
        direction: Direction,
        component: &str,
        (group, resource): (&str, &str),
        body: Body,
    ) -> Body {
        if body.is_end_stream() {
            return body;
        }
        let resource = find_kind(group, resource).map_or(OTHER, |_| resource);
        let direction = match direction {
            Direction::Sent => "sent",
            Direction::Received => "received",
        };
        let bytes = self.0.with_label_values(&[component, resource, direction]);
        Counted { body, bytes }.boxed_unsync()
    }
}

impl hyper::body::Body for Counted {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame {
            self.bytes
                .inc_by(frame.data_ref().map_or(0, |piece| piece.len() as u64));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use yurt_runtime::http::{empty, full};

    use super::*;

    #[tokio::test]
    async fn bytes_are_counted_by_component_and_by_resource_if_it_is_built_in() {
        let traffic = Traffic::default();
        for (resource, length) in [(("", "pods"), 3), (("", "pods"), 4), (("made.up", "things"), 5)] {
            let body = traffic.counted(Direction::Received, "kubelet", resource, full(vec![0; length]));
            assert_eq!(body.size_hint().exact(), Some(length as u64));
            body.collect().await.unwrap();
        }
        let _unused = traffic.counted(Direction::Sent, "kubelet", ("", "pods"), empty());
        let count = |resource, direction| traffic.0.with_label_values(&["kubelet", resource, direction]).get();
        assert_eq!((count("pods", "received"), count(OTHER, "received")), (7, 5));
        assert_eq!(count("pods", "sent"), 0);
    }
}
