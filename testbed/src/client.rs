//! A client behind a hub: lists, watches and resumes, as an informer does, and counts its disruptions.
//!
//! It is also a checker: a resourceVersion that goes back is always an error of the hub.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Frame;
use serde_json::Value;
use tokio::sync::watch;
use yurt_runtime::TaskGroup;

use crate::api::{Api, Body, Listing};

/// Pause before a client retries after an error.
const RETRY: Duration = Duration::from_millis(200);
/// Longer than any demo; a real client sets 5 to 10 minutes.
pub const WATCH_SECONDS: u32 = 3600;

/// A watch client of one collection. Cheap to clone; clones are the same client.
#[derive(Clone)]
pub struct Client {
    view: Arc<watch::Sender<View>>,
}

/// State of the client and counters of its disruptions.
#[derive(Clone, Default)]
pub struct View {
    /// `namespace/name` and resourceVersion of every object it holds.
    pub objects: BTreeMap<String, u64>,
    /// The resourceVersion it would resume from.
    pub position: u64,
    /// Lists that succeeded; every one after the first is a relist.
    pub lists: u32,
    /// Watches that were opened; every one after the first is a broken stream.
    pub streams: u32,
    /// True if a watch is open now.
    pub watching: bool,
    /// Objects that a DELETED removed.
    pub deleted: BTreeSet<String>,
    /// Violations by the server, as text.
    pub complaints: Vec<String>,
}

/// A list or event that a client received.
pub enum Received<'a> {
    /// A whole list.
    List(&'a Listing),
    /// A watch from this RV was accepted.
    Watch(u64),
    /// One event of a watch.
    Event(&'a Value),
}

/// Parameters of a client's watches.
pub struct WatchOptions {
    /// Length of a watch until the server ends it, in seconds.
    pub watch_seconds: u32,
    /// While this is false, an open watch is not read.
    pub reads: watch::Receiver<bool>,
}

/// The client's task.
struct Life<R> {
    api: Api,
    collection: &'static str,
    options: WatchOptions,
    view: Arc<watch::Sender<View>>,
    record: R,
}

/// Disruptions of a client so far, to be compared later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disruptions {
    /// Lists the client needed.
    pub lists: u32,
    /// Watches the client opened.
    pub streams: u32,
    /// Objects that were reported as deleted.
    pub deleted: usize,
}

// === impl Client ===

impl Client {
    /// Starts a client of `collection` (a path without query).
    pub fn start(tasks: &TaskGroup, api: Api, collection: &'static str) -> Self {
        Self::recording(tasks, api, collection, WATCH_SECONDS, |_| {})
    }

    /// As [`Self::start`], with watches of this length; `record` receives everything the client receives, in order.
    pub fn recording(
        tasks: &TaskGroup,
        api: Api,
        collection: &'static str,
        watch_seconds: u32,
        record: impl FnMut(Received<'_>) + Send + 'static,
    ) -> Self {
        let options = WatchOptions {
            watch_seconds,
            reads: watch::Sender::new(true).subscribe(),
        };
        Self::with_options(tasks, api, collection, options, record)
    }

    /// As [`Self::recording`], for a client that may be slow.
    pub fn with_options(
        tasks: &TaskGroup,
        api: Api,
        collection: &'static str,
        options: WatchOptions,
        record: impl FnMut(Received<'_>) + Send + 'static,
    ) -> Self {
        let view = Arc::new(watch::Sender::new(View::default()));
        let mut life = Life {
            api,
            collection,
            options,
            view: Arc::clone(&view),
            record,
        };
        let token = tasks.token();
        tasks.spawn("watch client", async move {
            tokio::select! {
                () = life.live() => {}
                () = token.cancelled() => {}
            }
        });
        Self { view }
    }

    /// Waits until the view satisfies `wanted`.
    pub async fn sees(&self, wanted: impl FnMut(&View) -> bool) -> Result<()> {
        let mut view = self.view.subscribe();
        view.wait_for(wanted).await.context("the client has stopped")?;
        Ok(())
    }

    /// Returns the state the client has now.
    pub fn view(&self) -> View {
        self.view.borrow().clone()
    }

    /// Disruptions so far.
    pub fn disruptions(&self) -> Disruptions {
        let view = self.view.borrow();
        Disruptions {
            lists: view.lists,
            streams: view.streams,
            deleted: view.deleted.len(),
        }
    }
}

// === impl Disruptions ===

impl Disruptions {
    /// Sum of both.
    pub fn plus(self, other: Self) -> Self {
        Self {
            lists: self.lists + other.lists,
            streams: self.streams + other.streams,
            deleted: self.deleted + other.deleted,
        }
    }
}

/// End of a watch without an error of the connection.
enum End {
    /// The server closed it, as servers do.
    Closed,
    /// 410: the client must list.
    TooOld,
}

// === impl Life ===

impl<R: FnMut(Received<'_>)> Life<R> {
    /// Lists, then watches until the server reports that the position is too old, and repeats.
    async fn live(&mut self) {
        loop {
            if self.list().await.is_ok() {
                loop {
                    let end = self.follow().await;
                    self.view.send_modify(|view| view.watching = false);
                    match end {
                        Ok(End::Closed) => {}
                        Ok(End::TooOld) => break,
                        Err(_) => tokio::time::sleep(RETRY).await,
                    }
                }
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn list(&mut self) -> Result<()> {
        let path = format!("{}?resourceVersion=0", self.collection);
        let listing = self.api.list(&path).await?;
        (self.record)(Received::List(&listing));
        self.view.send_modify(|view| {
            view.lists += 1;
            view.moved_to(listing.resource_version, "a list");
            view.objects = listing.objects;
        });
        Ok(())
    }

    /// Runs one watch from the position of the view.
    async fn follow(&mut self) -> Result<End> {
        let position = self.view.borrow().position;
        let query = format!(
            "watch=1&allowWatchBookmarks=true&resourceVersion={position}&timeoutSeconds={}",
            self.options.watch_seconds
        );
        let response = self.api.stream(&format!("{}?{query}", self.collection)).await?;
        match response.status().as_u16() {
            200 => {
                (self.record)(Received::Watch(position));
                self.view.send_modify(|view| {
                    view.streams += 1;
                    view.watching = true;
                });
            }
            410 => return Ok(End::TooOld),
            status => bail!("the watch was refused with {status}"),
        }
        let mut body = response.into_body();
        let mut received = Vec::new();
        while let Some(frame) = self.next_frame(&mut body).await {
            let Ok(data) = frame.context("the stream broke")?.into_data() else {
                continue;
            };
            received.extend_from_slice(&data);
            while let Some(end) = received.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = received.drain(..=end).collect();
                let event: Value = serde_json::from_slice(&line).context("an event is not JSON")?;
                (self.record)(Received::Event(&event));
                let mut too_old = false;
                self.view.send_modify(|view| too_old = view.apply(&event));
                if too_old {
                    return Ok(End::TooOld);
                }
            }
        }
        Ok(End::Closed)
    }

    async fn next_frame(&mut self, body: &mut Body) -> Option<Result<Frame<Bytes>, kube_client::Error>> {
        // Its sender may be gone; the last value stays in force.
        let _ = self.options.reads.wait_for(|reads| *reads).await;
        body.frame().await
    }
}

// === impl View ===

impl View {
    /// Applies one event; true if the server reports that the position is too old.
    fn apply(&mut self, event: &Value) -> bool {
        let object = &event["object"];
        let kind = event["type"].as_str().unwrap_or_default();
        if kind == "ERROR" {
            if object["code"] == 410 {
                return true;
            }
            self.complaints.push(format!("ERROR event: {}", object["message"]));
            return false;
        }
        let (key, version) = crate::api::key_and_version(object);
        match kind {
            "ADDED" | "MODIFIED" => {
                if let Some(held) = self.objects.get(&key).filter(|held| **held > version) {
                    self.complaints
                        .push(format!("{key} went back from {held} to {version}"));
                }
                self.deleted.remove(&key);
                self.objects.insert(key, version);
            }
            "DELETED" => {
                self.objects.remove(&key);
                self.deleted.insert(key);
            }
            "BOOKMARK" => {}
            other => self.complaints.push(format!("an event of type {other:?}")),
        }
        self.moved_to(version, kind);
        false
    }

    fn moved_to(&mut self, version: u64, by: &str) {
        if version < self.position {
            self.complaints.push(format!(
                "{by} moved the position back from {} to {version}",
                self.position
            ));
        }
        self.position = version;
    }

    /// True if it has the object at `version` or later.
    pub fn holds(&self, key: &str, version: u64) -> bool {
        self.objects.get(key).is_some_and(|held| *held >= version)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(kind: &str, name: &str, version: u64) -> Value {
        let metadata = json!({"namespace": "demo", "name": name, "resourceVersion": version.to_string()});
        json!({"type": kind, "object": {"metadata": metadata}})
    }

    #[test]
    fn events_change_the_view_and_move_the_position() {
        let mut view = View::default();
        for event in [
            event("ADDED", "a", 5),
            event("ADDED", "b", 6),
            event("DELETED", "a", 7),
            event("BOOKMARK", "", 9),
        ] {
            assert!(!view.apply(&event));
        }
        assert_eq!(view.objects, BTreeMap::from([("demo/b".to_owned(), 6)]));
        assert_eq!((view.position, view.deleted.len(), view.complaints.len()), (9, 1, 0));
    }

    #[test]
    fn a_position_or_an_object_that_goes_back_is_a_complaint() {
        let mut view = View::default();
        view.apply(&event("ADDED", "a", 5));
        view.apply(&event("MODIFIED", "a", 4));
        assert_eq!(view.complaints.len(), 2, "{:?}", view.complaints);
    }

    #[test]
    fn only_410_ends_the_position() {
        let mut view = View::default();
        assert!(view.apply(&json!({"type": "ERROR", "object": {"kind": "Status", "code": 410}})));
        assert!(!view.apply(&json!({"type": "ERROR", "object": {"kind": "Status", "code": 500}})));
        assert_eq!(view.complaints.len(), 1);
    }
}
