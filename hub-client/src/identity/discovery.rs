//! Discovery of the cluster's CA by a join token, as kubeadm does: the public ConfigMap `cluster-info` is signed with
//! the token's secret, and the CA's public key must be pinned. The token itself is never sent before the CA is
//! verified.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{Method, StatusCode, Uri};
use ring::hmac;
use serde_json::Value;
use yurt_runtime::http::client::{HttpClient, Protocol};
use yurt_runtime::kubeconfig::cluster_authorities;
use yurt_runtime::tls::{ClientTls, PemSource, pinned, unverified};

use super::plan::JoinOutcome;
use super::{CONNECT_TIMEOUT, REQUEST_TIMEOUT, explain};
pub use crate::config::{JoinToken, Trust};

/// The ConfigMap with the cluster's CA; anonymous callers may read it.
const CLUSTER_INFO: &str = "/api/v1/namespaces/kube-public/configmaps/cluster-info";
/// Prefix of the key with the signature by a token.
const SIGNATURE: &str = "jws-kubeconfig-";
/// Time that a server has to answer.
const TIMEOUT: Duration = REQUEST_TIMEOUT;

/// Reason why the ConfigMap proves no CA.
#[derive(Debug, thiserror::Error)]
pub(super) enum Distrusted {
    /// It has no signature by the token, or not yet.
    #[error("{0}")]
    Unsigned(String),
    /// A part of it is wrong.
    #[error("{0}")]
    Wrong(String),
}

// === impl Distrusted ===

impl From<String> for Distrusted {
    fn from(why: String) -> Self {
        Self::Wrong(why)
    }
}

impl Distrusted {
    fn outcome(&self, server: &Uri) -> JoinOutcome {
        let why = format!("{server} {CLUSTER_INFO}: {self}");
        match self {
            Self::Unsigned(_) => JoinOutcome::Unknown(why),
            Self::Wrong(_) => JoinOutcome::Refused(why),
        }
    }
}

/// Returns the cluster's CA in PEM: of the first server that proves it.
///
/// # Errors
/// [`JoinOutcome::Refused`], [`JoinOutcome::Unknown`] or [`JoinOutcome::Unanswered`], with the cause.
pub(super) async fn discover(servers: &[Uri], token: &JoinToken, trust: &Trust) -> Result<String, JoinOutcome> {
    let mut last = JoinOutcome::Unanswered("--server-addr names no server".to_owned());
    for server in servers {
        match discover_at(server, token, trust).await {
            Ok(ca) => return Ok(ca),
            Err(why) => last = last.or(why),
        }
    }
    Err(last)
}

async fn discover_at(server: &Uri, token: &JoinToken, trust: &Trust) -> Result<String, JoinOutcome> {
    let tls = unverified().map_err(|error| JoinOutcome::Refused(error.to_string()))?;
    let ca = verify(&cluster_info(server, tls).await?, token, trust).map_err(|why| why.outcome(server))?;
    // The same over a verified connection: the server holds a certificate of this CA.
    let tls = ClientTls {
        ca: PemSource::inline("ConfigMap cluster-info", ca.as_str()),
        identity: None,
    };
    let tls = tls.config().map_err(|error| JoinOutcome::Refused(error.to_string()))?;
    let again = cluster_info(server, tls).await?;
    match verify(&again, token, trust) {
        Ok(again) if again == ca => Ok(ca),
        _ => Err(JoinOutcome::Unanswered(format!(
            "{server} changed its ConfigMap cluster-info; retrying"
        ))),
    }
}

async fn cluster_info(server: &Uri, tls: rustls::ClientConfig) -> Result<Vec<u8>, JoinOutcome> {
    let client = HttpClient::new(server.clone(), Some(tls), Protocol::Http1, CONNECT_TIMEOUT)
        .map_err(|error| JoinOutcome::Refused(format!("--server-addr: {error}")))?;
    let (status, _, body) = client
        .request_json(Method::GET, CLUSTER_INFO, None, TIMEOUT)
        .await
        .map_err(|error| explain(&error, "--server-addr"))?;
    let why = match status {
        StatusCode::OK => return Ok(body.to_vec()),
        StatusCode::NOT_FOUND | StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => JoinOutcome::Unknown,
        _ => JoinOutcome::Unanswered,
    };
    Err(why(format!(
        "{server} answers {status} for ConfigMap kube-public/cluster-info; a cluster without it cannot be joined with a \
         token: use --bootstrap-file"
    )))
}

/// Verifies the ConfigMap `cluster-info` (JSON) and returns the CA in it that may be trusted, in PEM.
///
/// # Errors
/// Missing or wrong part, and the flag to change.
pub(super) fn verify(config_map: &[u8], token: &JoinToken, trust: &Trust) -> Result<String, Distrusted> {
    let object: Value = serde_json::from_slice(config_map).map_err(|error| format!("not JSON: {error}"))?;
    let data = |key: &str| object["data"][key].as_str();
    let kubeconfig = data("kubeconfig").ok_or_else(|| "no key kubeconfig in it".to_owned())?;
    let signature = data(&format!("{SIGNATURE}{}", token.id())).ok_or_else(|| {
        Distrusted::Unsigned(format!(
            "not signed with token {}, which is unknown or expired; create another with `kubeadm token create` and pass it \
             as --join-token",
            token.id()
        ))
    })?;
    if !is_signed(kubeconfig, signature, token) {
        let why = format!(
            "its signature by token {} is wrong; is --join-token complete?",
            token.id()
        );
        return Err(why.into());
    }
    let ca = cluster_authorities(kubeconfig)?;
    let Trust::Pins(pins) = trust else { return Ok(ca) };
    let kept = pinned(&PemSource::inline("its CA", ca), pins).map_err(|error| error.to_string())?;
    match kept.is_empty() {
        false => Ok(kept),
        true => {
            let why = "its CA has another public key than --discovery-token-ca-cert-hash; is this server of the right \
                       cluster?";
            Err(why.to_owned().into())
        }
    }
}

/// Verifies a detached JWS (RFC 7515, appendix F) with HS256, as Kubernetes' bootstrap signer writes it.
fn is_signed(content: &str, jws: &str, token: &JoinToken) -> bool {
    let Some((header, signature)) = jws.split_once("..") else {
        return false;
    };
    let decoded = URL_SAFE_NO_PAD.decode(header).ok();
    let known: Option<Value> = decoded.and_then(|header| serde_json::from_slice(&header).ok());
    if known.is_none_or(|header| header["alg"] != "HS256" || header["kid"] != token.id()) {
        return false;
    }
    let Ok(signature) = URL_SAFE_NO_PAD.decode(signature) else {
        return false;
    };
    let key = hmac::Key::new(hmac::HMAC_SHA256, token.secret().as_bytes());
    let input = format!("{header}.{}", URL_SAFE_NO_PAD.encode(content));
    hmac::verify(&key, input.as_bytes(), &signature).is_ok()
}

/// Signs `kubeconfig` as Kubernetes' bootstrap signer does; returns the ConfigMap.
#[cfg(test)]
pub(super) fn signed(kubeconfig: &str, token: &JoinToken) -> Value {
    let header = URL_SAFE_NO_PAD.encode(serde_json::json!({"alg": "HS256", "kid": token.id()}).to_string());
    let key = hmac::Key::new(hmac::HMAC_SHA256, token.secret().as_bytes());
    let input = format!("{header}.{}", URL_SAFE_NO_PAD.encode(kubeconfig));
    let signature = URL_SAFE_NO_PAD.encode(hmac::sign(&key, input.as_bytes()));
    let name = format!("{SIGNATURE}{}", token.id());
    serde_json::json!({"data": {"kubeconfig": kubeconfig, name: format!("{header}..{signature}")}})
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::STANDARD as BASE64;
    use yurt_runtime::tls::{CertificateInfo, public_key_pin};
    use yurt_test_support::TestPki;

    use super::*;

    fn token(text: &str) -> JoinToken {
        JoinToken::parse(text).unwrap()
    }

    fn kubeconfig(pki: &TestPki) -> String {
        let ca = BASE64.encode(pki.ca_pem());
        format!(
            "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: {ca}\n    server: https://x\n  name: \"\"\n"
        )
    }

    fn pin(pki: &TestPki) -> Trust {
        let info = CertificateInfo::leaf(&PemSource::inline("ca", pki.ca_pem())).unwrap();
        Trust::Pins(vec![public_key_pin(&info.public_key)])
    }

    fn check(config_map: &Value, token: &JoinToken, trust: &Trust) -> Result<String, String> {
        verify(config_map.to_string().as_bytes(), token, trust).map_err(|why| why.to_string())
    }

    #[test]
    fn signed_and_pinned_authority_is_trusted() {
        let (pki, own) = (TestPki::new(), token("abcdef.0123456789abcdef"));
        let config_map = signed(&kubeconfig(&pki), &own);
        assert_eq!(check(&config_map, &own, &pin(&pki)).unwrap(), pki.ca_pem());
        assert_eq!(check(&config_map, &own, &Trust::TokenAlone).unwrap(), pki.ca_pem());
    }

    #[test]
    fn authority_with_another_key_is_refused_although_a_holder_of_the_token_signed_it() {
        let (pki, other, own) = (TestPki::new(), TestPki::new(), token("abcdef.0123456789abcdef"));
        let config_map = signed(&kubeconfig(&other), &own);
        let why = check(&config_map, &own, &pin(&pki)).unwrap_err();
        assert!(why.contains("--discovery-token-ca-cert-hash"), "{why}");
    }

    #[test]
    fn content_is_accepted_only_with_the_signature_of_this_token() {
        let (pki, own) = (TestPki::new(), token("abcdef.0123456789abcdef"));
        let same_id = token("abcdef.0123456789abcdee");
        let config_map = signed(&kubeconfig(&pki), &same_id);
        assert!(
            check(&config_map, &own, &Trust::TokenAlone)
                .unwrap_err()
                .contains("signature")
        );
        let unknown = signed(&kubeconfig(&pki), &token("fedcba.0123456789abcdef"));
        let why = check(&unknown, &own, &Trust::TokenAlone).unwrap_err();
        assert!(why.contains("--join-token") && why.contains("expired"), "{why}");
        let mut changed = signed(&kubeconfig(&pki), &own);
        changed["data"]["kubeconfig"] = kubeconfig(&TestPki::new()).into();
        assert!(check(&changed, &own, &Trust::TokenAlone).is_err());
        let mut unsigned = signed(&kubeconfig(&pki), &own);
        unsigned["data"]["jws-kubeconfig-abcdef"] = "eyJhbGciOiJub25lIn0..".into();
        assert!(check(&unsigned, &own, &Trust::TokenAlone).is_err(), "alg none");
    }
}
