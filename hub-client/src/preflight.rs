//! Checks before the first start that the certificates fit the servers. A hub that has served data before starts
//! regardless of the servers, because its node may be offline. A new one should fail early if its files are
//! wrong. Files that are right at another time are not: a certificate is renewed, and a clock is set.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use http::{Method, StatusCode};
use yurt_runtime::http::client::{ClientError, HttpClient};

use crate::config::Config;
use crate::identity::is_of_time;
use crate::upstream::Upstreams;

/// Maximum time for an answer of a server; one that does not answer does not prevent the start.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A certificate that can never work; names the file and the server.
#[derive(Debug, thiserror::Error)]
#[error("--{flag}: {problem}")]
pub struct PreflightError {
    flag: &'static str,
    problem: String,
}

/// Queries the cloud's servers and the coordinator once, concurrently.
///
/// # Errors
/// [`PreflightError`] if a server refuses our certificate or presents one that our CA did not sign.
pub async fn check(config: &Config, upstreams: &Upstreams) -> Result<(), PreflightError> {
    let kubeconfig = config.kubeconfig.display().to_string();
    let coordinator_ca = config
        .coordinator
        .as_ref()
        .and_then(|coordinator| coordinator.ca_file.as_ref());
    let servers = (0..upstreams.cloud.len()).map(|place| &upstreams.cloud.at(place).knocks);
    let flag = config.certificate_flag();
    let cloud = ask(flag, &kubeconfig, servers.collect());
    let pool = async {
        let Some(client) = upstreams.coordinator.as_ref().map(|coordinator| &coordinator.once) else {
            return Ok(());
        };
        match coordinator_ca {
            Some(ca) => ask("coordinator-ca-file", &ca.display().to_string(), vec![client]).await,
            None => ask(flag, &kubeconfig, vec![client]).await,
        }
    };
    let (cloud, pool) = tokio::join!(cloud, pool);
    cloud.and(pool)
}

/// Asks the servers concurrently; the first answer counts.
async fn ask(flag: &'static str, file: &str, servers: Vec<&HttpClient>) -> Result<(), PreflightError> {
    let mut asked: FuturesUnordered<_> = servers.into_iter().map(|client| ask_one(flag, file, client)).collect();
    while let Some(answer) = asked.next().await {
        if let Some(answer) = answer {
            return answer;
        }
    }
    Ok(())
}

/// Returns the finding about one server; `None` if it does not answer.
async fn ask_one(flag: &'static str, file: &str, client: &HttpClient) -> Option<Result<(), PreflightError>> {
    let answer = client.request_json(Method::GET, "/livez", None, TIMEOUT).await;
    let problem = match problem(answer.map(|(status, ..)| status), &client.server(), file)? {
        Ok(()) => return Some(Ok(())),
        Err(problem) => problem,
    };
    Some(Err(PreflightError { flag, problem }))
}

/// The problem that an answer shows: none, one that waiting does not solve, or `None` if it shows nothing.
fn problem(answer: Result<StatusCode, ClientError>, server: &str, file: &str) -> Option<Result<(), String>> {
    match answer {
        Err(error @ ClientError::Tls { .. }) => {
            let text = error.to_string();
            let is_lasting = !is_of_time(&text);
            is_lasting.then(|| {
                Err(format!(
                    "{text}; is {file} of the same cluster as this server's certificate?"
                ))
            })
        }
        Ok(StatusCode::UNAUTHORIZED) => Some(Err(format!(
            "{server} does not accept the client certificate of {file}; is it signed by the cluster's CA?"
        ))),
        Ok(_) => Some(Ok(())),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_waiting_does_not_solve_prevents_a_start() {
        let tls = |cause: &str| {
            Err(ClientError::Tls {
                server: "https://cloud".to_owned(),
                cause: cause.to_owned(),
                handshake: true,
            })
        };
        let judged = |answer| problem(answer, "https://cloud", "kubelet.conf");
        assert!(judged(tls("invalid peer certificate: UnknownIssuer")).unwrap().is_err());
        assert!(judged(Ok(StatusCode::UNAUTHORIZED)).unwrap().is_err());
        assert_eq!(judged(Ok(StatusCode::SERVICE_UNAVAILABLE)), Some(Ok(())));
        for of_time in ["certificate expired: 15 seconds ago", "certificate not valid yet"] {
            assert_eq!(judged(tls(&format!("invalid peer certificate: {of_time}"))), None);
        }
    }
}
