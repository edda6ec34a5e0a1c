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

/// A list as a body, as [`Negotiated::list`] makes it. The first list after a start encodes thousands of objects while its
/// client waits.
#[must_use]
pub fn encode(how: Negotiated, kind: &ResourceKind, meta: &ListMeta, objects: Vec<Object>, now: Time) -> ListBody {
    if let Some(message) = how.cached_message(kind) {
        let new = encoding_cache::unmeasured(&objects);
        parallel::map(&new, |object| encoding_cache::measure(object, message));
    }
    how.list(kind, meta, objects, now)
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
    use bytes::Bytes;
    use yurt_apimachinery::ResourceVersion;
    use yurt_apimachinery::kind::find_kind;
    use yurt_codec::negotiation::Format;

    use super::*;

    #[test]
    fn list_encoded_on_several_cores_is_that_of_one() {
        let services = find_kind("", "services").unwrap();
        // Objects of their own for each list, so that no encoding is shared.
        let all = || -> Vec<Object> {
            let text = |n| format!(r#"{{"metadata":{{"name":"s{n}","namespace":"n","resourceVersion":"{n}"}}}}"#);
            (1..=1000)
                .map(|n| Object::parse(text(n).into(), services).unwrap())
                .collect()
        };
        let (meta, now) = (ListMeta::at(ResourceVersion(1000)), Time::from_unix(0));
        for format in [Format::Protobuf, Format::Json] {
            let how = Negotiated {
                format,
                ..Negotiated::default()
            };
            let several: Vec<Bytes> = encode(how, services, &meta, all(), now).collect();
            let one: Vec<Bytes> = how.list(services, &meta, all(), now).collect();
            assert!(several.concat() == one.concat(), "{format:?}");
        }
    }
}
