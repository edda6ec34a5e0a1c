//! A disk that is really full: a small tmpfs with a coordinator's data folder.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Answer, Client, PATIENCE, Server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
/// Room for the store, its certificates and its log.
const SIZE: &str = "size=12m";
const MAP_BYTES: usize = 50_000;

/// A file system of a few megabytes; unmounted when dropped.
struct SmallDisk {
    place: tempfile::TempDir,
}

// === impl SmallDisk ===

impl SmallDisk {
    /// `None` where mounting is not allowed.
    fn mount() -> Option<Self> {
        let place = tempfile::tempdir().unwrap();
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", SIZE, "tmpfs"])
            .arg(place.path())
            .output();
        match mount {
            Ok(output) if output.status.success() => Some(Self { place }),
            other => {
                eprintln!("SKIPPED: a tmpfs cannot be mounted here: {other:?}");
                None
            }
        }
    }

    fn path(&self) -> &Path {
        self.place.path()
    }

    /// Takes all the space that is left; deleting the returned file frees it.
    fn fill(&self) -> PathBuf {
        let path = self.path().join("ballast");
        let mut file = File::create(&path).unwrap();
        for piece in [64 << 10, 4096, 1] {
            while file.write_all(&vec![1; piece]).is_ok() {}
        }
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: an ending coordinator may hold files a moment longer.
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

async fn create(admin: &Client, name: &str) -> Answer {
    let body = json!({ "metadata": { "name": name }, "data": { "key": "x".repeat(MAP_BYTES) } });
    admin.post(MAPS, &body).await
}

async fn names(admin: &Client) -> Vec<String> {
    let list = admin.get(MAPS).await.expect(200);
    let name = |item: &Value| item["metadata"]["name"].as_str().unwrap().to_owned();
    list["items"].as_array().unwrap().iter().map(name).collect()
}

async fn renew(admin: &Client, turn: u64) -> u16 {
    let body = json!({ "spec": { "renewTime": format!("2026-11-20T10:{:02}:{:02}.000000Z", turn / 60, turn % 60) } });
    admin.merge(&format!("{LEASES}/node-1"), &body).await.code
}

async fn wait_until_ready_is(admin: &Client, code: u16) {
    let wait = async {
        while admin.try_get("/readyz").await != Some(code) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let waited = tokio::time::timeout(PATIENCE, wait).await;
    waited.unwrap_or_else(|_| panic!("/readyz must become {code}"));
}

/// Writes are refused with the reason; reads, watches and heartbeats go on. It recovers by itself, and
/// acknowledged writes survive a kill.
#[tokio::test]
#[ignore = "needs to mount a file system"]
async fn full_disk_refuses_writes_alone_and_loses_nothing() {
    let Some(disk) = SmallDisk::mount() else { return };
    let folder = tempfile::tempdir_in(disk.path()).unwrap();
    let mut server = Server::start_in(folder, &["--profile", "standalone"]).await;
    let admin = server.admin();
    let lease =
        json!({ "metadata": { "name": "node-1" }, "spec": { "holderIdentity": "node-1", "leaseDurationSeconds": 40 } });
    admin.post(LEASES, &lease).await.expect(201);
    let mut watch = admin.watch(LEASES).await;
    assert_eq!(watch.told().await, "ADDED node-1");

    let ballast = disk.fill();
    let mut acknowledged = names(&admin).await;
    let refusal = loop {
        let name = format!("map-{:03}", acknowledged.len());
        let answer = create(&admin, &name).await;
        if answer.code != 201 {
            break answer;
        }
        acknowledged.push(name);
        assert!(acknowledged.len() < 300, "the disk does not fill up");
    };
    assert_eq!(refusal.header("retry-after"), Some("5"));
    let status = refusal.expect(503);
    assert_eq!(status["reason"], "ServiceUnavailable");
    assert!(status["message"].as_str().unwrap().contains("disk is full"), "{status}");

    // Long enough for a few checks of the store.
    wait_until_ready_is(&admin, 500).await;
    assert_eq!(admin.try_get("/livez").await, Some(200));
    for turn in 0..50 {
        assert_eq!(renew(&admin, turn).await, 200, "renewal {turn}");
        assert_eq!(watch.told().await, "MODIFIED node-1");
        assert_eq!(names(&admin).await, acknowledged, "refused writes are not shown");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }

    std::fs::remove_file(ballast).unwrap();
    wait_until_ready_is(&admin, 200).await;
    let more = format!("map-{:03}", acknowledged.len());
    create(&admin, &more).await.expect(201);
    acknowledged.push(more);
    assert_eq!(renew(&admin, 100).await, 200);
    server.kill();
    server.start_again().await;
    assert_eq!(names(&server.admin()).await, acknowledged);
}
