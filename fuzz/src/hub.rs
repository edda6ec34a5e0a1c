//! The hub's own texts: names of its replicas, files of its cache, writes that it accepts, configuration, joining,
//! relay.

use std::collections::BTreeMap;
use std::path::PathBuf;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Uri};
use ring::digest::{SHA256, digest};
use serde_json::Value;
use yurt_apimachinery::{RequestInfo, Verb};
use yurt_hub_client::cache::components::Components;
use yurt_hub_client::cache::key::Key;
use yurt_hub_client::filter::FILTERS;
use yurt_hub_client::filter::binding::{Switches, Table};
use yurt_hub_client::identity::csr::CsrState;
use yurt_hub_client::offline::events::queue::{BYTES_MAX, EVENTS_MAX, Queue};
use yurt_hub_client::offline::kept_read::KeptRead;
use yurt_hub_client::offline::own::merge::{difference, part, reconciled, with_part};
use yurt_hub_client::offline::own::write::{OwnKey, Write, apply};
use yurt_hub_client::offline::record::{FileName, Record};
use yurt_hub_client::pool::relay::route::ConnectTarget;
use yurt_hub_client::proxy::authorize::kept::KeptAnswers;
use yurt_pool_protocol::pool_scope;
use yurt_runtime::Clock;
use yurt_runtime::kubeconfig::{Kubeconfig, cluster_authorities};
use yurt_runtime::pki::RequestKey;
use yurt_runtime::tls::{CertificateInfo, PemSource};

thread_local! {
    /// A file for readers that take a path.
    static FILE: (tempfile::TempDir, PathBuf) = {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        (folder, file)
    };
}

fn in_file<T>(data: &[u8], read: impl FnOnce(&std::path::Path) -> T) -> T {
    FILE.with(|(_, file)| {
        std::fs::write(file, data).expect("the folder must be writable");
        read(file)
    })
}

/// The first half is a path or the name of a replica, the second a query.
pub(crate) fn cache_key(data: &[u8]) {
    let (path, query) = super::halves(data);
    let (Ok(path), Ok(query)) = (std::str::from_utf8(path), std::str::from_utf8(query)) else {
        return;
    };
    if let Some((key, about)) = Key::parse(path) {
        assert!(path.starts_with('/') && path.len() <= 1024, "{path:?}");
        assert_eq!(Key::parse(path), Some((key, about)));
    }
    let Ok(info) = RequestInfo::parse("GET", path, Some(query)) else {
        return;
    };
    let Some(key) = Key::of(&info, Some(query)) else {
        return;
    };
    let text = key.text();
    assert!(
        text.len() <= 1024 && !text.split(['/', '?']).any(|part| part == ".."),
        "{text:?}"
    );
    if key.built_in().is_some() {
        assert_eq!(Key::parse(&text), Some((key.clone(), None)), "{text:?}");
    }
    let _ = (
        key.is_essential("n1"),
        key.cover(&info.gvr(), info.namespace.as_deref(), "a"),
    );
}

/// A file of a record as it is, and with the right magic number and checksum in front.
pub(crate) fn record(data: &[u8]) {
    let sum = digest(&SHA256, data);
    for file in [data.to_vec(), [b"yurtrec1", sum.as_ref(), data].concat()] {
        if let Some(record) = Record::decode(&Bytes::from(file)) {
            assert_eq!(Record::decode(&Bytes::from(record.encode())).as_ref(), Some(&record));
            let name = FileName::of(&record.key).to_string();
            assert!(FileName::parse(&name).is_some());
            if let Some(key) = OwnKey::parse(&record.key) {
                assert!(!key.path().contains(".."), "{key}");
            }
        }
    }
    if let Ok(name) = std::str::from_utf8(data)
        && let Some(parsed) = FileName::parse(name)
    {
        assert_eq!(parsed.to_string(), name);
    }
}

/// The stored events.
pub(crate) fn events(data: &[u8]) {
    let queue = Queue::decode(data);
    let (events, bytes, _) = queue.totals();
    assert!(events <= EVENTS_MAX && bytes <= BYTES_MAX);
    let again = Queue::decode(&queue.encode());
    assert_eq!((again.totals().0, again.totals().1), (events, bytes));
    if let Some((_, key, _)) = queue.next(None) {
        // The group is one of the kept file, which only the hub writes; namespace and name come from clients.
        let path = key.path();
        let names = path.split_once("/namespaces/").map_or("", |(_, names)| names);
        assert!(!names.contains("/.") && !names.contains("//"), "{names}");
    }
}

/// The first byte chooses an object and a content type; the first half is the object held, the second the body.
pub(crate) fn own_write(data: &[u8]) {
    let Some((choice, rest)) = data.split_first() else {
        return;
    };
    let (held, body) = super::halves(rest);
    let held: Value = serde_json::from_slice(held).unwrap_or_else(|_| {
        serde_json::json!({"metadata": {"namespace": "a", "name": "a", "uid": "u"}, "spec": {"nodeName": "n"}, "status": {"phase": "Pending"}})
    });
    let key = OwnKey::parse(if choice & 1 == 0 { "a/a" } else { "/n" }).expect("a name");
    let content_types = [
        "application/strategic-merge-patch+json",
        "application/merge-patch+json",
        "application/json-patch+json",
        "application/json",
        "application/vnd.kubernetes.protobuf",
        "application/yaml",
        "",
        "application/apply-patch+yaml",
    ];
    let content_type = content_types[usize::from(choice >> 1) % content_types.len()];
    let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(content_type))]);
    let body = Bytes::copy_from_slice(body);
    for method in [Method::PATCH, Method::PUT] {
        let write = Write {
            method: &method,
            headers: &headers,
            body: &body,
        };
        match apply(&key, "n", &held, write) {
            Ok(new) => {
                assert_eq!(new["spec"], held["spec"]);
                for name in ["name", "namespace", "uid", "resourceVersion"] {
                    assert_eq!(new["metadata"][name], held["metadata"][name], "{name}");
                }
                let to = reconciled(&part(&held), &new, &held, key.schema());
                let _ = (difference(&part(&held), &to), with_part(&held, &to));
            }
            Err(status) => assert!((400..600).contains(&status.code()), "{status:?}"),
        }
    }
}

/// The first byte chooses a key of the hub's ConfigMap, the rest is its value.
pub(crate) fn config(data: &[u8]) {
    let Some((choice, text)) = data.split_first() else {
        return;
    };
    let Ok(text) = std::str::from_utf8(text) else {
        return;
    };
    let registered = &FILTERS[usize::from(*choice) % FILTERS.len()];
    let key = registered.filter.name().to_owned();
    let data = BTreeMap::from([(key, text.to_owned()), (text.to_owned(), text.to_owned())]);
    let table = Table::new(&FILTERS, &Switches::default()).with(&data);
    assert!(table.faults().len() <= 100);
    for verb in [Verb::Get, Verb::List, Verb::Watch] {
        let _ = table.chain("kubelet", "", "services", verb);
    }
    let components = Components::parse(Some(text));
    assert!(components.problems().len() <= 101, "{}", components.problems().len());
    assert!(!components.has("../x") && !components.has("kubectl"));
    let _ = pool_scope::parse(text);
}

/// The first half is an Accept header, the second a path and query.
pub(crate) fn kept_read(data: &[u8]) {
    let (accept, target) = super::halves(data);
    let (Ok(accept), Ok(target)) = (HeaderValue::from_bytes(accept), std::str::from_utf8(target)) else {
        return;
    };
    let Ok(uri) = target.parse::<Uri>() else { return };
    let Ok(info) = RequestInfo::parse("GET", uri.path(), uri.query()) else {
        return;
    };
    let headers = HeaderMap::from_iter([(ACCEPT, accept.clone())]);
    let Some(read) = KeptRead::of(&Method::GET, &uri, &headers, &info, Some("kubelet")) else {
        return;
    };
    let keys: Vec<String> = read.keys().collect();
    assert!(keys.len() <= 9, "{keys:?}");
    for content_type in ["application/json", accept.to_str().unwrap_or_default()] {
        if let Some(key) = read.key_of(content_type) {
            assert!(keys.contains(&key), "{key:?} is none of {keys:?}");
        }
    }
}

/// The file with the cloud's answers about rights, an answer to a certificate request, and files of the node's
/// identity.
pub(crate) fn identity(data: &[u8]) {
    let _ = CsrState::read(data);
    in_file(data, |file| {
        let _ = KeptAnswers::load(file, &Clock::system());
        let _ = Kubeconfig::load(file).map(|config| config.client_tls().map(|tls| tls.config()));
    });
    let Ok(text) = std::str::from_utf8(data) else { return };
    let _ = (cluster_authorities(text), RequestKey::load(text));
    let _ = CertificateInfo::leaf(&PemSource::inline("fuzz", text));
}

/// Servers of a peer's annotation, and the target of a tunnel.
pub(crate) fn relay(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let targets = ConnectTarget::list(text);
    let _ = text.parse::<Uri>().ok().as_ref().and_then(ConnectTarget::of);
    for target in &targets {
        let (host, port) = target.to_dial();
        assert!(port != 0 && !host.contains(['/', '@', ' ']), "{target}");
        assert_eq!(ConnectTarget::parse(&target.to_string()).as_ref(), Some(target));
    }
}
