//! Starts that must fail: one line, the right exit code, no partial files.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::task::Poll;

use yurt_coordinator::config::Config;
use yurt_runtime::pki::CertificateAuthority;
use yurt_runtime::tls::PemPair;
use yurt_test_support::free_port;

use crate::harness::{Server, config_map};

/// Exit code and stderr of a start that fails.
fn fail(flags: &[&str]) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_yurt-coordinator"))
        .args(flags)
        .output()
        .unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn bad_starts_say_one_clear_line_and_write_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let cert = write(folder.path(), "one.crt", &serving_pair().cert_pem);
    let text = write(folder.path(), "text", "nothing of use");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let data = folder.path().join("data");
    let data = data.to_str().unwrap();
    let below_a_file = format!("{text}/data");
    let members = format!("@{}/none", folder.path().display());
    let kinds = write(
        folder.path(),
        "kinds.yaml",
        "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition}",
    );
    let cases: [(&[&str], i32, &str); 9] = [
        (&["--nonsense"], 2, "--nonsense"),
        (&["--secure-port", "70000"], 2, "--secure-port"),
        (
            &["--tls-cert-file", &cert, "--tls-private-key-file", "/nowhere/key"],
            1,
            "/nowhere/key",
        ),
        (&["--client-ca-file", &text], 1, "--client-ca-file"),
        (&["--secure-port", &port], 1, "cannot listen on 127.0.0.1"),
        (&["--data-dir", &below_a_file], 1, "--data-dir"),
        (&["--initial-members", &members], 1, "--initial-members"),
        (
            &["--custom-resources-path", &kinds],
            1,
            "kinds.yaml: (no name): spec.group",
        ),
        (
            &["--pool-scope-resources", "w.example.com"],
            1,
            "w.example.com is neither built in nor declared",
        ),
    ];
    for (flags, code, part) in cases {
        refused(flags, code, part, data);
    }
}

#[test]
fn failpoint_that_this_build_does_not_have_is_refused() {
    let output = Command::new(env!("CARGO_BIN_EXE_yurt-coordinator"))
        .env("YURT_FAILPOINTS", "leader-clock-check=off")
        .output()
        .unwrap();
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{line}");
    assert!(line.contains("YURT_FAILPOINTS: this build has no failpoint"), "{line}");
}

/// Waits for the pair as long as a rotation may take, and then reports the fault.
#[test]
fn key_of_another_certificate_is_refused_with_both_files_named() {
    let folder = tempfile::tempdir().unwrap();
    let cert = write(folder.path(), "one.crt", &serving_pair().cert_pem);
    let key = write(folder.path(), "two.key", &serving_pair().key_pem);
    let data = folder.path().join("data");
    let flags = ["--tls-cert-file", &cert, "--tls-private-key-file", &key];
    let said = format!("the private key in {key} does not belong to the certificate in {cert}");
    refused(&flags, 1, &said, data.to_str().unwrap());
}

/// A supervisor may start the program between the two renames of a rotation.
#[tokio::test]
async fn start_in_the_middle_of_a_rotation_serves_the_new_pair() {
    let folder = tempfile::tempdir().unwrap();
    let new = serving_pair();
    let cert = write(folder.path(), "tls.crt", &new.cert_pem);
    let key = write(folder.path(), "tls.key", &serving_pair().key_pem);
    let data = folder.path().join("data");
    let flags = ["--tls-cert-file", &cert, "--tls-private-key-file", &key];
    let config = ["--bind-address", "127.0.0.1", "--secure-port", "0", "--data-dir"]
        .into_iter()
        .chain([data.to_str().unwrap()])
        .chain(flags);
    let config = Config::parse(std::iter::once("yurt-coordinator").chain(config)).unwrap();
    let mut starting = std::pin::pin!(yurt_coordinator::build(config));
    let first = std::future::poll_fn(|context| Poll::Ready(starting.as_mut().poll(context))).await;
    assert!(first.is_pending(), "a pair that does not fit is waited for");
    write(folder.path(), "tls.key", &new.key_pem);
    let coordinator = starting.await.unwrap();
    coordinator.run(std::future::ready(())).await.unwrap();
}

fn serving_pair() -> PemPair {
    let authority = CertificateAuthority::generate("a").unwrap();
    authority.issue_server("s", &["localhost"]).unwrap()
}

/// The first process of a container ignores a signal that it does not handle. So it must be handled before a start that
/// waits, here for etcd.
#[tokio::test]
async fn sigterm_ends_a_start_that_waits() {
    let mut server = Server::waiting(&["--profile", "standalone", "--etcd-servers", "http://127.0.0.1:1"]).await;
    server.stop();
}

#[test]
fn bad_ways_to_etcd_are_told_before_anything_is_tried() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let data = data.to_str().unwrap();
    let standalone = ["--profile", "standalone", "--etcd-servers"];
    for (more, part) in [
        (
            &["127.0.0.1:1"][..],
            "--etcd-servers: cannot use 127.0.0.1:1: no http:// or https:// in front",
        ),
        (
            &["http://127.0.0.1:1", "--etcd-prefix", "x"][..],
            "--etcd-prefix: \"x\" must begin with / and have at most 512 bytes",
        ),
        (
            &["https://127.0.0.1:1", "--etcd-cafile", "/nowhere/ca"][..],
            "--etcd-cafile, --etcd-certfile, --etcd-keyfile: cannot read /nowhere/ca: ",
        ),
    ] {
        refused(&[&standalone[..], more].concat(), 1, part, data);
    }
    let without_ca = [&standalone[..], &["https://127.0.0.1:1"]].concat();
    refused(
        &without_ca,
        2,
        "--etcd-cafile: https://127.0.0.1:1 of --etcd-servers needs",
        data,
    );
}

/// Conformance: 1.09, 1.52, 1.66
#[tokio::test]
async fn without_etcd_a_start_waits_in_the_open() {
    let nobody = format!("http://127.0.0.1:{}", free_port());
    let server = Server::waiting(&["--profile", "standalone", "--etcd-servers", &nobody]).await;
    let (admin, stranger) = (server.admin(), server.anonymous());
    for client in [&admin, &stranger] {
        client.get("/livez").await.expect(200);
        let refused = client.get("/readyz").await;
        assert_eq!(refused.code, 503);
        let text = refused.body.as_str().unwrap();
        assert!(text.contains("[-]etcd failed: waiting for it\n"), "{text}");
        let version = client.get("/version").await.expect(200);
        assert_eq!(version["major"], "1");
        for path in ["/metrics", "/api", "/api/v1/nodes", "/readyz/etcd", "/none"] {
            let refused = client.get(path).await;
            assert_eq!(refused.header("retry-after"), Some("5"), "{path}");
            let status = refused.expect(503);
            assert_eq!(status["reason"], "ServiceUnavailable");
            let words = status["message"].as_str().unwrap();
            assert!(
                words.starts_with("the request has been made before all known HTTP paths"),
                "{words}"
            );
        }
        client
            .post("/api/v1/namespaces/default/configmaps", &config_map("a", "1"))
            .await
            .expect(503);
    }
}

/// One clear line, and nothing left below `data`.
fn refused(flags: &[&str], code: i32, part: &str, data: &str) {
    let mut all = vec!["--bind-address", "127.0.0.1"];
    if !flags.contains(&"--secure-port") {
        all.extend(["--secure-port", "0"]);
    }
    if !flags.contains(&"--data-dir") {
        all.extend(["--data-dir", data]);
    }
    all.extend(flags);
    let (got, stderr) = fail(&all);
    assert_eq!(got, code, "{flags:?}: {stderr}");
    assert!(
        stderr.contains(part) && stderr.trim_end().lines().count() == 1,
        "{flags:?}: {stderr}"
    );
    assert!(stderr.starts_with("yurt-coordinator: error: "), "{stderr}");
    assert!(!Path::new(data).exists(), "{flags:?} must leave nothing behind");
}

#[test]
fn damaged_and_busy_stores_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    write(folder.path(), "store.redb", &"this is no database ".repeat(500));
    let (code, stderr) = fail(&["--bind-address", "127.0.0.1", "--secure-port", "0", "--data-dir", data]);
    assert_eq!(code, 1, "{stderr}");
    assert!(
        stderr.contains("store.redb") && stderr.trim_end().lines().count() == 1,
        "{stderr}"
    );
    assert!(
        !folder.path().join("pki").exists(),
        "no certificates for a store that cannot be used"
    );
}

/// One flipped bit of an object, in a store that was stopped in order: it is not served, and the file is
/// named.
#[tokio::test]
async fn store_with_a_flipped_bit_is_refused_and_named() {
    let mut server = Server::start(&["--profile", "standalone"]).await;
    let admin = server.admin();
    for n in 0..20 {
        let body = config_map(&format!("map-{n}"), &"x".repeat(60));
        admin
            .post("/api/v1/namespaces/default/configmaps", &body)
            .await
            .expect(201);
    }
    server.stop();
    let store = server.folder().join("store.redb");
    let whole = std::fs::read(&store).unwrap();
    let data = server.folder().to_str().unwrap().to_owned();
    let at = find(&whole, b"map-7\",").expect("objects are stored as they are");
    let mut damaged = whole.clone();
    damaged[at] ^= 4;
    std::fs::write(&store, &damaged).unwrap();
    let flags = [
        "--profile",
        "standalone",
        "--bind-address",
        "127.0.0.1",
        "--secure-port",
        "0",
        "--data-dir",
        &data,
    ];
    let (code, stderr) = fail(&flags);
    assert_eq!(code, 1, "{stderr}");
    let line = stderr.trim_end();
    assert!(
        line.lines().count() == 1 && line.contains("store.redb") && line.contains("delete it"),
        "{stderr}"
    );
    assert_eq!(
        std::fs::read(&store).unwrap().len(),
        damaged.len(),
        "it is left as it was found"
    );

    std::fs::write(&store, &whole).unwrap();
    server.start_again().await;
    server
        .admin()
        .get("/api/v1/namespaces/default/configmaps/map-7")
        .await
        .expect(200);
}

fn find(bytes: &[u8], text: &[u8]) -> Option<usize> {
    bytes.windows(text.len()).position(|window| window == text)
}
