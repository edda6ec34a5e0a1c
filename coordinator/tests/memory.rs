//! Memory of a body while it is decoded and written, counted by the allocator: at most a multiple of its size, and a
//! constant.
#![allow(unsafe_code, reason = "an allocator that counts is unsafe by its trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use yurt_coordinator::fuzzing;
use yurt_patch::apply_json_patch;

/// The system's allocator, with a count.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call goes to the system's allocator with the same arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(held, Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { System.dealloc(at, layout) }
    }
}

/// Most bytes that were allocated at a time during `work`, in addition to those before.
fn peak(work: impl FnOnce()) -> usize {
    let before = HELD.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    work();
    PEAK.load(Ordering::Relaxed) - before
}

/// A body that repeats a piece.
struct Shape {
    name: &'static str,
    api_version: &'static str,
    kind: &'static str,
    head: &'static str,
    piece: &'static str,
    tail: &'static str,
}

/// Copies of a body's text: the body as JSON, and the parser's.
const TEXTS: usize = 4;
/// States of an object that a write has in memory: the new one and the old one, and this test's own.
const WRITTEN: usize = 4;
const JSON: &str = "application/json";
const YAML: &str = "application/yaml";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

const fn slice(name: &'static str, head: &'static str, piece: &'static str, tail: &'static str) -> Shape {
    Shape {
        name,
        api_version: "discovery.k8s.io/v1",
        kind: "EndpointSlice",
        head,
        piece,
        tail,
    }
}

const fn map(name: &'static str, head: &'static str, piece: &'static str, tail: &'static str) -> Shape {
    Shape {
        name,
        api_version: "v1",
        kind: "ConfigMap",
        head,
        piece,
        tail,
    }
}

const fn free(name: &'static str, head: &'static str, piece: &'static str, tail: &'static str) -> Shape {
    Shape {
        name,
        api_version: "example.com/v1",
        kind: "Free",
        head,
        piece,
        tail,
    }
}

const SHAPES: [Shape; 14] = [
    map("one text", r#"{"data":{"k":""#, "x", r#""}}"#),
    map("owners", r#"{"metadata":{"ownerReferences":["#, "{},", "{}]}}"),
    map("finalizers", r#"{"metadata":{"finalizers":["#, r#""","#, r#"""]}}"#),
    map("managed fields", r#"{"metadata":{"managedFields":["#, "{},", "{}]}}"),
    map(
        "field sets",
        r#"{"metadata":{"managedFields":[{"fieldsV1":{"a":["#,
        r#"{"a":0},"#,
        "0]}}]}}",
    ),
    map("unknown fields", r#"{"x":["#, r#"{"":0},"#, "0]}"),
    slice("endpoints", r#"{"endpoints":["#, "{},", "{}]}"),
    slice("addresses", r#"{"endpoints":["#, r#"{"addresses":["1"]},"#, "{}]}"),
    slice("ports", r#"{"ports":["#, "{},", "{}]}"),
    free("numbers", r#"{"a":["#, "0,", "0]}"),
    free("objects", r#"{"a":["#, r#"{"":0},"#, "0]}"),
    free("empty objects", r#"{"a":["#, "{},", "0]}"),
    free("lists", r#"{"a":["#, "[0],", "0]}"),
    free("deep", r#"{"a":["#, r#"[[[[[[[[{"a":{"a":{"a":0}}}]]]]]]]],"#, "0]}"),
];

impl Shape {
    fn of(&self, bytes: usize) -> Bytes {
        let count = bytes.saturating_sub(self.head.len() + self.tail.len()) / self.piece.len();
        format!("{}{}{}", self.head, self.piece.repeat(count), self.tail).into()
    }
}

/// An EndpointSlice whose field `number`, a list, has empty elements only.
fn protobuf(number: u8, bytes: usize) -> Bytes {
    let message = [number << 3 | 2, 0].repeat(bytes / 2);
    yurt_codec::protobuf::envelope("discovery.k8s.io/v1", "EndpointSlice", &message).into()
}

/// The documented limit of the values of a body: 1 MiB and 64 bytes for each of its own, at most 16 MiB.
fn values(body: usize) -> usize {
    ((1 << 20) + 64 * body).min(16 << 20)
}

#[track_caller]
fn assert_decoded_within(what: &str, api_version: &str, kind: &str, content_type: &str, body: &Bytes) {
    let held = peak(|| drop(fuzzing::decode(api_version, kind, content_type, body)));
    let most = values(body.len()) + TEXTS * body.len();
    let bytes = body.len();
    assert!(
        held <= most,
        "{what} as {content_type}: {bytes} bytes take {held}, limit is {most}"
    );
}

/// One test for all: the allocator counts for the process.
#[test]
fn memory_of_a_body_is_a_multiple_of_its_size_and_bounded() {
    for bytes in [60_000, 2_400_000] {
        for shape in &SHAPES {
            let Shape {
                name,
                api_version,
                kind,
                ..
            } = shape;
            for content_type in [JSON, YAML] {
                assert_decoded_within(name, api_version, kind, content_type, &shape.of(bytes));
            }
        }
        for number in [2, 3] {
            let body = protobuf(number, bytes);
            assert_decoded_within("elements", "discovery.k8s.io/v1", "EndpointSlice", PROTOBUF, &body);
        }
    }
    for shape in SHAPES.iter().filter(|shape| shape.kind != "Free") {
        // Of this size nearly all are accepted, and nearly at the limit.
        let body = shape.of(16_000);
        let text = std::str::from_utf8(&body).unwrap();
        let (group, version) = shape.api_version.split_once('/').unwrap_or(("", shape.api_version));
        let held = peak(|| assert!(fuzzing::write(group, version, shape.kind, text) < 64 << 10));
        let most = WRITTEN * values(body.len());
        assert!(held <= most, "a write of {}: {held} bytes, limit is {most}", shape.name);
    }
    let mut document = serde_json::json!({"a": vec![[0]; 10_000]});
    let copy = |at: usize| format!(r#"{{"op": "copy", "from": "/a", "path": "/b{at}"}}"#);
    let patch = format!("[{}]", (0..70).map(copy).collect::<Vec<_>>().join(","));
    let held = peak(|| assert!(apply_json_patch(&mut document, patch.as_bytes()).is_err()));
    assert!(held <= values(usize::MAX >> 8), "copies of a patch: {held} bytes");
}
