//! Bodies that the hub holds whole, because it changes them: limits on their bytes in memory.
//!
//! The bytes of a request count from its declared length on until the cloud has it. Those of an object that is read
//! count while they arrive, in plain text, until its client has it. A body beyond a limit gets 429 at once: the client
//! decides how long it would keep the others waiting. The answer of a write has its room before the cloud gets the
//! write.

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
/// Maximum bytes of the bodies of all callers that do not act as the node. One origin alone gets a fifth: the largest
/// body, and beside it the largest object, which a write may need.
const TOTAL: usize = 5 * (BODY_MAX + OBJECT_MAX);
/// Maximum bytes of the bodies of components that act as the node.
const NODE_TOTAL: usize = 24 << 20;
/// Bytes that are reserved for the answer of a write at least: more than most objects have.
const ANSWER_MIN: usize = 64 << 10;
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
    /// Returns an empty part of `caller`.
    pub(super) fn part(&self, caller: &Caller) -> Part {
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
        read_within(BODY_MAX, self.part(caller), body).await
    }

    /// Reserves room for the answer of a write of `caller` that has `expected` bytes.
    ///
    /// # Errors
    /// 429 without room.
    pub(super) fn answer_room(&self, caller: &Caller, expected: usize) -> Result<Part, Status> {
        let mut part = self.part(caller);
        match part.grow(expected.clamp(ANSWER_MIN, OBJECT_MAX)) {
            true => Ok(part),
            false => Err(no_room()),
        }
    }
}

/// Reads an object of at most 4 MiB, as [`Bodies::read`] does. Raises `room` to its bytes if it is less.
///
/// # Errors
/// 429 without room. Any other status says why the object cannot be read.
pub(super) async fn read_object(room: Part, body: Body) -> Result<(Bytes, Part), Status> {
    read_within(OBJECT_MAX, room, body).await
}

async fn read_within<B>(limit: usize, room: Part, body: B) -> Result<(Bytes, Part), Status>
where
    B: hyper::body::Body<Data = Bytes, Error: Into<BoxError>>,
{
    let mut room = BodyRoom(room);
    let declared = declared_length(&body);
    room.grow(declared.min(limit)).await?;
    let bytes = read_body_into(body, limit, &mut room).await?;
    Ok((bytes, room.0))
}

/// Bytes that a body has at least.
pub(super) fn declared_length(body: &impl hyper::body::Body) -> usize {
    usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX)
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
        let object = read_object(bodies.part(&pod(0)), full("x")).await;
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
    async fn largest_write_has_room_beside_the_largest_object_if_its_origin_is_alone() {
        let bodies = Bodies::default();
        let (_body, _room) = bodies.read(&pod(1), largest()).await.unwrap();
        let present = full(vec![b'x'; OBJECT_MAX]);
        assert!(read_object(bodies.part(&pod(1)), present).await.is_ok());
    }

    #[tokio::test]
    async fn answer_of_a_write_keeps_its_room_while_others_take_the_rest() {
        let (bodies, mut held) = (Bodies::default(), Vec::new());
        let room = bodies.answer_room(&pod(1), 1 << 20).unwrap();
        for number in 1..40 {
            while let Ok(part) = bodies.answer_room(&pod(number), 0) {
                held.push(part);
            }
        }
        assert!(bodies.answer_room(&pod(1), 0).is_err());
        let answer = full(vec![b'x'; 1 << 20]);
        assert_eq!(
            read_object(room, answer).await.map(|(answer, _)| answer.len()),
            Ok(1 << 20)
        );
    }

    #[tokio::test]
    async fn body_without_a_length_is_counted_while_it_arrives() {
        let (bodies, pieces) = (Bodies::default(), |count| {
            let pieces = (0..count).map(|_| Ok::<_, BoxError>(Bytes::from_static(&[b'x'; 1 << 20])));
            body_of(stream::iter(pieces.collect::<Vec<_>>()))
        });
        let _held = [
            bodies.read(&pod(1), largest()).await.unwrap(),
            bodies.read(&pod(1), largest()).await.unwrap(),
        ];
        assert_eq!(bodies.read(&pod(1), pieces(2)).await.map(drop).unwrap_err().code(), 429);
        assert!(bodies.read(&pod(1), pieces(1)).await.is_ok());
        assert_eq!(bodies.read(&pod(2), pieces(4)).await.map(drop).unwrap_err().code(), 413);
    }
}
