//! Memory of a collection, measured in a process of its own, since the kernel counts memory per process.

use bytes::Bytes;
use yurt_apimachinery::kind::find_kind;
use yurt_apimachinery::{Object, ResourceVersion};
use yurt_storage::{OnlyWriter as _, SharedCollection};

const OBJECTS: u64 = 20_000;
/// Maximum memory of an object: a factor of its bytes, and additional bytes.
const RULE: (f64, f64) = (1.3, 200.0);
/// Additional bytes of a small object (a few hundred bytes, like a lease): reference counts, key, uid, index.
const LEAST_BESIDE: f64 = 550.0;

/// Bytes of the process that come from no file.
fn anonymous() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("RssAnon:"));
    let kib = line
        .and_then(|line| line.split_whitespace().nth(1))
        .expect("a number of KiB");
    kib.parse::<f64>().expect("a number") * 1024.0
}

fn lease(number: u64, filling: &str) -> Object {
    let json = format!(
        r#"{{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{{"name":"node-{number}","namespace":"kube-node-lease","uid":"00000000-0000-4000-8000-{number:012}","resourceVersion":"{}","creationTimestamp":"2026-01-01T00:00:00Z","annotations":{{"filling":"{filling}"}}}},"spec":{{"holderIdentity":"node-{number}","leaseDurationSeconds":40,"renewTime":"2026-01-01T00:00:00.000000Z"}}}}"#,
        number + 1
    );
    let kind = find_kind("coordination.k8s.io", "leases").expect("leases are built in");
    Object::parse(Bytes::from(json.into_boxed_str().into_boxed_bytes()), kind).expect("an object")
}

/// Conformance: 8.20
#[test]
fn objects_take_little_more_than_their_bytes() {
    let kind = find_kind("coordination.k8s.io", "leases").expect("leases are built in");
    // Freed memory would be reused for the next collection, so all are held to the end.
    let mut held = Vec::new();
    for filling in [0, 800, 2_000, 8_000] {
        let filling = "x".repeat(filling);
        let bytes = lease(OBJECTS, &filling).bytes().len() as f64;
        let before = anonymous();
        let shared = SharedCollection::new(kind, false);
        let all = (0..OBJECTS).map(|number| lease(number, &filling)).collect();
        shared.update(|c| c.restart(0, all, ResourceVersion(OBJECTS)));
        let taken = (anonymous() - before) / OBJECTS as f64;
        let most = (bytes * RULE.0 + RULE.1).max(bytes + LEAST_BESIDE);
        assert!(
            taken >= bytes,
            "an object of {bytes} bytes takes {taken}: nothing was measured"
        );
        assert!(taken <= most, "an object of {bytes} bytes takes {taken}");
        held.push(shared);
    }
}
