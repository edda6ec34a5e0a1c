//! Clients that record all events they receive, and the check of their histories.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::sync::watch;
use yurt_chaos_validate::history::{self, CheckResult, History, HistoryItem, Truth};
use yurt_chaos_validate::views;
use yurt_testbed::api::{Api, Listing};
use yurt_testbed::client::{Client, WATCH_SECONDS, WatchOptions};
use yurt_testbed::hub::COLLECTIONS;
use yurt_testbed::wait_for::wait_for;

use super::environment::Environment;
use super::filtered::{self, Expected};
use super::history::seen;

/// A client and its recorded events.
pub(super) struct Recorded {
    /// `shore-1, watches of 3 s, services`
    pub(super) name: String,
    pub(super) collection: &'static str,
    /// True if it resumes all the time, with a bookmark at each end of a watch.
    pub(super) resumes: bool,
    pub(super) client: Client,
    history: Arc<Mutex<History>>,
    /// Index of the hub it reads from; `None` for a client of the cloud.
    pub(super) hub: Option<usize>,
    /// The hub, as a client with filters; `None` if the client has none.
    filtered: Option<Api>,
    /// Number of its lists so far.
    pub(super) lists: u32,
    /// Number of lists it is allowed.
    pub(super) lists_max: u32,
}

/// Lengths of watches, in seconds: one client stays, one resumes all the time. A watch ends with a bookmark.
const WATCHES: [u32; 2] = [WATCH_SECONDS, 3];
/// Longest time until a client's last event is a bookmark. A view repeats its objects up to a minute after the start of
/// its hub, under the position of the cloud's next bookmark (10 s); a bookmark follows within another minute.
const BOOKMARKS: Duration = Duration::from_secs(60 + 10 + 60 + 10);

/// Starts a client of each of these collections at the cloud itself, and waits until they watch.
pub(super) async fn reference_clients(
    environment: &Environment,
    who: &str,
    collections: &[&'static str],
) -> Result<Vec<Recorded>> {
    let api = &environment.pool.cloud.api;
    let always = || watch::Sender::new(true).subscribe();
    let start = |collection: &&'static str| Recorded::start(environment, who, api, collection, WATCH_SECONDS, always());
    let reference_clients: Vec<Recorded> = collections.iter().map(start).collect();
    for reference_client in &reference_clients {
        reference_client.client.sees(|view| view.watching).await?;
    }
    Ok(reference_clients)
}

/// Starts clients of all collections behind each hub.
pub(super) fn behind_hubs(environment: &Environment) -> Vec<Recorded> {
    let mut clients = Vec::new();
    for (index, hub) in environment.pool.hubs.iter().enumerate() {
        for seconds in WATCHES {
            let reads = || environment.reads(index);
            for collection in environment.collections() {
                let client = Recorded::start(environment, hub.node, &hub.proxy, collection, seconds, reads());
                clients.push(Recorded {
                    hub: Some(index),
                    ..client
                });
            }
            for collection in &COLLECTIONS {
                let who = format!("kube-proxy of {}", hub.node);
                let client = Recorded::start(environment, &who, &hub.kube_proxy, collection, seconds, reads());
                clients.push(Recorded {
                    hub: Some(index),
                    filtered: Some(hub.kube_proxy.clone()),
                    ..client
                });
            }
        }
    }
    clients
}

/// The first object whose version at a client differs from the server's.
fn difference(held: &BTreeMap<String, u64>, server: &BTreeMap<String, u64>) -> Option<String> {
    let keys: BTreeSet<&String> = held.keys().chain(server.keys()).collect();
    keys.into_iter().find_map(|key| {
        let (here, there) = (held.get(key), server.get(key));
        (here != there).then(|| format!("{key} is held as of {here:?}, there it is of {there:?}"))
    })
}

/// Returns an error unless all clients of these collections hold the cloud's state, and watch.
pub(super) async fn hold_all(
    environment: &Environment,
    clients: &[Recorded],
    collections: &[&'static str],
) -> Result<()> {
    for collection in collections {
        let cloud = environment.pool.cloud.api.list(collection).await?;
        let own = |client: &&Recorded| client.collection == *collection && client.filtered.is_none();
        for client in clients.iter().filter(own) {
            client.holds(&cloud, "the cloud")?;
        }
    }
    let filtered = |client: &&Recorded| client.filtered.is_some() && collections.contains(&client.collection);
    let expected = Expected::of(&environment.pool.cloud.api).await?;
    for client in clients.iter().filter(filtered) {
        let Some(hub) = &client.filtered else { continue };
        let fresh = hub.get(client.collection).await?;
        expected
            .check(client.collection, &fresh)
            .with_context(|| client.name.clone())?;
        client.holds(&Listing::parse(&fresh)?, "its hub")?;
    }
    Ok(())
}

/// Waits for a bookmark after the last change: there whole states are compared.
pub(super) async fn last_bookmarks(clients: impl Iterator<Item = &Recorded>) -> Result<()> {
    for client in clients {
        let got = async || {
            let is_last = matches!(history::last_received(&client.seen()), Some(HistoryItem::Bookmark(_)));
            ensure!(is_last, "no bookmark yet");
            Ok(())
        };
        wait_for(BOOKMARKS, &format!("{} gets a bookmark", client.name), got).await?;
    }
    Ok(())
}

/// Checks every client's history against the histories of the reference clients. A demo cloud never makes one of them
/// list again; kube-apiserver does after a restart, and changes it missed then are not checked.
pub(super) fn verdict(reference_clients: &[Recorded], clients: &[Recorded], is_ours: bool) -> CheckResult {
    let mut verdict = CheckResult::default();
    for client in clients {
        let Some(reference_client) = reference_clients
            .iter()
            .find(|reference_client| reference_client.collection == client.collection)
        else {
            continue;
        };
        let truth = Truth::of(&reference_client.seen());
        if is_ours && truth.gaps() > 0 {
            verdict
                .violations
                .push(format!("{} listed again", reference_client.name));
        }
        let found = match client.filtered {
            None => history::check(&client.seen(), &truth, client.lists_max),
            Some(_) => views::check(&client.seen(), &truth, filtered::may_hide, client.lists_max),
        };
        verdict.add(client.named(found));
    }
    verdict
}

// === impl Recorded ===

impl Recorded {
    fn start(
        environment: &Environment,
        who: &str,
        api: &Api,
        collection: &'static str,
        watch_seconds: u32,
        reads: watch::Receiver<bool>,
    ) -> Self {
        let history = Arc::new(Mutex::new(History::new()));
        let kept = Arc::clone(&history);
        let options = WatchOptions { watch_seconds, reads };
        let tasks = &environment.pool.setup.tasks;
        let client = Client::with_options(tasks, api.clone(), collection, options, move |told| {
            kept.lock().unwrap_or_else(PoisonError::into_inner).push(seen(&told));
        });
        let kind = collection.rsplit('/').next().unwrap_or_default();
        Self {
            name: format!("{who}, watches of {watch_seconds} s, {kind}"),
            collection,
            resumes: watch_seconds < WATCH_SECONDS,
            client,
            history,
            hub: None,
            filtered: None,
            lists: 1,
            lists_max: 1,
        }
    }

    /// Writes the history next to the logs, one line per event.
    pub(super) fn save(&self, dir: &Path) -> Result<()> {
        let lines: Vec<String> = self.seen().iter().map(|seen| format!("{seen:?}")).collect();
        let path = dir.join(format!("{}.history", self.name.replace([' ', ','], "-")));
        std::fs::write(&path, lines.join("\n")).with_context(|| format!("cannot write {}", path.display()))
    }

    /// The verdict with this client's name on its violations.
    pub(super) fn named(&self, mut verdict: CheckResult) -> CheckResult {
        for violation in &mut verdict.violations {
            *violation = format!("{}: {violation}", self.name);
        }
        verdict
    }

    pub(super) fn seen(&self) -> History {
        self.history.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// True if the client has filters.
    pub(super) fn is_filtered(&self) -> bool {
        self.filtered.is_some()
    }

    /// Checks that the client watches, and holds what a server listed.
    fn holds(&self, listed: &Listing, server: &str) -> Result<()> {
        let view = self.client.view();
        let differs = difference(&view.objects, &listed.objects);
        ensure!(
            differs.is_none(),
            "{} at {}, {server} at {}: {}",
            self.name,
            view.position,
            listed.resource_version,
            differs.unwrap_or_default()
        );
        ensure!(view.watching, "{} does not watch", self.name);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_object_of_another_version_is_noticed() {
        let of = |objects: &[(&str, u64)]| -> BTreeMap<String, u64> {
            objects
                .iter()
                .map(|(key, version)| ((*key).to_owned(), *version))
                .collect()
        };
        let cloud = of(&[("demo/cache-x2k7p", 5), ("demo/web", 7)]);
        let same = |held: &[(&str, u64)]| difference(&of(held), &cloud).is_none();
        assert!(same(&[("demo/cache-x2k7p", 5), ("demo/web", 7)]));
        assert!(!same(&[("demo/cache-x2k7p", 4), ("demo/web", 7)]), "an older state");
        assert!(!same(&[("demo/cache-x2k7p", 5), ("demo/web", 8)]));
        assert!(!same(&[("demo/web", 7)]), "hidden for ever");
        assert!(!same(&[("demo/cache-x2k7p", 5)]));
        assert!(!same(&[("demo/cache-x2k7p", 5), ("demo/web", 7), ("demo/old", 1)]));
    }
}
