//! Step 4: a node that is alive but cut off stays Ready in the cloud.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use yurt_testbed::link::Mode;
use yurt_testbed::pool::TestPool;
use yurt_testbed::wait_for::wait_for;

use super::{holds, millis, note};

/// A few beats of the kubelet, and the time a hub allows for a request to the cloud without an answer.
const DELEGATION_LIMIT: Duration = Duration::from_secs(30);
const CHANGE_LIMIT: Duration = Duration::from_secs(5);
const DELEGATED: &str = "openyurt.io/delegate-heartbeat";

/// The fields of a node's Lease that the story checks.
struct Beat {
    /// As written: fixed-width UTC, so text order is time order.
    renewed: String,
    delegated: bool,
}

/// Step 4.
pub(super) async fn cut_off(pool: &mut TestPool) -> Result<()> {
    let leader = pool.leader().await?;
    let follower = pool.follower(leader)?;
    let node = pool.hubs[follower].node;
    let kubelet = pool.hubs[follower].kubelet.clone().context("the kubelet must run")?;
    let beating = async || later(&beat(pool, node).await?, "").map(drop);
    wait_for(DELEGATION_LIMIT, "the node's Lease is in the cloud", beating).await?;
    let failed_before = kubelet.failed();
    let before = beat(pool, node).await?;
    ensure!(
        !before.delegated,
        "the Lease is marked as delegated while the link is up"
    );
    note(format!(
        "the link of {node} is cut; its kubelet keeps renewing its Lease through the hub"
    ));
    pool.hubs[follower].link.set(Mode::Cut);
    let (first, took) = wait_for(DELEGATION_LIMIT, "the heartbeat is delegated to the pool", async || {
        delegated(later(&beat(pool, node).await?, &before.renewed)?, true)
    })
    .await?;
    holds(format!(
        "{} later the pool has renewed the cloud's Lease of {node}, marked {DELEGATED}",
        millis(took)
    ));
    let mut last = first;
    for _ in 0..2 {
        let next = async || delegated(later(&beat(pool, node).await?, &last)?, true);
        let (renewed, _) = wait_for(DELEGATION_LIMIT, "the delegated heartbeat continues", next).await?;
        last = renewed;
    }
    let relayed = async || {
        let through = pool.hubs[follower].state().await?.reaches_cloud_through();
        through.with_context(|| format!("{node} has found no relay"))
    };
    let (peer, _) = wait_for(DELEGATION_LIMIT, "another hub relays", relayed).await?;
    holds(format!(
        "further heartbeats come from {node} itself, encrypted through the relay of {peer}'s hub"
    ));
    ensure!(
        kubelet.failed() == failed_before,
        "the kubelet behind {node} had a failed renewal"
    );
    holds(format!(
        "its kubelet is unaffected: {} renewals, none refused",
        kubelet.answered()
    ));
    if pool.cloud.writable {
        let took = pool.change_arrives(&[follower], CHANGE_LIMIT).await?;
        holds(format!(
            "a change in the cloud still reached the clients behind {node}, in {}",
            millis(took)
        ));
    }
    pool.hubs[follower].link.set(Mode::Pass);
    let (_, took) = wait_for(DELEGATION_LIMIT, "the node renews its own Lease again", async || {
        delegated(later(&beat(pool, node).await?, &last)?, false)
    })
    .await?;
    holds(format!(
        "the link is back: {} later {node} renews its Lease itself and the mark is gone",
        millis(took)
    ));
    pool.no_client_complains().await
}

async fn beat(pool: &TestPool, node: &str) -> Result<Beat> {
    let lease = pool.node_lease(node).await?;
    let renewed = lease["spec"]["renewTime"].as_str().unwrap_or_default().to_owned();
    let mark = lease["metadata"]["annotations"].get(DELEGATED).and_then(Value::as_str);
    Ok(Beat {
        renewed,
        delegated: mark == Some("true"),
    })
}

/// Returns `beat`, if it is later than `than`.
fn later<'a>(beat: &'a Beat, than: &str) -> Result<&'a Beat> {
    ensure!(beat.renewed.as_str() > than, "last renewed at {}", beat.renewed);
    Ok(beat)
}

/// Returns the time of the renewal, if the mark is as wanted.
fn delegated(beat: &Beat, wanted: bool) -> Result<String> {
    ensure!(
        beat.delegated == wanted,
        "renewed at {}, delegated: {}",
        beat.renewed,
        beat.delegated
    );
    Ok(beat.renewed.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_later_beat_with_the_right_mark_counts() {
        let beat = Beat {
            renewed: "2026-01-02T03:04:05.000006Z".to_owned(),
            delegated: true,
        };
        assert!(later(&beat, "2026-01-02T03:04:05.000005Z").is_ok());
        assert!(later(&beat, "2026-01-02T03:04:05.000006Z").is_err());
        assert!(delegated(&beat, true).is_ok() && delegated(&beat, false).is_err());
    }
}
