//! Starts a coordinator in a folder of its own and sends it requests as any user.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::{Value, json};
use yurt_apimachinery::watch::WatchDecoder;
use yurt_runtime::http::client::{HttpClient, Protocol};
use yurt_runtime::http::{empty, full, stream};
use yurt_runtime::kubeconfig::Kubeconfig;
use yurt_runtime::pki::CertificateAuthority;
use yurt_runtime::tls::{ClientTls, PemIdentity, PemPair, PemSource};
use yurt_test_support::etcd::{EtcdMember, EtcdTls, OVER_ETCD_VARIABLE};
use yurt_test_support::free_port;

pub(crate) use yurt_test_support::PATIENCE;

const PROGRAM: &str = env!("CARGO_BIN_EXE_yurt-coordinator");
/// Log of a coordinator, in its folder.
const LOG: &str = "stderr.log";

/// The first leader feeds the members.
pub(crate) const TRUSTING: &str = "--trust-first-leader";

/// A running coordinator; killed when dropped.
pub(crate) struct Server {
    folder: tempfile::TempDir,
    flags: Vec<String>,
    process: Child,
    url: String,
    /// The store, when it is not the embedded one.
    etcd: Option<EtcdMember>,
}

/// A client, with or without a certificate.
#[derive(Clone)]
pub(crate) struct Client {
    http: HttpClient,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
    /// The body as it came.
    pub(crate) bytes: Bytes,
}

/// An open watch.
pub(crate) struct Watch {
    body: Incoming,
    decoder: WatchDecoder,
}

/// One event of a watch.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) kind: String,
    pub(crate) object: Value,
}

// === impl Server ===

impl Server {
    /// A standalone control plane.
    pub(crate) async fn standalone() -> Self {
        Self::over_some_store(&["--profile", "standalone"]).await
    }

    pub(crate) async fn pool() -> Self {
        Self::over_some_store(&["--nodepool", "hangzhou", TRUSTING]).await
    }

    /// Over an etcd where there is one, so that each test covers both stores.
    pub(crate) async fn over_some_store(flags: &[&str]) -> Self {
        if std::env::var_os(OVER_ETCD_VARIABLE).is_none() {
            return Self::start(flags).await;
        }
        let tls = EtcdTls::new();
        let etcd = EtcdMember::single(Some(&tls), &[]);
        let folder = tempfile::tempdir().unwrap();
        let [ca, cert, key] = tls.client_files(folder.path());
        let url = etcd.url();
        let mut flags: Vec<String> = flags
            .iter()
            .chain(&["--etcd-servers", &url])
            .map(|flag| (*flag).to_owned())
            .collect();
        for (flag, file) in [
            ("--etcd-cafile", ca),
            ("--etcd-certfile", cert),
            ("--etcd-keyfile", key),
        ] {
            flags.extend([flag.to_owned(), file.to_str().unwrap().to_owned()]);
        }
        let mut server = Self::spawn(folder, flags);
        server.etcd = Some(etcd);
        server.wait_until_ready().await;
        server
    }

    /// One of several coordinators of a pool over `etcd`.
    pub(crate) async fn sharing_a_pool(etcd: &EtcdMember) -> Self {
        Self::start(&["--nodepool", "hangzhou", TRUSTING, "--etcd-servers", &etcd.url()]).await
    }

    /// One of several coordinators over `etcd`.
    pub(crate) async fn sharing(etcd: &EtcdMember) -> Self {
        Self::start(&["--profile", "standalone", "--etcd-servers", &etcd.url()]).await
    }

    pub(crate) async fn start(flags: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), flags).await
    }

    /// A coordinator that waits for its store, and answers as far as it can.
    pub(crate) async fn waiting(flags: &[&str]) -> Self {
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let mut server = Self::spawn(tempfile::tempdir().unwrap(), flags);
        server.wait_until("/livez").await;
        server
    }

    /// A coordinator with its files in `folder`.
    pub(crate) async fn start_in(folder: tempfile::TempDir, flags: &[&str]) -> Self {
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let mut server = Self::spawn(folder, flags);
        server.wait_until_ready().await;
        server
    }

    /// A coordinator whose wall clock is off by the number of seconds in the file `skew`, which need not exist.
    pub(crate) async fn with_wall_clock_skew(flags: &[&str], skew: &Path) -> Self {
        let variable = format!("wall-clock-skew={}", skew.display());
        Self::start_as(Command::new(PROGRAM).env("YURT_FAILPOINTS", variable), flags).await
    }

    /// A coordinator with a limit of open files.
    pub(crate) async fn with_open_files(limit: u32, flags: &[&str]) -> Self {
        let limited = format!("ulimit -n {limit}; exec \"$0\" \"$@\"");
        Self::start_as(Command::new("sh").args(["-c", &limited, PROGRAM]), flags).await
    }

    async fn start_as(command: &mut Command, flags: &[&str]) -> Self {
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let folder = tempfile::tempdir().unwrap();
        let process = with_flags(command, folder.path(), &flags).spawn().unwrap();
        let mut server = Self {
            folder,
            flags,
            process,
            url: String::new(),
            etcd: None,
        };
        server.wait_until_ready().await;
        server
    }

    /// `https://address:port`.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The most resident memory it has had, in bytes.
    pub(crate) fn memory_peak(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        let kib: usize = peak.trim().trim_end_matches("kB").trim().parse().unwrap();
        kib << 10
    }

    /// Folder of its files.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A server with a certificate of `cluster` that trusts the clients of `cluster`. It generates nothing itself, so
    /// its port is chosen here.
    pub(crate) async fn with_cluster_ca(cluster: &CertificateAuthority) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let pair = cluster.issue_server("yurt-coordinator", &["127.0.0.1"]).unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let [_, clients, cert, key] = [
            ("ca", cluster.cert_pem()),
            ("clients", cluster.cert_pem()),
            ("crt", &pair.cert_pem),
            ("key", &pair.key_pem),
        ]
        .map(|(n, t)| write(n, t));
        let port = free_port();
        let flags = [
            "--client-ca-file",
            &clients,
            "--tls-cert-file",
            &cert,
            "--tls-private-key-file",
            &key,
            TRUSTING,
            "--secure-port",
        ];
        let mut flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        flags.push(port.to_string());
        let mut server = Self::spawn(folder, flags);
        server.url = format!("https://127.0.0.1:{port}");
        let probe = server.user_of(cluster, "probe", &[]);
        while probe.try_get("/readyz").await != Some(200) {
            assert!(
                server.process.try_wait().unwrap().is_none(),
                "the coordinator must not end"
            );
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        assert!(!server.folder.path().join("pki").exists(), "nothing has to be made");
        server
    }

    /// Replaces a file in the server's folder.
    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder.path().join(name), text).unwrap();
    }

    fn spawn(folder: tempfile::TempDir, flags: Vec<String>) -> Self {
        let process = spawn(folder.path(), &flags);
        let url = String::new();
        Self {
            folder,
            flags,
            process,
            url,
            etcd: None,
        }
    }

    /// SIGTERM; asserts a clean exit.
    pub(crate) fn stop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.process.wait().unwrap().success(), "a clean stop must exit with 0");
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Starts again on the same data.
    pub(crate) async fn start_again(&mut self) {
        self.process = spawn(self.folder.path(), &self.flags);
        self.wait_until_ready().await;
    }

    async fn wait_until_ready(&mut self) {
        self.wait_until("/readyz").await;
    }

    /// Waits until a path answers 200.
    async fn wait_until(&mut self, path: &str) {
        let kubeconfig = self.folder.path().join("admin.kubeconfig");
        let started = tokio::time::Instant::now();
        while started.elapsed() < PATIENCE {
            let ended = self.process.try_wait().unwrap();
            assert!(ended.is_none(), "the coordinator must not end: {}", self.log());
            // At a restart the file still names the old port until it is written again.
            if let Ok(config) = Kubeconfig::load(&kubeconfig) {
                self.url = config.server;
                let answered = self.anonymous().try_get(path).await;
                if answered == Some(200) {
                    return;
                }
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("the coordinator must answer {path}: {}", self.log());
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join(LOG)).unwrap()
    }

    pub(crate) fn anonymous(&self) -> Client {
        self.client(None)
    }

    /// As [`Self::anonymous`], over HTTP/1.1.
    pub(crate) fn anonymous_http1(&self) -> Client {
        self.client_over(None, Protocol::Http1)
    }

    pub(crate) fn admin(&self) -> Client {
        self.user("admin", &["system:masters"])
    }

    pub(crate) fn node(&self, name: &str) -> Client {
        self.user(&format!("system:node:{name}"), &["system:nodes"])
    }

    pub(crate) fn user(&self, name: &str, groups: &[&str]) -> Client {
        self.user_of(&self.authority(), name, groups)
    }

    /// The authority of the clients, if the server generated it.
    pub(crate) fn authority(&self) -> CertificateAuthority {
        let read = |file: &str| std::fs::read_to_string(self.folder.path().join("pki").join(file)).unwrap();
        CertificateAuthority::load(&read("ca.crt"), &read("ca.key")).unwrap()
    }

    /// A user with a certificate of `authority`.
    pub(crate) fn user_of(&self, authority: &CertificateAuthority, name: &str, groups: &[&str]) -> Client {
        self.with_pair(&authority.issue_client(name, groups).unwrap())
    }

    pub(crate) fn with_pair(&self, pair: &PemPair) -> Client {
        self.client(Some(PemIdentity::inline("the test's certificate", pair)))
    }

    fn client(&self, identity: Option<PemIdentity>) -> Client {
        self.client_over(identity, Protocol::Http2)
    }

    fn client_over(&self, identity: Option<PemIdentity>, protocol: Protocol) -> Client {
        let [given, generated] = ["ca", "pki/ca.crt"].map(|file| self.folder.path().join(file));
        let ca = PemSource::from(if given.exists() { given } else { generated });
        let tls = ClientTls { ca, identity }.config().unwrap();
        let base = self.url.parse().unwrap();
        Client {
            http: HttpClient::new(base, Some(tls), protocol, Duration::from_secs(5)).unwrap(),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn spawn(folder: &Path, flags: &[String]) -> Child {
    with_flags(&mut Command::new(PROGRAM), folder, flags).spawn().unwrap()
}

fn with_flags<'a>(command: &'a mut Command, folder: &Path, flags: &[String]) -> &'a mut Command {
    let log = std::fs::File::options()
        .create(true)
        .append(true)
        .open(folder.join(LOG))
        .unwrap();
    if !flags.iter().any(|flag| flag == "--secure-port") {
        command.args(["--secure-port", "0"]);
    }
    command
        .args(["--bind-address", "127.0.0.1", "--data-dir"])
        .arg(folder)
        .args(flags)
        .stdout(Stdio::null())
        .stderr(log)
}

// === impl Client ===

impl Client {
    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, None, &[]).await
    }

    pub(crate) async fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.send(Method::GET, path, None, headers).await
    }

    /// The body of an answer, without decoding.
    pub(crate) async fn get_bytes(&self, path: &str, headers: &[(&str, &str)]) -> (HeaderMap, Bytes) {
        let mut request = Request::builder().uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(empty()).unwrap();
        let (_, headers, bytes) = self.http.request_bytes(request, PATIENCE, 64 << 20).await.unwrap();
        (headers, bytes)
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(Method::POST, path, Some(body), &[("content-type", "application/json")])
            .await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> Answer {
        self.send(Method::PUT, path, Some(body), &[("content-type", "application/json")])
            .await
    }

    pub(crate) async fn merge(&self, path: &str, body: &Value) -> Answer {
        self.send(
            Method::PATCH,
            path,
            Some(body),
            &[("content-type", "application/merge-patch+json")],
        )
        .await
    }

    /// Posts with further headers.
    pub(crate) async fn post_with(&self, path: &str, body: &Value, headers: &[(&str, &str)]) -> Answer {
        let all = [&[("content-type", "application/json")], headers].concat();
        self.send(Method::POST, path, Some(body), &all).await
    }

    /// A patch; `kind` is the media type without `application/` and `-patch+json`.
    pub(crate) async fn patch(&self, kind: &str, path: &str, body: &Value) -> Answer {
        let content_type = match kind {
            "apply" => "application/apply-patch+yaml".to_owned(),
            kind => format!("application/{kind}-patch+json"),
        };
        self.send(Method::PATCH, path, Some(body), &[("content-type", &content_type)])
            .await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.send(Method::DELETE, path, None, &[]).await
    }

    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        headers: &[(&str, &str)],
    ) -> Answer {
        let body = body.map_or_else(Bytes::new, |body| body.to_string().into());
        self.send_bytes(method, path, body, headers).await
    }

    pub(crate) async fn send_bytes(&self, method: Method, path: &str, body: Bytes, headers: &[(&str, &str)]) -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(full(body)).unwrap();
        let (code, headers, bytes) = self.http.request_bytes(request, PATIENCE, 64 << 20).await.unwrap();
        let body = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
        let answer = Answer {
            code: code.as_u16(),
            headers,
            body,
            bytes,
        };
        answer.check();
        answer
    }

    /// Posts a body that never arrives.
    pub(crate) async fn stall(&self, path: &str) {
        let nothing = futures_util::stream::pending::<Result<Bytes, std::io::Error>>();
        let request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header("content-type", "application/json")
            .body(stream(nothing));
        // It ends when it is dropped.
        let _ = self.http.send(request.unwrap()).await;
    }

    /// Begins a body and never ends it; returns the code of the answer that comes all the same.
    pub(crate) async fn begin(&self, path: &str, beginning: Bytes) -> u16 {
        let pieces = futures_util::stream::iter([Ok::<_, std::io::Error>(beginning)]);
        let pieces = futures_util::StreamExt::chain(pieces, futures_util::stream::pending());
        let request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header("content-type", "application/json")
            .body(stream(pieces));
        self.http.send(request.unwrap()).await.unwrap().status().as_u16()
    }

    /// An answer whose body is not read.
    pub(crate) async fn unread(&self, path: &str, encoding: &str) -> Response<Incoming> {
        let request = Request::builder().uri(path).header("accept-encoding", encoding);
        let request = request.body(empty()).unwrap();
        self.http.send(request).await.unwrap()
    }

    /// Number of connections it has opened.
    pub(crate) fn connections(&self) -> u64 {
        self.http.connections()
    }

    pub(crate) async fn try_get(&self, path: &str) -> Option<u16> {
        let answer = self
            .http
            .request_json(Method::GET, path, None, Duration::from_secs(2))
            .await;
        answer.ok().map(|(code, _, _)| code.as_u16())
    }

    /// As `get_with` one header; `None` when the connection ends instead.
    pub(crate) async fn try_get_with(&self, path: &str, name: &str, value: &str) -> Option<u16> {
        let request = Request::builder().uri(path).header(name, value).body(empty()).unwrap();
        let answer = self.http.request_bytes(request, PATIENCE, 64 << 20).await;
        answer.ok().map(|(code, _, _)| code.as_u16())
    }

    /// The first `count` frames of a watch, byte for byte: lines, or messages that begin with their length. Fewer if
    /// the stream ends.
    pub(crate) async fn frames(&self, path: &str, headers: &[(&str, &str)], count: usize) -> (HeaderMap, Vec<u8>) {
        let mut request = Request::builder().uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = self.http.send(request.body(empty()).unwrap()).await.unwrap();
        assert_eq!(response.status(), 200, "{path}");
        let (head, mut body) = response.into_parts();
        let is_binary = head.headers["content-type"].as_bytes().starts_with(b"application/vnd");
        let mut bytes = Vec::new();
        let whole = async {
            loop {
                if let Some(end) = end_of_frames(&bytes, is_binary, count) {
                    break end;
                }
                let Some(frame) = body.frame().await else {
                    break bytes.len();
                };
                bytes.extend_from_slice(&frame.unwrap().into_data().unwrap_or_default());
            }
        };
        let end = tokio::time::timeout(PATIENCE, whole).await;
        let end = end.unwrap_or_else(|_| panic!("{count} frames of {path}"));
        bytes.truncate(end);
        (head.headers, bytes)
    }

    pub(crate) async fn watch(&self, path: &str) -> Watch {
        self.watch_with(path, &[]).await
    }

    pub(crate) async fn watch_with(&self, path: &str, headers: &[(&str, &str)]) -> Watch {
        let separator = if path.contains('?') { '&' } else { '?' };
        let mut request = Request::builder().uri(format!("{path}{separator}watch=1"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = self.http.send(request.body(empty()).unwrap()).await.unwrap();
        assert_eq!(response.status(), 200, "{path}");
        Watch {
            body: response.into_body(),
            decoder: WatchDecoder::default(),
        }
    }
}

/// End of the first `count` frames.
fn end_of_frames(bytes: &[u8], is_binary: bool, count: usize) -> Option<usize> {
    (0..count).try_fold(0, |begin, _| {
        let rest = &bytes[begin..];
        let end = match is_binary {
            true => 4 + u32::from_be_bytes(rest.get(..4)?.try_into().ok()?) as usize,
            false => 1 + rest.iter().position(|byte| *byte == b'\n')?,
        };
        (end <= rest.len()).then_some(begin + end)
    })
}

// === impl Answer ===

impl Answer {
    /// Checks the properties of every answer.
    fn check(&self) {
        assert!(self.headers.contains_key("audit-id") && self.headers.contains_key("cache-control"));
        let is_status = self.code >= 400 && self.body["reason"] != "gap" && self.body.get("kind").is_some();
        if is_status {
            assert_eq!(self.body["kind"], "Status", "{:?}", self.body);
            assert_eq!(self.body["code"], json!(self.code));
        }
        if self.body["details"]["retryAfterSeconds"].is_number() {
            assert!(self.headers.contains_key("retry-after"));
        }
    }

    /// The body, if the answer has this code.
    #[track_caller]
    pub(crate) fn expect(self, code: u16) -> Value {
        assert_eq!(self.code, code, "{:?}", self.body);
        self.body
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// The resourceVersion of an object or list.
pub(crate) fn rv(value: &Value) -> String {
    value["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
}

pub(crate) fn config_map(name: &str, data: &str) -> Value {
    json!({ "metadata": { "name": name, "labels": { "app": data } }, "data": { "key": data } })
}

// === impl Watch ===

impl Watch {
    /// The next event; `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        self.within(PATIENCE).await.expect("an event must come")
    }

    /// The next event within some time: `Err` when there is none yet.
    pub(crate) async fn within(&mut self, patience: Duration) -> Result<Option<Event>, tokio::time::error::Elapsed> {
        tokio::time::timeout(patience, async {
            loop {
                if let Some(event) = self.decoder.next() {
                    let event = event.unwrap();
                    let object = serde_json::from_slice(&event.object).unwrap();
                    return Some(Event {
                        kind: event.event_type.to_string(),
                        object,
                    });
                }
                let frame = self.body.frame().await?.unwrap();
                self.decoder.push(&frame.into_data().unwrap_or_else(|_| Bytes::new()));
            }
        })
        .await
    }

    /// The next event as `TYPE name`.
    pub(crate) async fn told(&mut self) -> String {
        let event = self.next().await.expect("the stream must go on");
        let name = event.object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        format!("{} {name}", event.kind).trim().to_owned()
    }
}
