//! Bodies of the feed's requests, assembled from stored object bytes without parsing or encoding them again.

use bytes::{BufMut as _, Bytes, BytesMut};
use serde_json::{Value, json};
use yurt_apimachinery::watch::EventType;
use yurt_apimachinery::{Object, ResourceVersion};
use yurt_collection::{ChangeKind, Delivery, History};

/// Approximate bytes of an index row without its key: a resourceVersion and punctuation.
const INDEX_ROW_BYTES: usize = 32;

/// Fields of every request: the fence and the generation.
#[derive(Clone, Copy, Debug)]
pub struct Envelope<'a> {
    /// Id of the coordinator's store.
    pub store: &'a str,
    /// Epoch of the leadership.
    pub epoch: u64,
    /// Generation of the collection's history.
    pub generation: u64,
}

// === impl Envelope ===

impl Envelope<'_> {
    /// Builds `events`: the events in `(after, up_to]`. With `step` they hold only the last state of each key and form
    /// one step.
    #[must_use]
    pub fn events(
        self,
        after: ResourceVersion,
        events: &[(EventType, Object)],
        up_to: ResourceVersion,
        fresh: bool,
        step: bool,
    ) -> Bytes {
        let mut body = self.open(64 + events.iter().map(|(_, object)| object.bytes_len() + 40).sum::<usize>());
        body.put(format!(r#","after":"{after}","upTo":"{up_to}","fresh":{fresh},"step":{step},"events":["#).as_bytes());
        for (index, (event, object)) in events.iter().enumerate() {
            let separator = if index == 0 { "" } else { "," };
            body.put(format!(r#"{separator}{{"type":"{}","object":"#, event.as_str()).as_bytes());
            body.put_slice(&object.bytes());
            body.put_u8(b'}');
        }
        body.put_slice(b"]}");
        body.freeze()
    }

    /// Builds `snapshot`: keys and RVs of everything at `at`, or a part of them. The last part for a coordinator
    /// without a copy also has the remembered `history`.
    #[must_use]
    pub fn index(
        self,
        after: ResourceVersion,
        at: ResourceVersion,
        part: &IndexPart<'_>,
        history: Option<&History>,
    ) -> Bytes {
        let IndexPart { from, objects, more } = part;
        let mut body = self.open(64 + objects.len() * 64);
        body.put(format!(r#","after":"{after}","at":"{at}","from":{from},"more":{more},"index":["#).as_bytes());
        for (index, object) in objects.iter().enumerate() {
            let separator = if index == 0 { "" } else { "," };
            let key = Value::from(object.key().as_str());
            body.put(format!(r#"{separator}[{key},"{}"]"#, object.resource_version()).as_bytes());
        }
        body.put_u8(b']');
        if let Some(history) = history {
            put_history(&mut body, history);
        }
        body.put_u8(b'}');
        body.freeze()
    }

    /// Builds `snapshot/bodies`: some of the bodies that the coordinator requested.
    #[must_use]
    pub fn bodies(self, at: ResourceVersion, objects: &[&Object], last: bool) -> Bytes {
        let mut body = self.open(64 + objects.iter().map(|object| object.bytes_len() + 1).sum::<usize>());
        body.put(format!(r#","at":"{at}","last":{last},"objects":["#).as_bytes());
        for (index, object) in objects.iter().enumerate() {
            if index > 0 {
                body.put_u8(b',');
            }
            body.put_slice(&object.bytes());
        }
        body.put_slice(b"]}");
        body.freeze()
    }

    fn open(self, capacity: usize) -> BytesMut {
        let mut body = BytesMut::with_capacity(capacity + 128);
        let store = Value::from(self.store);
        body.put(
            format!(
                r#"{{"store":{store},"epoch":{},"generation":{}"#,
                self.epoch, self.generation
            )
            .as_bytes(),
        );
        body
    }
}

fn put_history(body: &mut BytesMut, history: &History) {
    let gaps = Value::from_iter(history.gaps.iter().map(|gap| json!(gap)));
    body.put(
        format!(
            r#","history":{{"floor":"{}","gaps":{gaps},"tombstones":["#,
            history.floor
        )
        .as_bytes(),
    );
    for (index, object) in history.tombstones.iter().enumerate() {
        if index > 0 {
            body.put_u8(b',');
        }
        body.put_slice(&object.bytes());
    }
    body.put_slice(br#"],"ranges":["#);
    for (index, range) in history.ranges.iter().enumerate() {
        let separator = if index == 0 { "" } else { "," };
        body.put(
            format!(
                r#"{separator}{{"after":"{}","to":"{}","object":"#,
                range.after, range.to
            )
            .as_bytes(),
        );
        body.put_slice(&range.object.bytes());
        body.put_u8(b'}');
    }
    body.put_slice(b"]}");
}

/// Part of the index of a snapshot.
#[derive(Clone, Copy, Debug)]
pub struct IndexPart<'a> {
    /// Number of objects in the previous parts.
    pub from: usize,
    /// Objects that this part names.
    pub objects: &'a [Object],
    /// True if further parts follow.
    pub more: bool,
}

/// Splits an index into parts of about `bytes` bytes of keys; at least one part.
#[must_use]
pub fn index_parts(objects: &[Object], bytes: usize) -> Vec<IndexPart<'_>> {
    let (mut parts, mut from) = (Vec::new(), 0);
    loop {
        let mut room = bytes;
        let mut fits = |object: &&Object| {
            let size = object.key().as_str().len() + INDEX_ROW_BYTES;
            let fits = size <= room;
            room = room.saturating_sub(size);
            fits
        };
        let rest = &objects[from..];
        let count = rest
            .iter()
            .take_while(|object| fits(object))
            .count()
            .max(1)
            .min(rest.len());
        let (objects, left) = rest.split_at(count);
        let more = !left.is_empty();
        parts.push(IndexPart { from, objects, more });
        from += count;
        if !more {
            return parts;
        }
    }
}

/// Batch of events and the position that it leads to.
pub type Batch = (Vec<(EventType, Object)>, ResourceVersion);

/// Splits events into batches of about `bytes`; at least one, the last leading to `up_to`. Events of one RV stay
/// together.
#[must_use]
pub fn batches(events: Vec<(EventType, Object)>, up_to: ResourceVersion, bytes: usize) -> Vec<Batch> {
    let mut batches: Vec<Batch> = Vec::new();
    let (mut batch, mut size) = (Vec::new(), 0);
    for (event, object) in events {
        let rv = object.resource_version();
        let previous = batch
            .last()
            .map(|(_, last): &(EventType, Object)| last.resource_version());
        if let Some(previous) = previous.filter(|previous| *previous != rv && size + object.bytes_len() > bytes) {
            batches.push((std::mem::take(&mut batch), previous));
            size = 0;
        }
        size += object.bytes_len();
        batch.push((event, object));
    }
    batches.push((batch, up_to));
    batches
}

/// Splits objects into chunks of about `bytes`; a larger object has a chunk of its own.
#[must_use]
pub fn chunks<'a>(objects: impl Iterator<Item = &'a Object>, bytes: usize) -> Vec<Vec<&'a Object>> {
    let mut chunks: Vec<Vec<&Object>> = Vec::new();
    let mut room = 0;
    for object in objects {
        let size = object.bytes_len();
        if size > room || chunks.is_empty() {
            chunks.push(Vec::new());
            room = bytes;
        }
        room = room.saturating_sub(size);
        if let Some(chunk) = chunks.last_mut() {
            chunk.push(object);
        }
    }
    chunks
}

/// Converts deliveries to events of the source's log after `fed`. Returns `None` if they are the difference of a list,
/// or contain a deletion of unknown RV: these are sent as a snapshot.
pub fn as_events(fed: ResourceVersion, deliveries: &[Delivery]) -> Option<Vec<(EventType, Object)>> {
    let jumped = |delivery: &Delivery| matches!(delivery, Delivery::DiffEnd { jumped: true, .. });
    if deliveries.iter().any(jumped) {
        return None;
    }
    let event = |delivery: &Delivery| match delivery {
        Delivery::Exact(change) => Some((
            match change.kind {
                ChangeKind::Created => EventType::Added,
                ChangeKind::Updated => EventType::Modified,
                ChangeKind::Deleted => EventType::Deleted,
            },
            change.object.clone(),
        )),
        Delivery::Current {
            object, created: true, ..
        } => Some((EventType::Added, object.clone())),
        Delivery::Current { object, .. } => Some((EventType::Modified, object.clone())),
        Delivery::Gone(object) => Some((EventType::Deleted, object.clone())),
        Delivery::DiffBegin(_) | Delivery::DiffEnd { .. } => None,
    };
    let events: Vec<_> = deliveries.iter().filter_map(event).collect();
    let versions = events.iter().map(|(_, object)| object.resource_version());
    std::iter::once(fed)
        .chain(versions)
        .is_sorted_by(|a, b| a < b)
        .then_some(events)
}

#[cfg(test)]
mod tests {
    use yurt_apimachinery::kind::find_kind;
    use yurt_collection::{Gap, RangeTombstone};

    use super::super::events::read_events;
    use super::super::{BodiesCall, EventsCall, SnapshotCall, decode};
    use super::*;

    fn object(name: &str) -> Object {
        object_at(name, 7)
    }

    fn object_at(name: &str, rv: u64) -> Object {
        let json = format!(
            r#"{{"apiVersion":"v1","kind":"Service","metadata":{{"namespace":"x","name":"{name}","resourceVersion":"{rv}"}}}}"#
        );
        Object::parse(Bytes::from(json), find_kind("", "services").expect("services")).expect("fixture")
    }

    #[test]
    fn bodies_are_json_with_the_objects_as_they_are() {
        let envelope = Envelope {
            store: "s\"1",
            epoch: 3,
            generation: 0,
        };
        let events = [(EventType::Added, object("a")), (EventType::Deleted, object("b"))];
        let body = envelope.events(ResourceVersion(5), &events, ResourceVersion(7), true, false);
        let value: Value = serde_json::from_slice(&body).expect("must be JSON");
        assert_eq!(
            (&value["store"], &value["epoch"], &value["upTo"]),
            (&"s\"1".into(), &3.into(), &"7".into())
        );
        assert_eq!(value["events"][1]["type"], "DELETED");
        assert_eq!(value["events"][0]["object"], events[0].1.to_value());
        let objects = [object("a"), object("b")];
        let whole = IndexPart {
            from: 0,
            objects: &objects,
            more: false,
        };
        let index: Value =
            serde_json::from_slice(&envelope.index(ResourceVersion(1), ResourceVersion(7), &whole, None))
                .expect("JSON");
        assert_eq!(index["index"][1], serde_json::json!(["x/b", "7"]));
        let bodies: Value =
            serde_json::from_slice(&envelope.bodies(ResourceVersion(7), &[&objects[0]], true)).expect("JSON");
        assert_eq!(bodies["objects"].as_array().map(Vec::len), Some(1));
    }

    #[test]
    fn coordinator_reads_the_calls_that_the_leader_writes() {
        let kind = find_kind("", "services").expect("services");
        let envelope = Envelope {
            store: "s\"1",
            epoch: 3,
            generation: 7,
        };
        let (after, at) = (ResourceVersion(5), ResourceVersion(9));
        let events = [
            (EventType::Added, object_at("a", 7)),
            (EventType::Deleted, object_at("b", 8)),
        ];
        let body = envelope.events(after, &events, at, true, true);
        let call: EventsCall<'_> = decode(&body).expect("a call");
        assert_eq!(
            (call.claim().store.as_str(), call.claim().epoch, call.generation),
            ("s\"1", 3, 7)
        );
        assert_eq!((call.after, call.up_to, call.fresh, call.step), (after, at, true, true));
        let read = read_events(&call, kind).expect("events of the cloud");
        let shape = |events: &[(EventType, Object)]| -> Vec<_> {
            let one = |(event, object): &(EventType, Object)| (*event, object.bytes());
            events.iter().map(one).collect()
        };
        assert_eq!(shape(&read), shape(&events));

        let objects = [object_at("a", 7), object_at("c", 6)];
        let part = IndexPart {
            from: 4,
            objects: &objects,
            more: false,
        };
        let history = History {
            floor: ResourceVersion(2),
            gaps: vec![Gap {
                from: ResourceVersion(2),
                to: ResourceVersion(3),
            }],
            tombstones: vec![object_at("b", 8)],
            ranges: vec![RangeTombstone {
                after: ResourceVersion(3),
                to: ResourceVersion(4),
                object: object_at("d", 3),
            }],
        };
        let body = envelope.index(after, at, &part, Some(&history));
        let call: SnapshotCall<'_> = decode(&body).expect("a call");
        assert_eq!((call.at, call.from, call.more), (at, 4, false));
        assert_eq!(
            call.index,
            [
                ("x/a".to_owned(), ResourceVersion(7)),
                ("x/c".to_owned(), ResourceVersion(6))
            ]
        );
        let read = call.history(kind).expect("a history").expect("there is one");
        assert_eq!(format!("{read:?}"), format!("{history:?}"));

        let body = envelope.bodies(at, &[&objects[0]], true);
        let call: BodiesCall<'_> = decode(&body).expect("a call");
        assert_eq!((call.at, call.objects.len()), (at, 1));
        assert_eq!(call.objects[0].get().as_bytes(), &objects[0].bytes()[..]);
    }

    #[test]
    fn batches_are_bounded_by_bytes_and_never_split_one_rv() {
        let events: Vec<_> = [8, 9, 9, 10, 11]
            .map(|rv| (EventType::Modified, object_at("a", rv)))
            .into();
        let size = events[0].1.bytes_len();
        let split = batches(events, ResourceVersion(20), size + 1);
        let shape: Vec<_> = split.iter().map(|(batch, up_to)| (batch.len(), up_to.0)).collect();
        assert_eq!(shape, [(1, 8), (2, 9), (1, 10), (1, 20)]);
        assert_eq!(
            batches(Vec::new(), ResourceVersion(20), size).len(),
            1,
            "an empty batch still moves the position"
        );
    }

    #[test]
    fn index_comes_in_parts_that_name_every_object_once() {
        let objects: Vec<Object> = (0..10).map(|i| object(&format!("o{i}"))).collect();
        let shape = |objects: &[Object], rows: usize| -> Vec<(usize, usize, bool)> {
            let row = "x/o0".len() + INDEX_ROW_BYTES;
            let parts = index_parts(objects, rows * row);
            parts
                .iter()
                .map(|part| (part.from, part.objects.len(), part.more))
                .collect()
        };
        assert_eq!(shape(&objects, 4), [(0, 4, true), (4, 4, true), (8, 2, false)]);
        assert_eq!(shape(&objects, 5), [(0, 5, true), (5, 5, false)]);
        assert_eq!(shape(&objects[..2], 0), [(0, 1, true), (1, 1, false)], "one at least");
        assert_eq!(shape(&[], 4), [(0, 0, false)]);
    }

    #[test]
    fn chunks_keep_every_object_and_the_limit() {
        let objects: Vec<Object> = (0..10).map(|i| object(&format!("o{i}"))).collect();
        let size = objects[0].bytes_len();
        let chunks = chunks(objects.iter(), 3 * size);
        assert_eq!(chunks.iter().map(Vec::len).collect::<Vec<_>>(), [3, 3, 3, 1]);
    }
}
