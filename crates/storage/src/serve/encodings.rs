//! The encodings that lists share: they are made on several cores, and live while lists use them.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use yurt_apimachinery::list::ListMeta;
use yurt_apimachinery::time::Time;
use yurt_apimachinery::{Object, ResourceKind};
use yurt_codec::encoding_cache;
use yurt_codec::negotiation::Negotiated;
use yurt_codec::representation::ListBody;
use yurt_runtime::{memory, parallel};

/// Time after which an encoding that no list used is released; within twice this time it is.
///
/// Clients that reconnect after an outage list within seconds. A client that starts alone pays for the encoding again.
const UNUSED_MAX: Duration = Duration::from_secs(10);

/// Number of items that are measured in one turn: renewals and probes share the thread.
const MEASURED_AT_ONCE: usize = 256;

/// A list as a body, as [`Negotiated::list`] makes it. The first list after a start, and each one of metadata in
/// protobuf, encodes thousands of objects while its client waits. Between two parts other tasks have their turns.
///
/// # Cancel safety
/// Changes nothing.
pub async fn encode(
    how: Negotiated,
    kind: &ResourceKind,
    meta: &ListMeta,
    objects: Vec<Object>,
    now: Time,
) -> ListBody {
    let mut bytes = 0;
    for part in objects.chunks(MEASURED_AT_ONCE) {
        if bytes > 0 {
            tokio::task::yield_now().await;
        }
        if let Some(message) = how.cached_message(kind) {
            let new = encoding_cache::unmeasured(part);
            parallel::map(&new, |object| encoding_cache::measure(object, message));
        }
        bytes += how.items_len(kind, part, now);
    }
    how.measured_list(kind, meta, objects, bytes, now)
}

/// Releases cached encodings that no list uses, until `token` is cancelled.
pub async fn release_encodings(token: CancellationToken) {
    let elapsed = || token.run_until_cancelled(tokio::time::sleep(UNUSED_MAX));
    while elapsed().await.is_some() {
        // The allocator blocks for a while.
        let release = || {
            memory::return_rest();
            memory::note_freed(encoding_cache::release_unused());
        };
        let _ = tokio::task::spawn_blocking(release).await;
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;

    use bytes::Bytes;
    use yurt_apimachinery::ResourceVersion;
    use yurt_apimachinery::kind::find_kind;
    use yurt_codec::negotiation::{Format, MetaVersion, Transform};

    use super::*;

    /// Objects of their own for each list, so that no encoding is shared.
    fn services() -> Vec<Object> {
        let kind = find_kind("", "services").unwrap();
        let text = |n| format!(r#"{{"metadata":{{"name":"s{n}","namespace":"n","resourceVersion":"{n}"}}}}"#);
        (1..=1000)
            .map(|n| Object::parse(text(n).into(), kind).unwrap())
            .collect()
    }

    fn forms() -> Vec<Negotiated> {
        let metadata = Transform::PartialObjectMetadata(MetaVersion::V1);
        let form = |(format, transform)| Negotiated {
            format,
            transform,
            ..Negotiated::default()
        };
        let all = [
            (Format::Protobuf, Transform::None),
            (Format::Protobuf, metadata),
            (Format::Json, metadata),
        ];
        all.into_iter().map(form).collect()
    }

    #[tokio::test]
    async fn list_encoded_in_parts_is_that_of_one() {
        let kind = find_kind("", "services").unwrap();
        let (meta, now) = (ListMeta::at(ResourceVersion(1000)), Time::from_unix(0));
        for how in forms() {
            let parts: Vec<Bytes> = encode(how, kind, &meta, services(), now).await.collect();
            let one: Vec<Bytes> = how.list(kind, &meta, services(), now).collect();
            assert!(parts.concat() == one.concat(), "{how:?}");
        }
    }

    #[tokio::test]
    async fn other_tasks_have_their_turns_while_a_list_is_measured() {
        let kind = find_kind("", "services").unwrap();
        let (meta, now) = (ListMeta::at(ResourceVersion(1000)), Time::from_unix(0));
        for how in forms() {
            let (mut encoding, mut turns) = (pin!(encode(how, kind, &meta, services(), now)), 0);
            drop(
                poll_fn(|cx| {
                    turns += 1;
                    encoding.as_mut().poll(cx)
                })
                .await,
            );
            let expected = if how.format == Format::Protobuf { 4 } else { 1 };
            assert_eq!(turns, expected, "{how:?}");
        }
    }
}
