//! TLS identity of the hub towards a server, and the clients that receive its renewals.

use std::sync::Arc;

use http::Uri;
use tokio::sync::Notify;
use yurt_runtime::TaskGroup;
use yurt_runtime::http::client::lane::{Lane, STREAMS};
use yurt_runtime::http::client::{ClientError, HttpClient, LifeSigns, Protocol};
use yurt_runtime::tls::{ClientTls, ReloadingClientTls};

use super::token::{RotatedToken, TokenWatch};
use super::{CONNECT_TIMEOUT, Forwarding, NODE_WINDOW, UpstreamError};

/// Maximum streams of cached selections on one connection, or fewer if the server allows fewer: kube-apiserver allows
/// 250 or 100. Few connections, because each new one needs a proof of the cloud's history.
const SELECTIONS_PER_CONNECTION: usize = 200;

/// One TLS identity, and the clients that receive its renewals.
pub(super) struct Identity {
    reloading: ReloadingClientTls,
    tls: rustls::ClientConfig,
    clients: Vec<HttpClient>,
    lanes: Vec<Lane>,
    pub(super) token: Option<TokenWatch>,
    /// Wakes one waiter once a change of the files is in use.
    pub(super) renewed: Arc<Notify>,
}

// === impl Identity ===

impl Identity {
    pub(super) fn new(flag: &'static str, tls: ClientTls) -> Result<Self, UpstreamError> {
        let (reloading, tls) = ReloadingClientTls::new(tls).map_err(|error| UpstreamError::Tls { flag, error })?;
        Ok(Self {
            reloading,
            tls,
            clients: Vec::new(),
            lanes: Vec::new(),
            token: None,
            renewed: Arc::default(),
        })
    }

    pub(super) fn client(
        &mut self,
        flag: &'static str,
        uri: &Uri,
        protocol: Protocol,
    ) -> Result<HttpClient, UpstreamError> {
        self.add(
            flag,
            HttpClient::new(uri.clone(), Some(self.tls.clone()), protocol, CONNECT_TIMEOUT),
        )
    }

    /// A client of a cloud server that notes signs of life.
    pub(super) fn noting(
        &mut self,
        uri: &Uri,
        protocol: Protocol,
        signs: LifeSigns,
        asks: bool,
    ) -> Result<HttpClient, UpstreamError> {
        let tls = Some(self.tls.clone());
        let client = HttpClient::noting(uri.clone(), tls, protocol, CONNECT_TIMEOUT, signs, asks);
        self.add("server-addr", client)
    }

    /// Connections for forwarded requests to a cloud server.
    pub(super) fn forwarding(
        &mut self,
        uri: &Uri,
        signs: &LifeSigns,
        window: u32,
        tasks: &TaskGroup,
    ) -> Result<Forwarding, UpstreamError> {
        let mut lane = || self.lane(uri, signs, (window, STREAMS), tasks);
        let (calls, streams, proxied) = (lane()?, lane()?, lane()?);
        let single = self.noting(uri, Protocol::Http1, signs.clone(), false)?;
        Ok(Forwarding {
            calls,
            streams,
            proxied,
            single,
        })
    }

    /// Connections for streams of cached selections.
    pub(super) fn selections(
        &mut self,
        uri: &Uri,
        signs: &LifeSigns,
        tasks: &TaskGroup,
    ) -> Result<Lane, UpstreamError> {
        self.lane(uri, signs, (NODE_WINDOW, SELECTIONS_PER_CONNECTION), tasks)
    }

    /// A lane with this window per stream, and this number of streams per connection.
    fn lane(
        &mut self,
        uri: &Uri,
        signs: &LifeSigns,
        (window, streams): (u32, usize),
        tasks: &TaskGroup,
    ) -> Result<Lane, UpstreamError> {
        let client = self.noting(uri, Protocol::Http2, signs.clone(), false)?;
        let lane = Lane::with_streams(client, window, streams, tasks.clone());
        self.lanes.push(lane.clone());
        Ok(lane)
    }

    fn add(
        &mut self,
        flag: &'static str,
        client: Result<HttpClient, ClientError>,
    ) -> Result<HttpClient, UpstreamError> {
        let client = client.map_err(|error| UpstreamError::Server { flag, error })?;
        client.set_bearer_token(self.token.as_ref().map(TokenWatch::token));
        self.clients.push(client.clone());
        Ok(client)
    }

    /// Watches the files of the identity. The handle rereads a token that was refused.
    pub(super) fn watch(self, tasks: &TaskGroup) -> Option<RotatedToken> {
        let token = self.token.map(|token| token.start(tasks, self.clients.clone()));
        self.reloading.watch(tasks, move |tls| {
            self.clients.iter().for_each(|client| client.set_tls(tls.clone()));
            // Only now: a connection that is opened from here on has the new configuration.
            self.lanes.iter().for_each(Lane::retire);
            self.renewed.notify_one();
        });
        token
    }
}

#[cfg(test)]
mod tests {
    use yurt_runtime::tls::{PemIdentity, PemSource, ReloadingServerTls, ServerTls};
    use yurt_test_support::{TestDir, TestPki, hang, runs_while_reading};

    use super::*;

    #[test]
    fn certificate_file_that_hangs_holds_no_thread_of_the_runtime() {
        let (folder, pki) = (TestDir::new(), TestPki::new());
        let pair = pki.node("n1");
        let path = folder.write("pair.pem", pair.cert_pem + &pair.key_pem);
        let identity = PemIdentity::one_file(&path);
        let client = ClientTls {
            ca: PemSource::inline("CA", pki.ca_pem()),
            identity: Some(identity.clone()),
        };
        let server = ServerTls {
            identity,
            client_ca: None,
        };
        let client = Identity::new("--test", client).unwrap();
        let server = ReloadingServerTls::new(server).unwrap();
        hang(&path);
        runs_while_reading(&path, async move || {
            let tasks = TaskGroup::new();
            client.watch(&tasks);
            tasks
        });
        hang(&path);
        runs_while_reading(&path, async move || {
            let tasks = TaskGroup::new();
            server.watch(&tasks);
            tasks
        });
    }
}
