//! Bodies that the hub holds whole, because it changes them: limits on their bytes in memory.
//!
//! The bytes of a request count from its declared length on until the cloud has it. Those of an object that is read count
//! while they arrive, in plain text, until its client has it. A body beyond a limit gets 429 at once: the client decides
//! how long it would keep the others waiting.

use std::sync::Arc;

use bytes::Bytes;
use yurt_apimachinery::Status;
use yurt_runtime::http::{Body, BoxError, Room, read_body_into};

use super::caller::{Caller, Credential};
use super::shares::{Part, Shares};

/// Maximum bytes of one body: kube-apiserver's own limit, and twice what etcd takes.
const BODY_MAX: usize = 3 << 20;
/// Maximum bytes of an object; above an apiserver's limit for objects.
const OBJECT_MAX: usize = 4 << 20;
/// Maximum bytes of the bodies of all callers that do not act as the node. One origin alone gets a fifth: one of the
/// largest, and half as much again.
const TOTAL: usize = 24 << 20;
/// Maximum bytes of the bodies of components that act as the node.
const NODE_TOTAL: usize = 24 << 20;
/// Seconds of `Retry-After` for a caller without room.
const RETRY_AFTER: u32 = 1;

/// Room for bodies.
pub struct Bodies {
    node: Arc<Shares>,
    others: Arc<Shares>,
}

/// Room of a body that is arriving.
struct BodyRoom(Part);

impl Default for Bodies {
    fn default() -> Self {
        Self {
            node: Shares::undivided(NODE_TOTAL),
            others: Shares::fair(TOTAL),
        }
    }
}

// === impl Bodies ===

impl Bodies {
    fn part(&self, caller: &Caller) -> Part {
        let shares = match caller.credential {
            Credential::Node => &self.node,
            _ => &self.others,
        };
        shares.part(caller.origin)
    }

    /// Reads the body of a request of `caller`, of at most 3 MiB. The returned part is the room of its bytes.
    ///
    /// # Errors
    /// 413 above that limit, 429 without room, 400 if the sender ends the body early.
    pub(super) async fn read<B>(&self, caller: &Caller, body: B) -> Result<(Bytes, Part), Status>
    where
        B: hyper::body::Body<Data = Bytes, Error: Into<BoxError>>,
    {
        self.read_within(BODY_MAX, caller, body).await
    }

    /// Reads an object for `caller`, of at most 4 MiB, as [`Self::read`] does.
    ///
    /// # Errors
    /// 429 without room. Any other status says why the object cannot be read.
    pub(super) async fn read_object(&self, caller: &Caller, body: Body) -> Result<(Bytes, Part), Status> {
        self.read_within(OBJECT_MAX, caller, body).await
    }

    async fn read_within<B>(&self, limit: usize, caller: &Caller, body: B) -> Result<(Bytes, Part), Status>
    where
        B: hyper::body::Body<Data = Bytes, Error: Into<BoxError>>,
    {
        let mut room = BodyRoom(self.part(caller));
        let declared = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        room.grow(declared.min(limit)).await?;
        let bytes = read_body_into(body, limit, &mut room).await?;
        Ok((bytes, room.0))
    }
}

// === impl BodyRoom ===

impl Room for BodyRoom {
    type Error = Status;

    async fn grow(&mut self, bytes: usize) -> Result<(), Status> {
        if self.0.grow(bytes) { Ok(()) } else { Err(no_room()) }
    }
}

fn no_room() -> Status {
    let why = "too many bytes of bodies are in memory, please try again later";
    Status::too_many_requests(why, RETRY_AFTER)
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use yurt_runtime::http::{full, stream as body_of};

    use super::super::caller::Origin;
    use super::*;

    fn caller(credential: Credential, number: u8) -> Caller {
        Caller {
            component: "kubelet".to_owned(),
            credential,
            origin: Origin {
                address: [10, 1, 0, number].into(),
                uid: None,
            },
        }
    }

    fn pod(number: u8) -> Caller {
        caller(Credential::Token("made up".to_owned()), number)
    }

    /// A body of the largest size.
    fn largest() -> Body {
        full(vec![b'x'; BODY_MAX])
    }

    /// A body of 256 KiB.
    fn quarter() -> Body {
        full(vec![b'x'; 256 << 10])
    }

    #[tokio::test]
    async fn bodies_of_one_pod_or_of_many_leave_room_for_others_and_the_node() {
        let (bodies, mut held) = (Bodies::default(), Vec::new());
        held.push(bodies.read(&pod(0), largest()).await.unwrap());
        for number in 0..8 {
            while let Ok(read) = bodies.read(&pod(number), quarter()).await {
                held.push(read);
            }
        }
        let refused = bodies.read(&pod(0), full("x")).await.map(drop).unwrap_err();
        assert_eq!((refused.code(), refused.retry_after()), (429, Some(RETRY_AFTER)));
        let object = bodies.read_object(&pod(0), full("x")).await;
        assert_eq!(object.map(drop).unwrap_err().code(), 429);
        assert!(bodies.read(&pod(9), quarter()).await.is_ok());
        assert_eq!(bodies.read(&pod(9), largest()).await.map(drop).unwrap_err().code(), 429);
        for _ in 0..NODE_TOTAL / BODY_MAX {
            held.push(bodies.read(&caller(Credential::Node, 1), largest()).await.unwrap());
        }
        drop(held);
        assert!(bodies.read(&pod(9), largest()).await.is_ok());
    }

    #[tokio::test]
    async fn body_without_a_length_is_counted_while_it_arrives() {
        let (bodies, pieces) = (Bodies::default(), |count| {
            let pieces = (0..count).map(|_| Ok::<_, BoxError>(Bytes::from_static(&[b'x'; 1 << 20])));
            body_of(stream::iter(pieces.collect::<Vec<_>>()))
        });
        let _held = bodies.read(&pod(1), largest()).await.unwrap();
        assert_eq!(bodies.read(&pod(1), pieces(2)).await.map(drop).unwrap_err().code(), 429);
        assert!(bodies.read(&pod(1), pieces(1)).await.is_ok());
        assert_eq!(bodies.read(&pod(2), pieces(4)).await.map(drop).unwrap_err().code(), 413);
    }
}
