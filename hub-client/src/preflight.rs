//! Checks before the first start that the certificates fit the servers. A hub that has served data before starts
//! regardless of the servers, because its node may be offline. A new one should fail early if its files are
//! wrong. Files that are right at another time are not: a certificate is renewed, and a clock is set.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use http::{Method, StatusCode};
use yurt_runtime::http::client::{ClientError, HttpClient};

use crate::config::Config;
use crate::upstream::{Upstreams, is_of_time};

/// Maximum time for an answer of a server; one that does not answer does not prevent the start.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A certificate that can never work; names the file and the server.
#[derive(Debug, thiserror::Error)]
#[error("--{flag}: {problem}")]
pub struct PreflightError {
    flag: &'static str,
    problem: String,
}

/// Advice about the certificates of one kind of server.
struct Advice {
    flag: &'static str,
    /// File of our client certificate.
    file: String,
    /// Advice for a handshake that fails.
    tls: String,
    /// Advice for a server that does not accept our certificate.
    refused: &'static str,
}

/// Queries the cloud's servers and the coordinator once, concurrently.
///
/// # Errors
/// [`PreflightError`] if a server refuses our certificate or presents one that our CA did not sign, and no other one of
/// its kind accepts us.
pub async fn check(config: &Config, upstreams: &Upstreams) -> Result<(), PreflightError> {
    let kubeconfig = config.kubeconfig.display().to_string();
    let (of_cloud, of_coordinator) = (
        Advice::of_cloud(config.certificate_flag(), kubeconfig.clone()),
        Advice::of_coordinator(kubeconfig),
    );
    let servers = (0..upstreams.cloud.len()).map(|place| &upstreams.cloud.at(place).knocks);
    let coordinator = upstreams.coordinator.iter().map(|coordinator| &coordinator.once);
    let (cloud, pool) = tokio::join!(
        ask(&of_cloud, servers.collect()),
        ask(&of_coordinator, coordinator.collect())
    );
    cloud.and(pool)
}

/// Asks the servers concurrently. One that accepts us is enough: the hub does without the others.
async fn ask(advice: &Advice, servers: Vec<&HttpClient>) -> Result<(), PreflightError> {
    let mut asked: FuturesUnordered<_> = servers.into_iter().map(|client| ask_one(advice, client)).collect();
    let mut found = Ok(());
    while let Some(answer) = asked.next().await {
        match answer {
            Some(Ok(())) => return Ok(()),
            Some(problem) => found = found.and(problem),
            None => {}
        }
    }
    found
}

/// Returns the finding about one server; `None` if it does not answer.
async fn ask_one(advice: &Advice, client: &HttpClient) -> Option<Result<(), PreflightError>> {
    let answer = client.request_json(Method::GET, "/livez", None, TIMEOUT).await;
    let problem = match advice.problem(answer.map(|(status, ..)| status), &client.server())? {
        Ok(()) => return Some(Ok(())),
        Err(problem) => problem,
    };
    Some(Err(PreflightError {
        flag: advice.flag,
        problem,
    }))
}

// === impl Advice ===

impl Advice {
    fn of_cloud(flag: &'static str, file: String) -> Self {
        Self {
            flag,
            tls: format!("is {file} of the same cluster as this server's certificate?"),
            file,
            refused: "is it signed by the cluster's CA?",
        }
    }

    fn of_coordinator(file: String) -> Self {
        let tls = "set --coordinator-ca-file to the CA of the coordinator's certificate, and check that it names the host of \
                   --coordinator-server-addr";
        Self {
            flag: "coordinator-ca-file",
            tls: tls.to_owned(),
            file,
            refused: "start the coordinator with --client-ca-file of the CA that signed it",
        }
    }

    /// The problem that an answer shows: none, one that waiting does not solve, or `None` if it shows nothing.
    fn problem(&self, answer: Result<StatusCode, ClientError>, server: &str) -> Option<Result<(), String>> {
        let Self { file, tls, refused, .. } = self;
        match answer {
            Err(error @ ClientError::Tls { .. }) => {
                let text = error.to_string();
                (!is_of_time(&text)).then(|| Err(format!("{text}; {tls}")))
            }
            Ok(StatusCode::UNAUTHORIZED) => Some(Err(format!(
                "{server} does not accept the client certificate of {file}; {refused}"
            ))),
            Ok(_) => Some(Ok(())),
            Err(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tls(cause: &str) -> Result<StatusCode, ClientError> {
        Err(ClientError::Tls {
            server: "https://cloud".to_owned(),
            cause: cause.to_owned(),
            handshake: true,
        })
    }

    #[test]
    fn coordinator_with_a_ca_of_its_own_names_its_flags() {
        let advice = Advice::of_coordinator("kubelet.conf".to_owned());
        assert_eq!(advice.flag, "coordinator-ca-file");
        let error = |answer| advice.problem(answer, "https://pool").unwrap().unwrap_err();
        let unknown = error(tls("invalid peer certificate: UnknownIssuer"));
        for part in ["UnknownIssuer; set --coordinator-ca-file", "--coordinator-server-addr"] {
            assert!(unknown.contains(part), "{unknown}");
        }
        let refused = error(Ok(StatusCode::UNAUTHORIZED));
        for part in ["https://pool", "kubelet.conf", "--client-ca-file"] {
            assert!(refused.contains(part), "{refused}");
        }
    }

    #[test]
    fn only_what_waiting_does_not_solve_prevents_a_start() {
        let advice = Advice::of_cloud("kubeconfig", "kubelet.conf".to_owned());
        let judged = |answer| advice.problem(answer, "https://cloud");
        assert!(judged(tls("invalid peer certificate: UnknownIssuer")).unwrap().is_err());
        assert!(judged(Ok(StatusCode::UNAUTHORIZED)).unwrap().is_err());
        assert_eq!(judged(Ok(StatusCode::SERVICE_UNAVAILABLE)), Some(Ok(())));
        for of_time in ["certificate expired: 15 seconds ago", "certificate not valid yet"] {
            assert_eq!(judged(tls(&format!("invalid peer certificate: {of_time}"))), None);
        }
    }
}
