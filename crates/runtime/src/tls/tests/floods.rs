//! Floods of HTTP/2 frames: each ends its connection, without effect on other clients.

use http::Version;
use tokio_rustls::TlsConnector;

use super::*;

/// More than any client may send in a burst, and far fewer than it may send in an hour.
const FRAMES: u32 = 40_000;

/// Types of frames (RFC 9113, 11.2).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

/// `:method POST`, `:scheme https`, `:path /` of HPACK's static table, and an authority.
const POST: &[u8] = &[0x83, 0x87, 0x84, 0x41, 1, b'a'];

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A server that answers GET only, and waits with all other requests.
async fn patient(tasks: &TaskGroup, ca: &CertificateAuthority) -> Serving {
    let server = Server::bind("127.0.0.1:0".parse().unwrap(), "--test").await.unwrap();
    let tls = ReloadingServerTls::new(server_tls(ca, ca.cert_pem().to_owned())).unwrap();
    let answer = handler(|request, _| async move {
        if request.method() != Method::GET {
            std::future::pending::<()>().await;
        }
        text(StatusCode::OK, "here")
    });
    server.with_tls(tls).serve(tasks, answer)
}

/// Sends `first`, then [`FRAMES`] frames made by `next`, and keeps the connection open. Returns true if the server ends
/// it.
async fn is_cut(serving: &Serving, ca: &CertificateAuthority, first: &[u8], next: impl Fn(u32) -> Vec<u8>) -> bool {
    let pair = ca.issue_client("jane", &["dev"]).unwrap();
    let mut config = client_config(ca.cert_pem(), Some(&pair));
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = tokio::net::TcpStream::connect(serving.local_addr()).await.unwrap();
    let connector = TlsConnector::from(std::sync::Arc::new(config));
    let stream = connector
        .connect("127.0.0.1".try_into().unwrap(), stream)
        .await
        .unwrap();
    let (mut reader, mut writer) = tokio::io::split(stream);
    let sending = async {
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        writer.write_all(preface).await?;
        writer.write_all(&frame(SETTINGS, 0, 0, &[])).await?;
        writer.write_all(first).await?;
        for batch in 0..FRAMES / 100 {
            let frames: Vec<u8> = (0..100).flat_map(|turn| next(batch * 100 + turn)).collect();
            writer.write_all(&frames).await?;
        }
        writer.flush().await
    };
    let reading = async {
        let mut piece = [0; 4096];
        while let Ok(1..) = reader.read(&mut piece).await {}
    };
    let both = async {
        // A failed write means that the connection ended, which the reader detects, too.
        let sent = async {
            let _: std::io::Result<()> = sending.await;
        };
        tokio::join!(sent, reading);
    };
    tokio::time::timeout(TIMEOUT, both).await.is_ok()
}

#[tokio::test]
async fn floods_of_frames_end_their_connection_and_no_other() {
    let (tasks, ca) = (TaskGroup::new(), CertificateAuthority::generate("a").unwrap());
    let serving = patient(&tasks, &ca).await;
    let pair = ca.issue_client("system:node:n1", &["system:nodes"]).unwrap();
    let base = format!("https://{}", serving.local_addr()).parse().unwrap();
    let config = client_config(ca.cert_pem(), Some(&pair));
    let healthy = HttpClient::new(base, Some(config), Protocol::Http2, TIMEOUT).unwrap();
    let post = frame(HEADERS, END_HEADERS, 1, POST);
    let open = frame(HEADERS, 0, 1, POST);
    let nothing = |kind: u8, payload: &'static [u8]| move |_| frame(kind, 0, 0, payload);
    let reset = |turn: u32| {
        let stream = 2 * turn + 1;
        [
            frame(HEADERS, END_HEADERS, stream, POST),
            frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]),
        ]
        .concat()
    };
    let mut cut = vec![("rapid reset", is_cut(&serving, &ca, &[], reset).await)];
    let header = [&[0x00, 4][..], b"name", &[100], &[b'x'; 100]].concat();
    let more = |_| frame(CONTINUATION, 0, 1, &header);
    cut.push(("CONTINUATION", is_cut(&serving, &ca, &open, more).await));
    let empty = |_| frame(DATA, 0, 1, &[]);
    cut.push(("empty DATA", is_cut(&serving, &ca, &post, empty).await));
    cut.push(("PING", is_cut(&serving, &ca, &[], nothing(PING, &[7; 8])).await));
    cut.push(("SETTINGS", is_cut(&serving, &ca, &[], nothing(SETTINGS, &[])).await));
    cut.retain(|(_, is_cut)| !is_cut);
    assert_eq!(cut, []);
    assert_eq!(said(&healthy).await.unwrap(), "here");
    assert_eq!(healthy.connections(), 1);
}

/// A client may use all of its streams and reset them in one burst.
#[tokio::test]
async fn giving_up_all_streams_is_no_flood() {
    let (tasks, ca) = (TaskGroup::new(), CertificateAuthority::generate("a").unwrap());
    let serving = patient(&tasks, &ca).await;
    let base = format!("https://{}", serving.local_addr()).parse().unwrap();
    let pair = ca.issue_client("jane", &["dev"]).unwrap();
    let config = client_config(ca.cert_pem(), Some(&pair));
    let client = HttpClient::new(base, Some(config), Protocol::Http2, TIMEOUT).unwrap();
    for _ in 0..3 {
        let posts: Vec<_> = (0..crate::http::server::MAX_STREAMS - 1)
            .map(|_| {
                let request = http::Request::post("/").body(crate::http::empty()).unwrap();
                Box::pin(client.send(request))
            })
            .collect();
        let all = futures_util::future::join_all(posts);
        assert!(tokio::time::timeout(Duration::from_millis(300), all).await.is_err());
        assert_eq!(said(&client).await.unwrap(), "here");
    }
    let request = http::Request::get("/").body(crate::http::empty()).unwrap();
    assert_eq!(client.send(request).await.unwrap().version(), Version::HTTP_2);
    assert_eq!(client.connections(), 1);
}
