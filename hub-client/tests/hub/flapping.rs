//! A link that is cut again and again under a hub with many selections: nothing is left behind by a cut.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::runtime::Handle;
use yurt_test_support::{TestDir, eventually, free_port};

use super::client::{Client, Watch};
use super::cloud::Cloud;
use super::harness::{NODE, TestHub, flags_of, own_uid};

/// Selections of the node.
const SELECTIONS: usize = 50;
/// Local watches of the same selections.
const WATCHES: usize = 10;
/// Objects of each selection.
const OBJECTS: usize = 4;
/// Changes of each selection's objects that fill its history.
const FILLING: usize = 120;
/// Cuts until everything has its size, and cuts that are judged, of the short run.
const CUTS: (usize, usize) = (4, 12);
/// Time in which the hub frees what it no longer uses.
const REST: Duration = Duration::from_secs(40);
/// Growth that the long run permits, percent.
const GROWTH_MAX: f64 = 1.0;

fn path(selection: usize) -> String {
    format!("/api/v1/namespaces/n{selection}/configmaps")
}

/// Changes every object of some selections; one of them is deleted and created again.
fn change(cloud: &Cloud, round: usize) {
    for selection in (0..SELECTIONS).filter(|selection| selection % 10 == round % 10) {
        let namespace = format!("n{selection}");
        if cloud.get("configmaps", Some(&namespace), "0").is_some() {
            cloud.delete("configmaps", &namespace, "0");
        }
        for object in 0..OBJECTS {
            let metadata = json!({"namespace": namespace, "name": object.to_string()});
            let data = json!({"round": format!("{round:08}"), "filler": "x".repeat(500)});
            cloud.put("configmaps", json!({"metadata": metadata, "data": data}));
        }
    }
}

/// Reads every selection once, and opens the watches.
async fn read(client: &Client) -> Vec<Watch> {
    let mut watches = Vec::new();
    for selection in 0..SELECTIONS {
        let path = path(selection);
        let answer = client.get(&format!("{path}?resourceVersion=0")).await;
        if selection < WATCHES && answer.code == 200 {
            let version = answer.json()["metadata"]["resourceVersion"]
                .as_str()
                .unwrap_or("0")
                .to_owned();
            watches.push(client.watch(&format!("{path}?resourceVersion={version}")).await);
        }
    }
    watches
}

/// Cuts the link so many times, each for a moment only.
async fn cut(cloud: &mut Cloud, client: &Client, cuts: std::ops::Range<usize>) {
    let mut random = fastrand::Rng::with_seed(cuts.start as u64);
    for round in cuts {
        cloud.go_away().await;
        tokio::time::sleep(Duration::from_millis(random.u64(0..300))).await;
        if round % 10 == 0 {
            // Clients come and go without the cloud, too.
            drop(read(client).await);
        }
        cloud.come_back().await;
        change(cloud, round);
        tokio::time::sleep(Duration::from_millis(random.u64(50..400))).await;
    }
}

/// True if the hub follows everything, and has the cloud's last objects.
fn is_settled(state: &Value) -> bool {
    let selections = state["cache"]["selections"].as_object();
    let is_live = |one: &Value| one["live"] == true && one["complete"] == true;
    let live = selections.map_or(0, |all| all.values().filter(|one| is_live(one)).count());
    live >= SELECTIONS && state["cloudReachable"] == true
}

/// True if each selection has the cloud's last object.
fn has_all(state: &Value, cloud: &Cloud) -> bool {
    let last = (OBJECTS - 1).to_string();
    (0..SELECTIONS).all(|selection| {
        let object = cloud.get("configmaps", Some(&format!("n{selection}")), &last);
        let object = object.expect("it was made");
        let number = |value: &Value| value.as_str().and_then(|text| text.parse::<u64>().ok());
        number(&state["cache"]["selections"][path(selection)]["rv"]) >= number(&object["metadata"]["resourceVersion"])
    })
}

fn disk_bytes(folder: &Path) -> (usize, u64) {
    let (mut files, mut bytes) = (0, 0);
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.metadata() {
            Ok(about) if about.is_dir() => {
                let inner = disk_bytes(&entry.path());
                (files, bytes) = (files + inner.0, bytes + inner.1);
            }
            Ok(about) => (files, bytes) = (files + 1, bytes + about.len()),
            Err(_) => {}
        }
    }
    (files, bytes)
}

#[tokio::test]
async fn cuts_of_the_link_leave_no_task_and_no_file_behind() {
    let mut cloud = Cloud::start().await;
    (0..10).for_each(|round| change(&cloud, round));
    let hub = TestHub::start(&cloud, &[]).await;
    let client = hub.kubelet();
    drop(read(&client).await);
    let (warm_up, judged) = CUTS;
    let mut sizes = Vec::new();
    for cuts in [0..warm_up, warm_up..warm_up + judged] {
        cut(&mut cloud, &client, cuts).await;
        hub.until("everything must be followed again", is_settled).await;
        let watches = read(&client).await;
        assert_eq!(watches.len(), WATCHES);
        drop(watches);
        let (files, _) = disk_bytes(&hub.folder().path().join("cache"));
        let most = sizes.first().map(|(tasks, _)| *tasks);
        let tasks = || Handle::current().metrics().num_alive_tasks();
        // Ended streams and connections go a moment later.
        let tasks = eventually("tasks must end with their streams", async || {
            Some(tasks()).filter(|tasks| most.is_none_or(|most| *tasks <= most + 2))
        })
        .await;
        sizes.push((tasks, files));
    }
    assert!(sizes[1].1 <= sizes[0].1 + 1, "files: {sizes:?}");
}

/// A hub in a process of its own.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    fn start(cloud: &Cloud, folder: &TestDir, admin: u16, proxy: u16) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_yurthub"));
        command.args(flags_of(cloud, folder, NODE, &cloud.url())).args([
            format!("--node-identity-uids={}", own_uid()),
            format!("--serve-port={admin}"),
            format!("--proxy-port={proxy}"),
            format!("--proxy-secure-port={}", free_port()),
        ]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().expect("it starts"))
    }

    fn kib(&self, name: &str) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).expect("it runs");
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap_or_default();
        line.trim_matches([':', '\t', ' ', 'k', 'B']).parse().expect("a number")
    }

    fn files(&self) -> usize {
        let files = std::fs::read_dir(format!("/proc/{}/fd", self.0.id()));
        files.expect("it runs").count()
    }
}

/// A day of a flapping link in compressed time, 40 minutes with 3,000 cuts. It runs only with `YURT_CUTS`:
/// `YURT_CUTS=3000 cargo test -p yurt-hub-client --test hub -- --nocapture thousands_of_flaps`.
#[tokio::test]
async fn hub_does_not_grow_over_thousands_of_flaps() {
    let Some(judged) = std::env::var("YURT_CUTS")
        .ok()
        .and_then(|cuts| cuts.parse::<usize>().ok())
    else {
        eprintln!("left out: YURT_CUTS sets the number of cuts");
        return;
    };
    let mut cloud = Cloud::start().await;
    (0..10).for_each(|round| change(&cloud, round));
    let folder = TestDir::new();
    let (admin, proxy) = (free_port(), free_port());
    let process = Process::start(&cloud, &folder, admin, proxy);
    let client = |port: u16| Client::new(&format!("http://127.0.0.1:{port}"), None, "kubelet/v1.36.0", None);
    let (operator, kubelet) = (client(admin), client(proxy));
    let state = async || {
        let asked = super::client::request(http::Method::GET, "/debug/state.json", &[], yurt_runtime::http::empty());
        operator.try_send(asked).await.map(|answer| answer.json())
    };
    eventually("the hub serves", state).await;
    drop(read(&kubelet).await);
    // Every history has been replaced by then: one that was filled at once may take less memory.
    let warm_up = judged * 2 / 5;
    let (mut samples, mut rss) = (Vec::new(), Vec::new());
    for part in 0..=10 {
        let from = if part == 0 {
            0
        } else {
            warm_up + (part - 1) * judged / 10
        };
        cut(&mut cloud, &kubelet, from..warm_up + part * judged / 10).await;
        eventually("everything must be followed again", async || {
            state().await.filter(is_settled)
        })
        .await;
        if part == 0 {
            // A selection's history has a multiple of its objects: it is full before anything is judged.
            for round in 0..FILLING {
                (10 * round..10 * round + 10).for_each(|round| change(&cloud, round));
                eventually("every change must arrive", async || {
                    state().await.filter(|state| has_all(state, &cloud))
                })
                .await;
            }
        }
        // Cached encodings end with their use, and freed memory returns to the kernel.
        tokio::time::sleep(REST).await;
        let (files, bytes) = disk_bytes(&folder.path().join("cache"));
        let sample = [
            process.kib("RssAnon"),
            process.files() as f64,
            process.kib("Threads"),
            files as f64,
            bytes as f64,
        ];
        rss.push(process.kib("VmRSS"));
        eprintln!(
            "{} cuts: RSS {} KiB ({} of its own), {} descriptors, {} threads, {} files, {} bytes",
            warm_up + part * judged / 10,
            process.kib("VmRSS"),
            sample[0],
            sample[1],
            sample[2],
            sample[3],
            sample[4]
        );
        samples.push(sample);
    }
    judge(&samples, rss[1]);
}

/// Compares the last samples with the first ones. The growth of the process's own memory is judged as a share of `rss`:
/// pages of the program come and go.
fn judge(samples: &[[f64; 5]], rss: f64) {
    let mean = |part: &[[f64; 5]], of: usize| part.iter().map(|sample| sample[of]).sum::<f64>() / part.len() as f64;
    for (of, name) in ["memory", "descriptors", "threads", "files", "bytes on the disk"]
        .iter()
        .enumerate()
    {
        let (first, last) = (mean(&samples[1..4], of), mean(&samples[8..], of));
        let whole = if of == 0 { rss } else { first };
        let growth = (last - first) / whole * 100.0;
        eprintln!("{name}: {growth:+.2} %");
        assert!(
            growth <= GROWTH_MAX || last - first <= 2.0,
            "{name} grew by {growth:.1} %"
        );
    }
}
