//! Test of kube-rs's watcher, with lists and with streaming lists: it receives every change once and in order, and
//! resumes after the end of its stream. On success it prints `all held`. With the arguments `elector HOLDER` it is a
//! candidate for a lease instead.

mod elector;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{Stream, StreamExt, pin_mut};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};

const OBJECTS: usize = 10;
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> Result<()> {
    if let [_, mode, holder] = &std::env::args().collect::<Vec<_>>()[..] {
        ensure!(mode == "elector", "usage: kube-rs-client [elector HOLDER]");
        return elector::run(holder.clone()).await;
    }
    let client = Client::try_default().await?;
    for (name, config) in [
        ("lists", watcher::Config::default()),
        ("streaming lists", watcher::Config::default().streaming_lists()),
    ] {
        // A short timeout, so that the stream ends and is resumed within the test.
        check(&client, config.timeout(3)).await.with_context(|| format!("with {name}"))?;
    }
    println!("all held");
    Ok(())
}

async fn check(client: &Client, config: watcher::Config) -> Result<()> {
    let api: Api<ConfigMap> = Api::default_namespaced(client.clone());
    create(&api, "before").await?;
    let events = watcher::watcher(api.clone(), config.labels("by=kube-rs"));
    pin_mut!(events);
    let mut held = BTreeMap::new();
    until(&mut events, &mut held, |held, ready| ready && held.len() == 1).await?;
    for number in 0..OBJECTS {
        create(&api, &format!("c-{number}")).await?;
        // Longer in all than the stream lasts.
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    until(&mut events, &mut held, |held, _| held.len() == OBJECTS + 1).await?;
    let patch = serde_json_patch("two");
    api.patch("c-3", &PatchParams::default(), &Patch::Merge(patch)).await?;
    until(&mut events, &mut held, |held, _| held.get("c-3").is_some_and(|value| value == "two")).await?;
    for name in held.keys().cloned().collect::<Vec<_>>() {
        api.delete(&name, &DeleteParams::default()).await?;
    }
    until(&mut events, &mut held, |held, _| held.is_empty()).await
}

async fn create(api: &Api<ConfigMap>, name: &str) -> Result<()> {
    let mut object = ConfigMap::default();
    object.metadata.name = Some(name.to_owned());
    object.metadata.labels = Some(BTreeMap::from([("by".to_owned(), "kube-rs".to_owned())]));
    object.data = Some(BTreeMap::from([("k".to_owned(), "one".to_owned())]));
    api.create(&PostParams::default(), &object).await?;
    Ok(())
}

fn serde_json_patch(value: &str) -> ConfigMap {
    ConfigMap {
        data: Some(BTreeMap::from([("k".to_owned(), value.to_owned())])),
        ..ConfigMap::default()
    }
}

/// Applies events until the held objects are as wanted. An error of the watcher is a failure: nothing here may cause
/// one.
async fn until(
    events: &mut (impl Stream<Item = watcher::Result<Event<ConfigMap>>> + Unpin),
    held: &mut BTreeMap<String, String>,
    wanted: impl Fn(&BTreeMap<String, String>, bool) -> bool,
) -> Result<()> {
    let mut is_ready = false;
    while !wanted(held, is_ready) {
        let event = tokio::time::timeout(PATIENCE, events.next()).await;
        match event.with_context(|| format!("nothing comes; held are {held:?}"))?.context("the watcher ended")?? {
            Event::Init => held.clear(),
            Event::InitDone => is_ready = true,
            Event::InitApply(object) | Event::Apply(object) => {
                let version = object.metadata.resource_version.as_deref().unwrap_or_default();
                ensure!(!version.is_empty(), "an object without a resourceVersion: {object:?}");
                let value = object.data.unwrap_or_default().remove("k").unwrap_or_default();
                held.insert(object.metadata.name.unwrap_or_default(), value);
            }
            Event::Delete(object) => {
                held.remove(&object.metadata.name.unwrap_or_default());
            }
        }
    }
    Ok(())
}
