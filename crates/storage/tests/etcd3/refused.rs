//! An etcd that rejects the credentials of the coordinator: the start ends with the cause.

use yurt_apimachinery::Space;
use yurt_runtime::TaskGroup;
use yurt_runtime::tls::ClientTls;
use yurt_storage::Etcd;
use yurt_storage::etcd3::OpenError;
use yurt_test_support::etcd::{EtcdMember, EtcdTls};

use super::support::config;

/// In TLS 1.3 the rejection follows the handshake, as an alert in the place of an answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd"]
async fn start_without_the_certificate_that_etcd_requires_ends() {
    let tls = EtcdTls::new();
    let etcd = EtcdMember::single(Some(&tls), &[]);
    let mut config = config(&[&etcd], Space::Own);
    config.tls = Some(ClientTls {
        identity: None,
        ..tls.client()
    });
    let tasks = TaskGroup::new();
    let connecting = tokio::time::timeout(yurt_test_support::PATIENCE, Etcd::connect(config, &tasks));
    let connected = connecting.await.expect("waiting does not help");
    let refused = connected.err().expect("etcd requires a certificate");
    assert!(matches!(refused, OpenError::Refused(_)), "{refused}");
    assert!(refused.to_string().contains("--etcd-certfile"), "{refused}");
}
