//! Inputs from the network or a damaged disk, as functions of bytes that must not panic, hang or exhaust memory.
//!
//! Each target also checks what must hold of the result, so that it finds wrong answers and not only crashes. Kept
//! inputs are in `corpus/<target>`; the ordinary tests run all of them, `cargo xtask fuzz` searches for more.

mod api;
mod disk;
mod feed;
mod filters;
mod formats;
mod hub;
mod requests;
mod wide;

/// A fuzz target.
#[derive(Clone, Copy)]
pub struct Target {
    /// Name of its folder in the corpus.
    pub name: &'static str,
    /// Length limit of inputs, in bytes.
    pub len_max: usize,
    /// Runs one input; panics if a check fails.
    pub run: fn(&[u8]),
    /// True if the code under test catches panics of a library; such a panic is no finding.
    pub catches: bool,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    target("object", 4096, api::object),
    target("list", 8192, api::list),
    target("json-patch", 4096, api::json_patch),
    target("merge-patch", 4096, api::merge_patch),
    target("apply", 4096, api::apply),
    target("watch-frames", 8192, api::watch_frames),
    target("selectors", 512, requests::selectors),
    target("request-info", 1024, requests::request_info),
    target("negotiation", 512, requests::negotiation),
    target("protobuf-decode", 4096, formats::protobuf_decode),
    target("protobuf-encode", 4096, formats::protobuf_encode),
    target("protobuf-body", 4096, formats::envelope),
    target("yaml-body", 2048, formats::yaml_body),
    target("feed-batch", 8192, feed::batch),
    target("filters", 4096, filters::filters),
    target("hub-cache-key", 1024, hub::cache_key),
    target("hub-config", 1024, hub::config),
    target("hub-events", 4096, hub::events),
    target("hub-identity", 4096, hub::identity),
    target("hub-kept-read", 512, hub::kept_read),
    target("hub-own-write", 4096, hub::own_write),
    target("hub-record", 1024, hub::record),
    target("hub-relay", 512, hub::relay),
    target("wide", 16, wide::write),
    Target {
        catches: true,
        ..target("store-recovery", 1024, disk::recovery)
    },
];

const fn target(name: &'static str, len_max: usize, run: fn(&[u8])) -> Target {
    Target {
        name,
        len_max,
        run,
        catches: false,
    }
}

/// The target of this name.
#[must_use]
pub fn find(name: &str) -> Option<Target> {
    TARGETS.iter().find(|target| target.name == name).copied()
}

/// Splits an input in two at its first zero byte, for targets with two inputs.
fn halves(data: &[u8]) -> (&[u8], &[u8]) {
    let at = data.iter().position(|byte| *byte == 0);
    match at {
        Some(at) => (&data[..at], &data[at + 1..]),
        None => (data, &[]),
    }
}
