//! Service account tokens: their keys, issuers and audiences, and the objects they are bound to.
//!
//! If this server owns service accounts, pods, secrets or nodes, a token ends with the object it is bound to. If it
//! does not (profile `pool`), only signature, issuer, audience and times count.

use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::RwLock;
use serde_json::json;
use yurt_apimachinery::json_text;
use yurt_runtime::jws::{SigningKey, VerifyingKey};
use yurt_runtime::tls::{PemSource, TlsError};

use super::User;
use super::claims::{BoundObjects, Claims};
use crate::StartError;
use crate::config::Config;

/// Maximum length of a token, in bytes.
const TOKEN_BYTES_MAX: usize = 16 << 10;

/// Keys, issuers and audiences for tokens.
pub(crate) struct Tokens {
    issuers: Vec<String>,
    /// Audiences of this server; a token must be for one of them.
    audiences: Vec<String>,
    files: Vec<PathBuf>,
    // Guards the pointer only.
    keys: RwLock<Arc<Vec<VerifyingKey>>>,
    signer: Option<SigningKey>,
}

/// A valid token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Authenticated {
    /// User of the token.
    pub(crate) user: User,
    /// Requested audiences that the token is for.
    pub(crate) audiences: Vec<String>,
}

// === impl Tokens ===

impl Tokens {
    /// Reads the keys that the flags name.
    ///
    /// # Errors
    /// The flag, the file, and the fault.
    pub(crate) fn open(config: &Config) -> Result<Self, StartError> {
        let has_keys = !config.service_account_key_file.is_empty() || config.service_account_signing_key_file.is_some();
        if has_keys && config.service_account_issuer.is_empty() {
            return Err(StartError::new(
                "--service-account-issuer: needed with --service-account-key-file and --service-account-signing-key-file",
            ));
        }
        let flag = |flag: &'static str| move |error: TlsError| StartError::new(format!("--{flag}: {error}"));
        let signer = config.service_account_signing_key_file.as_ref();
        let signer = signer
            .map(|file| SigningKey::load(&PemSource::from(file.clone())))
            .transpose()
            .map_err(flag("service-account-signing-key-file"))?;
        let files = config.service_account_key_file.clone();
        let keys = load(&files, signer.as_ref()).map_err(flag("service-account-key-file"))?;
        let audiences = if config.api_audiences.is_empty() {
            config.service_account_issuer.first().cloned().into_iter().collect()
        } else {
            config.api_audiences.clone()
        };
        Ok(Self {
            issuers: config.service_account_issuer.clone(),
            audiences,
            files,
            keys: RwLock::new(Arc::new(keys)),
            signer,
        })
    }

    /// True if there are files to read again.
    pub(crate) fn is_reloadable(&self) -> bool {
        !self.files.is_empty()
    }

    /// Reads the public keys again; true if they changed. Blocks for the reads.
    ///
    /// # Errors
    /// The file and its fault; the previous keys stay.
    pub(crate) fn reload(&self) -> Result<bool, TlsError> {
        let keys = load(&self.files, self.signer.as_ref())?;
        let mut current = self.keys.write();
        let changed = **current != keys;
        *current = Arc::new(keys);
        Ok(changed)
    }

    /// The audiences of this server.
    pub(crate) fn audiences(&self) -> &[String] {
        &self.audiences
    }

    /// The issuer of tokens signed here, if this server signs any.
    pub(crate) fn issuer(&self) -> Option<&str> {
        self.signer.as_ref()?;
        self.issuers.first().map(String::as_str)
    }

    /// Checks a token for use with any of `audiences`.
    ///
    /// # Errors
    /// The reason of its invalidity; empty for a text that is no token of a known issuer.
    pub(crate) fn check(
        &self,
        token: &str,
        audiences: &[String],
        now: i64,
        objects: BoundObjects<'_>,
    ) -> Result<Authenticated, String> {
        let (claims, audiences) = self.verified(token, audiences)?;
        let user = claims.validate(now, objects)?;
        Ok(Authenticated { user, audiences })
    }

    /// The claims of a token whose signature, issuer and audience are valid.
    fn verified(&self, token: &str, wanted: &[String]) -> Result<(Claims, Vec<String>), String> {
        let parts: Vec<&str> = token.split('.').collect();
        let [header, payload, signature] = parts[..] else {
            return Err(String::new());
        };
        if token.len() > TOKEN_BYTES_MAX {
            return Err(String::new());
        }
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| String::new());
        let header_value = json_text::parse(&decode(header)?).map_err(|_| String::new())?;
        let claims = Claims::read(&decode(payload)?).ok_or_else(String::new)?;
        // Critical extensions are not supported.
        if !self.issuers.contains(&claims.issuer) || !header_value["crit"].is_null() {
            return Err(String::new());
        }
        let (kid, algorithm) = (header_value["kid"].as_str().unwrap_or_default(), &header_value["alg"]);
        let algorithm = algorithm.as_str().unwrap_or_default();
        let signature = decode(signature)?;
        let message = &token.as_bytes()[..header.len() + 1 + payload.len()];
        let keys = self.keys.read().clone();
        let mut candidates = keys.iter().filter(|key| kid.is_empty() || key.id() == kid).peekable();
        if candidates.peek().is_none() {
            return Err("invalid signature, no keys found".to_owned());
        }
        if !candidates.any(|key| key.verify(algorithm, message, &signature)) {
            return Err("invalid signature".to_owned());
        }
        // A token without audience is for this server.
        let given = if claims.audiences.is_empty() {
            &self.audiences
        } else {
            &claims.audiences
        };
        let audiences: Vec<String> = wanted.iter().filter(|one| given.contains(one)).cloned().collect();
        if audiences.is_empty() {
            return Err(format!(
                "token audiences {given:?} is invalid for the target audiences {wanted:?}"
            ));
        }
        Ok((claims, audiences))
    }

    /// Signs a token; `None` when this server signs none.
    pub(crate) fn issue(&self, claims: &Claims) -> Option<String> {
        let signer = self.signer.as_ref()?;
        let header = json!({ "alg": signer.algorithm(), "kid": signer.verifying().id() }).to_string();
        let message = format!(
            "{}.{}",
            URL_SAFE_NO_PAD.encode(header),
            URL_SAFE_NO_PAD.encode(claims.payload())
        );
        let signature = signer.sign(message.as_bytes()).ok()?;
        Some(format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

fn load(files: &[PathBuf], signer: Option<&SigningKey>) -> Result<Vec<VerifyingKey>, TlsError> {
    let mut keys: Vec<VerifyingKey> = signer.map(|signer| signer.verifying().clone()).into_iter().collect();
    for file in files {
        keys.extend(VerifyingKey::load_all(&PemSource::from(file.clone()))?);
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::super::claims::Bound;
    use super::*;

    const NOW: i64 = 1_800_000_000;

    fn tokens(issuer: &str, folder: &std::path::Path) -> Tokens {
        let pair = yurt_runtime::pki::CertificateAuthority::generate("ca").unwrap();
        let pair = pair.issue_client("x", &[""; 0]).unwrap();
        let file = folder.join(format!("{}.pem", issuer.replace('/', "_")));
        std::fs::write(&file, pair.key_pem).unwrap();
        let args = [
            "yurt-coordinator",
            "--service-account-issuer",
            issuer,
            "--service-account-issuer",
            "https://older",
            "--service-account-signing-key-file",
            file.to_str().unwrap(),
        ];
        Tokens::open(&Config::parse(args).unwrap()).unwrap()
    }

    fn claims(issuer: &str, audiences: &[&str]) -> Claims {
        Claims {
            issuer: issuer.to_owned(),
            audiences: audiences.iter().map(|one| (*one).to_owned()).collect(),
            expires: NOW + 600,
            namespace: "ns".to_owned(),
            account: Bound {
                name: "robot".to_owned(),
                uid: "u".to_owned(),
            },
            ..Claims::default()
        }
    }

    /// Conformance: 6.04, 6.05
    #[test]
    fn only_own_signature_issuer_and_audience_hold() {
        let folder = tempfile::tempdir().unwrap();
        let (ours, theirs) = (
            tokens("https://ours", folder.path()),
            tokens("https://theirs", folder.path()),
        );
        let check = |token: &str| ours.verified(token, ours.audiences());
        let good = ours.issue(&claims("https://ours", &["https://ours", "other"])).unwrap();
        assert_eq!(check(&good).unwrap().1, ["https://ours"]);
        let older = ours.issue(&claims("https://older", &[])).unwrap();
        assert!(
            check(&older).is_ok(),
            "another issuer that is accepted; no audience means this server"
        );
        let elsewhere = ours.issue(&claims("https://ours", &["other"])).unwrap();
        assert!(
            check(&elsewhere)
                .unwrap_err()
                .contains("is invalid for the target audiences")
        );
        assert_eq!(ours.verified(&elsewhere, &["other".to_owned()]).unwrap().1, ["other"]);
        assert_eq!(check(&ours.issue(&claims("https://x", &[])).unwrap()).unwrap_err(), "");
        let forged = theirs.issue(&claims("https://ours", &[])).unwrap();
        assert_eq!(check(&forged).unwrap_err(), "invalid signature, no keys found");
        // The id of our key over their signature, another payload, no signature at all.
        let [header, payload, signature]: [&str; 3] = good.split('.').collect::<Vec<_>>().try_into().unwrap();
        let their_signature = forged.rsplit('.').next().unwrap();
        let other_payload = URL_SAFE_NO_PAD.encode(claims("https://ours", &["https://ours"]).payload());
        let none = URL_SAFE_NO_PAD.encode(json!({ "alg": "none" }).to_string());
        for bad in [
            format!("{header}.{payload}.{their_signature}"),
            format!("{header}.{other_payload}.{signature}"),
            format!("{none}.{payload}."),
            format!("{header}.{payload}"),
            format!("{good}.x"),
            format!("{good}="),
            "x".repeat(TOKEN_BYTES_MAX + 1),
            String::new(),
        ] {
            assert!(check(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn keys_need_an_issuer_and_bad_files_are_named() {
        let open = |args: &[&str]| {
            let args = std::iter::once("yurt-coordinator").chain(args.iter().copied());
            Tokens::open(&Config::parse(args).unwrap())
                .map(|_| ())
                .unwrap_err()
                .to_string()
        };
        assert!(open(&["--service-account-key-file", "x"]).starts_with("--service-account-issuer: "));
        let missing = open(&[
            "--service-account-issuer",
            "i",
            "--service-account-key-file",
            "/nowhere/key",
        ]);
        assert!(
            missing.starts_with("--service-account-key-file: ") && missing.contains("/nowhere/key"),
            "{missing}"
        );
    }
}
