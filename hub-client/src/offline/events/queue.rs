//! Bounded queue of events by name, oldest first. Pure.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::{Map, Value, json};
use yurt_apimachinery::{Status, meta};

/// Maximum number of events.
pub const EVENTS_MAX: usize = 1000;
/// Maximum bytes of all events.
pub const BYTES_MAX: usize = 1 << 20;
/// Maximum length of a name, bytes.
const NAME_MAX: usize = 253;
/// Fields of an event that change while it is counted.
const COUNTED: [&str; 8] = [
    "count",
    "deprecatedCount",
    "deprecatedLastTimestamp",
    "eventTime",
    "lastTimestamp",
    "message",
    "note",
    "series",
];

/// Name of an event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventKey {
    group: String,
    namespace: String,
    name: String,
}

/// The queue.
#[derive(Debug, Default)]
pub struct Queue {
    /// By the number of their arrival.
    events: BTreeMap<u64, (EventKey, QueuedEvent)>,
    places: BTreeMap<EventKey, u64>,
    /// Place of the next event.
    end: u64,
    revision: u64,
    bytes: usize,
    dropped: u64,
}

/// An event, encoded.
#[derive(Clone, Debug)]
pub struct QueuedEvent {
    /// Changes with every change of the event.
    pub revision: u64,
    /// JSON.
    pub body: Bytes,
}

// === impl EventKey ===

impl EventKey {
    /// Creates a key; `None` if a name is not safe in a path.
    #[must_use]
    pub fn new(group: &str, namespace: &str, name: &str) -> Option<Self> {
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b':');
        let is_name = |text: &str| {
            !text.is_empty() && text.len() <= NAME_MAX && text.bytes().all(is_plain) && !text.starts_with('.')
        };
        (is_name(namespace) && is_name(name)).then(|| Self {
            group: group.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }

    /// Path of the collection.
    #[must_use]
    pub fn collection_path(&self) -> String {
        match self.group.as_str() {
            "" => format!("/api/v1/namespaces/{}/events", self.namespace),
            group => format!("/apis/{group}/v1/namespaces/{}/events", self.namespace),
        }
    }

    /// Path of the event.
    #[must_use]
    pub fn path(&self) -> String {
        format!("{}/{}", self.collection_path(), self.name)
    }
}

// === impl Queue ===

impl Queue {
    /// Reads the form of [`Self::encode`]. Events that cannot be read are left out.
    #[must_use]
    pub fn decode(text: &[u8]) -> Self {
        let mut queue = Self::default();
        let rows: Vec<(String, Value)> = serde_json::from_slice(text).unwrap_or_default();
        for (group, event) in rows {
            let (namespace, name) = (meta::text(&event, "namespace"), meta::text(&event, "name"));
            if let Some(key) = EventKey::new(&group, namespace, name) {
                let _ = queue.put(key, &event);
            }
        }
        queue
    }

    /// All events, oldest first, with their groups.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let row = |(key, kept): &(EventKey, QueuedEvent)| {
            let event: Value = serde_json::from_slice(&kept.body).unwrap_or_default();
            json!([key.group, event])
        };
        let rows: Vec<Value> = self.events.values().map(row).collect();
        serde_json::to_vec(&rows).unwrap_or_default()
    }

    /// Returns an event.
    #[must_use]
    pub fn get(&self, key: &EventKey) -> Option<Value> {
        let (_, kept) = self.events.get(self.places.get(key)?)?;
        serde_json::from_slice(&kept.body).ok()
    }

    /// Adds an event, or replaces the one of that name in its place. Drops the oldest ones above the limits.
    ///
    /// # Errors
    /// 413 for an event larger than [`super::EVENT_MAX`].
    pub fn put(&mut self, key: EventKey, event: &Value) -> Result<(), Status> {
        let body = Bytes::from(event.to_string());
        if body.len() > super::EVENT_MAX {
            return Err(Status::too_large_body(super::EVENT_MAX));
        }
        self.revision += 1;
        self.bytes += body.len();
        let kept = QueuedEvent {
            revision: self.revision,
            body,
        };
        let place = self.places.get(&key).copied().unwrap_or(self.end);
        self.end = self.end.max(place + 1);
        self.places.insert(key.clone(), place);
        if let Some((_, old)) = self.events.insert(place, (key, kept)) {
            self.bytes -= old.body.len();
        }
        while self.events.len() > EVENTS_MAX || self.bytes > BYTES_MAX {
            let Some((_, (key, kept))) = self.events.pop_first() else {
                break;
            };
            self.places.remove(&key);
            self.bytes -= kept.body.len();
            self.dropped += 1;
        }
        Ok(())
    }

    /// Returns the oldest event after the place `last`, else the oldest one, with its place.
    #[must_use]
    pub fn next(&self, last: Option<u64>) -> Option<(u64, EventKey, QueuedEvent)> {
        let after = last.map_or(0, |last| last + 1);
        let next = self
            .events
            .range(after..)
            .next()
            .or_else(|| self.events.first_key_value());
        next.map(|(place, (key, kept))| (*place, key.clone(), kept.clone()))
    }

    /// True if there is no event.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Removes an event that the cloud has, or will never take, unless it changed since `revision`. `is_lost` counts it
    /// as dropped.
    pub fn settle(&mut self, key: &EventKey, revision: u64, is_lost: bool) {
        let Some(place) = self.places.get(key).copied() else {
            return;
        };
        if self
            .events
            .get(&place)
            .is_none_or(|(_, kept)| kept.revision != revision)
        {
            return;
        }
        self.revision += 1;
        self.places.remove(key);
        if let Some((_, kept)) = self.events.remove(&place) {
            self.bytes -= kept.body.len();
        }
        self.dropped += u64::from(is_lost);
    }

    /// Removes all events.
    pub fn clear(&mut self) {
        *self = Self {
            dropped: self.dropped,
            revision: self.revision,
            ..Self::default()
        };
    }

    /// Number of the last change.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Number of events, their bytes, and the number of dropped ones.
    #[must_use]
    pub fn totals(&self) -> (usize, usize, u64) {
        (self.events.len(), self.bytes, self.dropped)
    }
}

/// Returns the merge patch that brings the cloud's event of the same name up to date.
#[must_use]
pub fn counted(event: &Value) -> Value {
    let field = |name: &&str| Some(((*name).to_owned(), event.get(*name)?.clone()));
    Value::Object(COUNTED.iter().filter_map(field).collect::<Map<_, _>>())
}

/// True if the cloud's event of the same name was counted further than the kept one.
#[must_use]
pub fn is_counted_further(cloud: &Value, kept: &Value) -> bool {
    let count = |event: &Value| {
        let counts = [&event["count"], &event["deprecatedCount"], &event["series"]["count"]];
        counts.into_iter().filter_map(Value::as_u64).max().unwrap_or(0)
    };
    count(cloud) > count(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> EventKey {
        EventKey::new("", "shop", &format!("web.{number}")).unwrap()
    }

    fn event(number: usize, message: &str) -> Value {
        json!({"metadata": {"namespace": "shop", "name": format!("web.{number}")}, "message": message, "count": 1})
    }

    fn oldest(queue: &Queue) -> (EventKey, QueuedEvent) {
        let (_, key, kept) = queue.next(None).unwrap();
        (key, kept)
    }

    #[test]
    fn events_take_turns_so_that_none_waits_for_one_that_the_cloud_does_not_answer() {
        let mut queue = Queue::default();
        for number in 0..3 {
            queue.put(key(number), &event(number, "m")).unwrap();
        }
        let mut last = None;
        let mut next = |queue: &Queue| {
            let (place, key, kept) = queue.next(last).unwrap();
            last = Some(place);
            (key, kept.revision)
        };
        let turns: Vec<_> = (0..4).map(|_| next(&queue).0).collect();
        assert_eq!(turns, [0, 1, 2, 0].map(key));
        let (second, revision) = next(&queue);
        queue.settle(&second, revision, false);
        assert_eq!([next(&queue).0, next(&queue).0], [2, 0].map(key));
    }

    #[test]
    fn oldest_events_are_dropped_and_counted() {
        let mut queue = Queue::default();
        (0..EVENTS_MAX + 5).for_each(|number| queue.put(key(number), &event(number, "m")).unwrap());
        assert_eq!((queue.totals().0, queue.totals().2), (EVENTS_MAX, 5));
        assert_eq!(oldest(&queue).0, key(5));
        let large = "x".repeat(60 << 10);
        (0..20).for_each(|number| queue.put(key(9000 + number), &event(9000 + number, &large)).unwrap());
        assert!(queue.totals().1 <= BYTES_MAX);
        assert!(queue.put(key(1), &event(1, &"x".repeat(70 << 10))).is_err());
        let bytes: usize = queue.events.values().map(|(_, kept)| kept.body.len()).sum();
        assert_eq!((bytes, queue.places.len()), (queue.totals().1, queue.events.len()));
    }

    #[test]
    fn change_keeps_the_place_and_outlives_an_answer_to_the_former_state() {
        let mut queue = Queue::default();
        queue.put(key(1), &event(1, "a")).unwrap();
        queue.put(key(2), &event(2, "a")).unwrap();
        let (first, sent) = oldest(&queue);
        queue.put(key(1), &event(1, "b")).unwrap();
        queue.settle(&first, sent.revision, false);
        let (again, kept) = oldest(&queue);
        assert_eq!((&again, queue.totals().0), (&key(1), 2));
        queue.settle(&again, kept.revision, true);
        assert_eq!((oldest(&queue).0, queue.totals().2), (key(2), 1));
    }

    #[test]
    fn end_of_an_event_is_a_change_of_the_queue() {
        let mut queue = Queue::default();
        (1..3).for_each(|number| queue.put(key(number), &event(number, "m")).unwrap());
        let (saved, (first, sent)) = (queue.revision(), oldest(&queue));
        queue.settle(&first, sent.revision, false);
        assert_ne!(queue.revision(), saved);
    }

    #[test]
    fn queue_comes_back_in_its_order() {
        let mut queue = Queue::default();
        for number in [3, 1, 2] {
            queue.put(key(number), &event(number, "m")).unwrap();
        }
        let newer = EventKey::new("events.k8s.io", "shop", "web.9").unwrap();
        queue.put(newer.clone(), &event(9, "m")).unwrap();
        let again = Queue::decode(&queue.encode());
        let order: Vec<EventKey> = again.events.values().map(|(key, _)| key.clone()).collect();
        assert_eq!(order, [key(3), key(1), key(2), newer]);
        for damaged in [
            "",
            "{}",
            "[1]",
            "[[\"\",{}]]",
            "[[\"\",{\"metadata\":{\"namespace\":\"..\",\"name\":\"x\"}}]]",
        ] {
            assert_eq!(Queue::decode(damaged.as_bytes()).totals(), (0, 0, 0), "{damaged}");
        }
    }

    #[test]
    fn event_with_a_higher_count_is_counted_further() {
        let counts = |number: u32| {
            let series = json!({"series": {"count": number}});
            [json!({"count": number}), json!({"deprecatedCount": number}), series]
        };
        for (cloud, kept) in counts(9).iter().zip(counts(5)) {
            assert!(
                is_counted_further(cloud, &kept) && !is_counted_further(&kept, cloud),
                "{kept}"
            );
            assert!(!is_counted_further(cloud, cloud), "{cloud}");
        }
        assert!(!is_counted_further(&Value::Null, &json!({})));
    }

    #[test]
    fn only_counted_fields_are_brought_up_to_date() {
        let event = json!({"metadata": {"name": "x"}, "reason": "r", "count": 7, "lastTimestamp": "t", "message": "m"});
        assert_eq!(
            counted(&event),
            json!({"count": 7, "lastTimestamp": "t", "message": "m"})
        );
    }
}
