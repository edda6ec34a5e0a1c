//! Clients that keep all they are told, and what is wrong with it.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::sync::watch;
use yurt_chaos_validate::history::{self, History, Seen, Truth, Verdict};

use super::field::Field;
use super::history::seen;
use crate::lab::api::Api;
use crate::lab::client::{Client, Habits, WATCH_SECONDS};
use crate::lab::until::until;

/// A client and all it was told.
pub(super) struct Recorded {
    /// `shore-1, watches of 3 s, services`
    pub(super) name: String,
    collection: &'static str,
    pub(super) client: Client,
    history: Arc<Mutex<History>>,
    /// How often it listed, as far as it was told.
    pub(super) lists: u32,
    /// How often it may list.
    pub(super) lists_max: u32,
}

/// Lengths of watches, in seconds: one client stays, one resumes all the time. At the end of a watch is a bookmark.
const WATCHES: [u32; 2] = [WATCH_SECONDS, 3];
/// Clients are told bookmarks at least this often.
const BOOKMARKS: Duration = Duration::from_secs(65);

/// Starts a client of each collection at the cloud itself, and waits until they watch.
pub(super) async fn witnesses(field: &Field) -> Result<Vec<Recorded>> {
    let api = &field.stage.cloud.api;
    let always = || watch::Sender::new(true).subscribe();
    let start = |collection: &&'static str| Recorded::start(field, "cloud", api, collection, WATCH_SECONDS, always());
    let witnesses: Vec<Recorded> = field.collections().iter().map(start).collect();
    for witness in &witnesses {
        witness.client.sees(|view| view.watching).await?;
    }
    Ok(witnesses)
}

/// Starts clients of all collections behind each hub.
pub(super) fn behind_hubs(field: &Field) -> Vec<Recorded> {
    let mut clients = Vec::new();
    for (index, hub) in field.stage.hubs.iter().enumerate() {
        for seconds in WATCHES {
            for collection in field.collections() {
                let reads = field.reads(index);
                clients.push(Recorded::start(field, hub.node, &hub.proxy, collection, seconds, reads));
            }
        }
    }
    clients
}

/// An error unless all clients hold what the cloud has, and watch.
pub(super) async fn hold_all(field: &Field, clients: &[Recorded]) -> Result<()> {
    for collection in field.collections() {
        let cloud = field.stage.cloud.api.list(collection).await?;
        for client in clients.iter().filter(|client| client.collection == *collection) {
            let view = client.client.view();
            ensure!(
                view.objects == cloud.objects,
                "{} holds {} objects at {}, the cloud has {} at {}",
                client.name,
                view.objects.len(),
                view.position,
                cloud.objects.len(),
                cloud.resource_version
            );
            ensure!(view.watching, "{} does not watch", client.name);
        }
    }
    Ok(())
}

/// Waits for a bookmark behind the last change: there whole states are compared.
pub(super) async fn last_bookmarks(clients: &[Recorded]) -> Result<()> {
    for client in clients {
        let got = async || {
            ensure!(matches!(client.last(), Some(Seen::Bookmark(_))), "no bookmark yet");
            Ok(())
        };
        until(BOOKMARKS, &format!("{} is told a bookmark", client.name), got).await?;
    }
    Ok(())
}

/// Checks every client's history against what the witnesses saw.
pub(super) fn verdict(witnesses: &[Recorded], clients: &[Recorded]) -> Verdict {
    let mut verdict = Verdict::default();
    for client in clients {
        let Some(witness) = witnesses.iter().find(|witness| witness.collection == client.collection) else {
            continue;
        };
        let truth = Truth::of(&witness.seen());
        let found = history::check(&client.seen(), &truth, client.lists_max);
        verdict.checked += found.checked;
        verdict.bookmarks += found.bookmarks;
        let named = found
            .violations
            .into_iter()
            .map(|violation| format!("{}: {violation}", client.name));
        verdict.violations.extend(named);
    }
    verdict
}

// === impl Recorded ===

impl Recorded {
    fn start(
        field: &Field,
        who: &str,
        api: &Api,
        collection: &'static str,
        watch_seconds: u32,
        reads: watch::Receiver<bool>,
    ) -> Self {
        let history = Arc::new(Mutex::new(History::new()));
        let kept = Arc::clone(&history);
        let habits = Habits { watch_seconds, reads };
        let tasks = &field.stage.setup.tasks;
        let client = Client::with_habits(tasks, api.clone(), collection, habits, move |told| {
            kept.lock().unwrap_or_else(PoisonError::into_inner).push(seen(&told));
        });
        let kind = collection.rsplit('/').next().unwrap_or_default();
        Self {
            name: format!("{who}, watches of {watch_seconds} s, {kind}"),
            collection,
            client,
            history,
            lists: 1,
            lists_max: 1,
        }
    }

    /// Writes the history beside the logs, a line for each thing told.
    pub(super) fn save(&self, dir: &Path) -> Result<()> {
        let lines: Vec<String> = self.seen().iter().map(|seen| format!("{seen:?}")).collect();
        let path = dir.join(format!("{}.history", self.name.replace([' ', ','], "-")));
        std::fs::write(&path, lines.join("\n")).with_context(|| format!("cannot write {}", path.display()))
    }

    fn seen(&self) -> History {
        self.history.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn last(&self) -> Option<Seen> {
        let history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        history.last().cloned()
    }
}
