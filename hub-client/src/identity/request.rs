//! One attempt to obtain the certificate: credential, server, CertificateSigningRequest, installation.

use std::sync::Arc;

use http::{Method, StatusCode, Uri};
use rustls::ClientConfig;
use yurt_runtime::http::client::{HttpClient, Protocol};
use yurt_runtime::kubeconfig::Kubeconfig;
use yurt_runtime::pki::RequestKey;
use yurt_runtime::tls::PemSource;

use super::csr::{self, CsrState};
use super::discovery::{JoinToken, discover};
use super::plan::{Credential, JoinOutcome};
use super::{CONNECT_TIMEOUT, CertificateKeeper, Profile, REQUEST_TIMEOUT, explain};
use crate::config::Join;
use crate::upstream::describe_answer;

/// Authorities and credential of an attempt, and the flag that they come from.
struct Access {
    ca: PemSource,
    tls: ClientConfig,
    token: Option<String>,
    flag: &'static str,
}

/// Origin of a bootstrap credential.
#[derive(Clone, Copy, Debug)]
enum Origin {
    /// The kubeconfig that an earlier token was stored in.
    Stored,
    /// `--bootstrap-file`.
    File,
    /// `--join-token`, or the token received at the hub's port.
    Token,
}

// === impl CertificateKeeper ===

impl CertificateKeeper {
    /// Requests a certificate, or looks at the present request; installs what was issued.
    pub(super) async fn request(self: &Arc<Self>, credential: Credential) -> JoinOutcome {
        let Some(join) = &self.join else {
            return JoinOutcome::Refused("the kubelet owns the certificate".to_owned());
        };
        match credential {
            Credential::Certificate => {
                let outcome = match self.on_disk(|this| access(&this.files.kubeconfig, "root-dir")).await {
                    Ok(access) => self.request_with(&access, join).await,
                    Err(refused) => refused,
                };
                // The cluster has replaced the authority of client certificates, which ends this one before its time.
                match outcome {
                    JoinOutcome::Unknown(_) if self.on_disk(Self::can_join).await => self.bootstrap(join).await,
                    outcome => outcome,
                }
            }
            Credential::Bootstrap => self.bootstrap(join).await,
        }
    }

    /// Tries each credential to join with, until one is accepted.
    async fn bootstrap(self: &Arc<Self>, join: &Join) -> JoinOutcome {
        let mut refused = JoinOutcome::Refused(
            "no certificate, and nothing to join with: set --join-token or --bootstrap-file, or send a token to /v1/token"
                .to_owned(),
        );
        for origin in [Origin::Stored, Origin::File, Origin::Token] {
            let access = match self.bootstrap_access(origin, join).await {
                Some(Ok(access)) => access,
                Some(Err(outcome @ (JoinOutcome::Refused(_) | JoinOutcome::Unknown(_)))) => {
                    refused = outcome;
                    continue;
                }
                Some(Err(outcome)) => return outcome,
                None => continue,
            };
            match self.request_with(&access, join).await {
                outcome @ (JoinOutcome::Refused(_) | JoinOutcome::Unknown(_)) => refused = outcome,
                outcome => return outcome,
            }
        }
        refused
    }

    /// Returns the credential of this origin; `None` if there is none. A token discovers the CA and is stored.
    async fn bootstrap_access(self: &Arc<Self>, origin: Origin, join: &Join) -> Option<Result<Access, JoinOutcome>> {
        match origin {
            Origin::Stored => {
                let stored = self.on_disk(|this| {
                    let file = &this.files.bootstrap;
                    file.exists().then(|| access(file, "join-token"))
                });
                stored.await
            }
            Origin::File => {
                let file = join.file.clone()?;
                Some(self.on_disk(move |_| access(&file, "bootstrap-file")).await)
            }
            Origin::Token => {
                let fed = self.fed.lock().clone();
                let token = fed.or_else(|| join.token.clone())?;
                Some(self.token_access(&token, join).await)
            }
        }
    }

    async fn token_access(self: &Arc<Self>, token: &JoinToken, join: &Join) -> Result<Access, JoinOutcome> {
        let ca = discover(&self.servers, token, &join.trust).await?;
        let token = token.clone();
        let storing = self.on_disk(move |this| {
            let written = this.files.write_bootstrap(&this.first_server(), &ca, &token);
            written.map_err(|error| JoinOutcome::Unanswered(format!("--root-dir: {error}")))?;
            access(&this.files.bootstrap, "join-token")
        });
        storing.await
    }

    /// Tries the servers in their order, until one decides.
    async fn request_with(self: &Arc<Self>, access: &Access, join: &Join) -> JoinOutcome {
        let mut last = JoinOutcome::Unanswered("--server-addr names no server".to_owned());
        for server in &self.servers {
            let outcome = match access.client(server) {
                Ok(client) => self.request_at(&client, access, join).await,
                Err(outcome) => outcome,
            };
            if !outcome.is_of_one_server() {
                return outcome;
            }
            last = last.or(outcome);
        }
        last
    }

    async fn request_at(self: &Arc<Self>, client: &HttpClient, access: &Access, join: &Join) -> JoinOutcome {
        let profile = Profile::new(&self.node, &join.signer, &join.organizations);
        let key = match self.on_disk(|this| this.files.pending_key()).await {
            Ok(key) => key,
            Err(error) => return JoinOutcome::Unanswered(format!("--root-dir: {error}")),
        };
        let name = profile.name(&key.public_key());
        let state = match self.state_of_request(client, access, &profile, &name, &key).await {
            Ok(state) => state,
            Err(outcome) => return outcome,
        };
        let is_new = self.submitted.lock().replace(name.clone()).is_none();
        match state {
            CsrState::Pending | CsrState::Approved => {
                if is_new {
                    tracing::info!(
                        request = name,
                        server = client.server(),
                        "Requested a client certificate"
                    );
                }
                JoinOutcome::Pending
            }
            CsrState::Denied(why) => JoinOutcome::Denied(format!(
                "the certificate request {name} was denied ({why}); to request again, run `kubectl delete csr {name}`"
            )),
            CsrState::Failed(why) => JoinOutcome::Denied(format!(
                "the signer {} failed on the certificate request {name} ({why}); mend its cause, then run `kubectl delete \
                 csr {name}`",
                profile.signer
            )),
            CsrState::Issued(pem) => {
                let (ca, flag) = (access.ca.clone(), access.flag);
                self.on_disk(move |this| this.install(&pem, &key, &profile, &ca, flag))
                    .await
            }
        }
    }

    /// Looks at the request if it is known to exist, else creates it. The same name means the same key and content.
    async fn state_of_request(
        &self,
        client: &HttpClient,
        access: &Access,
        profile: &Profile,
        name: &str,
        key: &RequestKey,
    ) -> Result<CsrState, JoinOutcome> {
        let path = format!("{}/{name}", csr::PATH);
        if self.submitted.lock().as_deref() == Some(name) {
            match ask(client, access, Method::GET, &path, None).await? {
                (StatusCode::NOT_FOUND, _) => {}
                answer => return read(client, access, &answer),
            }
        }
        let pem = key
            .request(&profile.common_name(), &profile.organizations, &[] as &[&str])
            .map_err(|error| JoinOutcome::Refused(format!("--hub-cert-organizations: {error}")))?;
        let object = profile.object(name, &pem);
        match ask(client, access, Method::POST, csr::PATH, Some(&object)).await? {
            (StatusCode::CONFLICT, _) => {
                let answer = ask(client, access, Method::GET, &path, None).await?;
                read(client, access, &answer)
            }
            answer => read(client, access, &answer),
        }
    }

    fn install(&self, pem: &str, key: &RequestKey, profile: &Profile, ca: &PemSource, flag: &str) -> JoinOutcome {
        if let Err(error) = ca.certificates() {
            return JoinOutcome::Refused(format!("--{flag}: {error}"));
        }
        // The certificate comes last: it is the sign that the others are complete.
        let installed = self
            .files
            .store_ca(ca)
            .and_then(|()| self.files.write_kubeconfig(&self.first_server()));
        match installed.and_then(|()| self.files.install(pem, key, &profile.common_name())) {
            Ok(info) => {
                if info.not_before > self.clock.unix() {
                    tracing::warn!("The new certificate is valid in the future only; this node's clock is behind");
                }
                JoinOutcome::Installed
            }
            Err(error @ super::files::FileError::Foreign(_)) => JoinOutcome::Denied(format!(
                "{error}; check the signer {}, then run `kubectl delete csr {}`",
                profile.signer,
                profile.name(&key.public_key())
            )),
            Err(error) => JoinOutcome::Unanswered(format!("--root-dir: {error}")),
        }
    }
}

// === impl Access ===

impl Access {
    fn client(&self, server: &Uri) -> Result<HttpClient, JoinOutcome> {
        let client = HttpClient::new(server.clone(), Some(self.tls.clone()), Protocol::Http1, CONNECT_TIMEOUT)
            .map_err(|error| JoinOutcome::Refused(format!("--server-addr: {error}")))?;
        client.set_bearer_token(self.token.as_deref());
        Ok(client)
    }
}

/// Reads a kubeconfig and its files. Blocks.
fn access(path: &std::path::Path, flag: &'static str) -> Result<Access, JoinOutcome> {
    let refuse = |why: String| JoinOutcome::Refused(format!("--{flag}: {why}"));
    let kubeconfig = Kubeconfig::load(path).map_err(|error| refuse(error.to_string()))?;
    let tls = kubeconfig.client_tls().map_err(|error| refuse(error.to_string()))?;
    let token = kubeconfig.token.map(|token| token.read()).transpose();
    let token = token.map_err(|error| refuse(error.to_string()))?;
    if token.is_none() && tls.identity.is_none() {
        return Err(refuse(format!(
            "{} has neither a token nor a client certificate",
            path.display()
        )));
    }
    let ca = tls.ca.clone();
    let tls = tls.config().map_err(|error| refuse(error.to_string()))?;
    Ok(Access { ca, tls, token, flag })
}

async fn ask(
    client: &HttpClient,
    access: &Access,
    method: Method,
    path: &str,
    body: Option<&serde_json::Value>,
) -> Result<(StatusCode, bytes::Bytes), JoinOutcome> {
    let flag = format!("--{}", access.flag);
    let answer = client.request_json(method, path, body, REQUEST_TIMEOUT).await;
    let (status, _, body) = answer.map_err(|error| explain(&error, &flag))?;
    Ok((status, body))
}

/// Says that a server does not know the credential, and the fix.
fn unknown(server: &str, access: &Access) -> String {
    let (flag, credential) = match access.token {
        Some(_) => (access.flag, "the credential; it is expired or of another cluster"),
        None => (
            access.flag,
            "the client certificate, pki/yurthub-current.pem for --root-dir; its CA is no longer the cluster's, or it is of \
             another cluster",
        ),
    };
    format!(
        "--{flag}: {server} does not accept {credential}. Create a token with `kubeadm token create` and pass it as \
         --join-token, or POST it to /v1/token of this hub"
    )
}

fn read(
    client: &HttpClient,
    access: &Access,
    (status, body): &(StatusCode, bytes::Bytes),
) -> Result<CsrState, JoinOutcome> {
    let (server, flag) = (client.server(), access.flag);
    match *status {
        StatusCode::OK | StatusCode::CREATED => {
            CsrState::read(body).map_err(|why| JoinOutcome::Unanswered(format!("{server}{}: {why}", csr::PATH)))
        }
        StatusCode::UNAUTHORIZED => Err(JoinOutcome::Unknown(unknown(&server, access))),
        StatusCode::FORBIDDEN | StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY => Err(
            JoinOutcome::Refused(format!("--{flag}: {server}: {}", describe_answer(*status, body))),
        ),
        other => Err(JoinOutcome::Unanswered(format!(
            "{server}: {}",
            describe_answer(other, body)
        ))),
    }
}
