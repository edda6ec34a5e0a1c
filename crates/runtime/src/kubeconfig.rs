//! Reader of the current context of a kubeconfig, and writer of one for an administrator.
//!
//! Paths are relative to the kubeconfig's folder, and embedded `-data` values win over paths, as in client-go. Options
//! that silently weaken security or widen access are rejected: `insecure-skip-tls-verify`, and `exec` or
//! `auth-provider` users.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;

use crate::pki::write_secret;
use crate::tls::{ClientTls, FieldReader, PemIdentity, PemPair, PemSource, TlsError};

#[cfg(test)]
mod tests;

/// Contents of a kubeconfig's current context.
#[derive(Clone, Debug)]
pub struct Kubeconfig {
    /// URL of the API server, as written.
    pub server: String,
    /// Authorities of the server's certificate; `None` when the file names none.
    pub ca: Option<PemSource>,
    /// Client certificate; each use reads its file again, or the kubeconfig that embeds it.
    pub identity: Option<PemIdentity>,
    /// Bearer token, if any.
    pub token: Option<Token>,
}

/// Source of the bearer token. `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub enum Token {
    /// Written in the kubeconfig.
    Inline(String),
    /// In a file that may be rotated; callers read it again at intervals.
    File(PathBuf),
}

/// Reason why a kubeconfig cannot be used. Each message names the file.
#[derive(Debug, thiserror::Error)]
#[error("kubeconfig {}: {problem}", path.display())]
pub struct KubeconfigError {
    path: PathBuf,
    problem: String,
}

/// Maximum size of a kubeconfig in bytes; a larger file is a mistake.
const MAX_BYTES: u64 = 4 * 1024 * 1024;

/// Field of a cluster, with or without `-data`.
const CA: &str = "certificate-authority";
/// Fields of a user, likewise.
const CERT: &str = "client-certificate";
const KEY: &str = "client-key";

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Document {
    #[serde(default)]
    current_context: String,
    #[serde(default)]
    clusters: Vec<NamedCluster>,
    #[serde(default)]
    contexts: Vec<NamedContext>,
    #[serde(default)]
    users: Vec<NamedUser>,
}

#[derive(Deserialize)]
struct NamedCluster {
    name: String,
    cluster: Cluster,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster {
    #[serde(default)]
    server: String,
    certificate_authority: Option<String>,
    certificate_authority_data: Option<String>,
    #[serde(default)]
    insecure_skip_tls_verify: bool,
}

#[derive(Deserialize)]
struct NamedContext {
    name: String,
    context: Context,
}

#[derive(Deserialize)]
struct Context {
    #[serde(default)]
    cluster: String,
    #[serde(default)]
    user: String,
}

#[derive(Deserialize)]
struct NamedUser {
    name: String,
    user: User,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct User {
    client_certificate: Option<String>,
    client_certificate_data: Option<String>,
    client_key: Option<String>,
    client_key_data: Option<String>,
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<String>,
    exec: Option<serde::de::IgnoredAny>,
    auth_provider: Option<serde::de::IgnoredAny>,
}

// === impl Kubeconfig ===

impl Kubeconfig {
    /// Reads the file. Certificates given by path are not read yet.
    ///
    /// # Errors
    /// Names the kubeconfig, and the part of it that is missing or rejected.
    pub fn load(path: &Path) -> Result<Self, KubeconfigError> {
        let mut config = Self::parse(path)?;
        let identity = config.identity.as_mut();
        let (cert, key) = identity.map(|one| (&mut one.cert, &mut one.key)).unzip();
        for (source, field) in [(config.ca.as_mut(), CA), (cert, CERT), (key, KEY)] {
            if let Some(source @ PemSource::Inline { .. }) = source {
                let kubeconfig = path.to_owned();
                let reader = FieldReader(read_embedded);
                *source = PemSource::Embedded {
                    kubeconfig,
                    field,
                    reader,
                };
            }
        }
        Ok(config)
    }

    /// Reads the file, with embedded certificates as inline text.
    fn parse(path: &Path) -> Result<Self, KubeconfigError> {
        let fail = |problem: String| KubeconfigError {
            path: path.to_owned(),
            problem,
        };
        let size = std::fs::metadata(path).map_err(|e| fail(e.to_string()))?.len();
        if size > MAX_BYTES {
            return Err(fail(format!("larger than {MAX_BYTES} bytes")));
        }
        let text = std::fs::read_to_string(path).map_err(|e| fail(e.to_string()))?;
        let document: Document = serde_saphyr::from_str(&text).map_err(|e| fail(format!("not a kubeconfig: {e}")))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        Reader { file: path, folder }.read(document).map_err(fail)
    }

    /// TLS for a client of the server.
    ///
    /// # Errors
    /// A message when the kubeconfig names no certificate authority.
    pub fn client_tls(&self) -> Result<ClientTls, TlsError> {
        let ca = self.ca.clone().ok_or_else(|| TlsError::Pem {
            origin: format!("kubeconfig for {}", self.server),
            problem: "the cluster has no certificate-authority".to_owned(),
        })?;
        Ok(ClientTls {
            ca,
            identity: self.identity.clone(),
        })
    }
}

/// Returns the present text of a [`PemSource::Embedded`]. The kubeconfig may name a file by now.
fn read_embedded(path: &Path, field: &'static str) -> Result<Vec<u8>, TlsError> {
    let fail = |problem: String| TlsError::Pem {
        origin: path.display().to_string(),
        problem,
    };
    let config = Kubeconfig::parse(path).map_err(|error| fail(error.problem))?;
    let (cert, key) = config.identity.map(|one| (one.cert, one.key)).unzip();
    let source = match field {
        CA => config.ca,
        CERT => cert,
        _ => key,
    };
    let source = source.ok_or_else(|| fail(format!("no {field} in it")))?;
    source.read().map(Cow::into_owned)
}

/// Writes a kubeconfig with everything embedded, mode 0600: user `admin` with the client certificate `pair`.
///
/// # Errors
/// When the file cannot be written; the message names it.
pub fn write_admin(path: &Path, server: &str, ca_pem: &str, pair: &PemPair) -> std::io::Result<()> {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: admin\n\
         clusters:\n- name: pool\n  cluster:\n    server: {server}\n    certificate-authority-data: {ca}\n\
         contexts:\n- name: admin\n  context:\n    cluster: pool\n    user: admin\n\
         users:\n- name: admin\n  user:\n    client-certificate-data: {cert}\n    client-key-data: {key}\n",
        server = quoted(server),
        ca = BASE64.encode(ca_pem),
        cert = BASE64.encode(&pair.cert_pem),
        key = BASE64.encode(&pair.key_pem),
    );
    write_secret(path, text)
}

/// Returns the authorities (PEM) of the first cluster of a kubeconfig without contexts, as the ConfigMap `cluster-info`
/// has it.
///
/// # Errors
/// The fault of the text, without its name.
pub fn cluster_authorities(text: &str) -> Result<String, String> {
    let document: Document = serde_saphyr::from_str(text).map_err(|e| format!("not a kubeconfig: {e}"))?;
    let cluster = document.clusters.into_iter().next().ok_or("no cluster in it")?.cluster;
    let data = cluster.certificate_authority_data.unwrap_or_default();
    let data: String = data.split_whitespace().collect();
    let pem = BASE64
        .decode(data)
        .map_err(|e| format!("certificate-authority-data is not base64: {e}"))?;
    match String::from_utf8(pem) {
        Ok(pem) if !pem.is_empty() => Ok(pem),
        _ => Err("no certificate-authority-data in it".to_owned()),
    }
}

/// The credential of a kubeconfig that [`write_client`] writes.
#[derive(Clone, Copy)]
pub enum Credential<'a> {
    /// User and bearer token.
    Token(&'a str, &'a str),
    /// User, and path of a file with certificate and key.
    File(&'a str, &'a Path),
}

/// Writes a kubeconfig for `server` and its authorities, mode 0600, with upstream's names. Authorities of a file stay a
/// path; others are embedded.
///
/// # Errors
/// When the file cannot be written; the message names it.
pub fn write_client(path: &Path, server: &str, ca: &PemSource, credential: Credential<'_>) -> std::io::Result<()> {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let ca = match ca {
        PemSource::File(file) => format!("certificate-authority: {}", quoted(&file.display().to_string())),
        other => {
            let pem = other.read().map_err(std::io::Error::other)?;
            format!("certificate-authority-data: {}", BASE64.encode(pem))
        }
    };
    let (user, lines) = match credential {
        Credential::Token(user, token) => (user, format!("    token: {}\n", quoted(token))),
        Credential::File(user, pair) => {
            let pair = quoted(&pair.display().to_string());
            (
                user,
                format!("    client-certificate: {pair}\n    client-key: {pair}\n"),
            )
        }
    };
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: default-context\n\
         clusters:\n- name: default-cluster\n  cluster:\n    server: {server}\n    {ca}\n\
         contexts:\n- name: default-context\n  context:\n    cluster: default-cluster\n    user: {user}\n\
         users:\n- name: {user}\n  user:\n{lines}",
        server = quoted(server),
    );
    write_secret(path, text)
}

/// Resolves names and paths of one document; errors do not contain the file's name.
struct Reader<'a> {
    file: &'a Path,
    folder: &'a Path,
}

// === impl Reader ===

impl Reader<'_> {
    fn read(&self, document: Document) -> Result<Kubeconfig, String> {
        let wanted = &document.current_context;
        if wanted.is_empty() {
            return Err("no current-context".to_owned());
        }
        let context = document.contexts.into_iter().find(|context| context.name == *wanted);
        let context = context
            .ok_or_else(|| format!("current-context {wanted:?} is not in contexts"))?
            .context;
        let cluster = document
            .clusters
            .into_iter()
            .find(|cluster| cluster.name == context.cluster);
        let cluster = cluster
            .ok_or_else(|| format!("cluster {:?} is not in clusters", context.cluster))?
            .cluster;
        let user = match document.users.into_iter().find(|user| user.name == context.user) {
            Some(found) => found.user,
            None if context.user.is_empty() => User::default(),
            None => return Err(format!("user {:?} is not in users", context.user)),
        };
        if cluster.insecure_skip_tls_verify {
            return Err("insecure-skip-tls-verify is refused; give certificate-authority instead".to_owned());
        }
        if cluster.server.is_empty() {
            return Err(format!("cluster {:?} has no server", context.cluster));
        }
        let ca = self.pem(CA, cluster.certificate_authority, cluster.certificate_authority_data)?;
        Ok(Kubeconfig {
            server: cluster.server,
            ca,
            identity: self.identity(&user)?,
            token: self.token(&user),
        })
    }

    fn identity(&self, user: &User) -> Result<Option<PemIdentity>, String> {
        if user.exec.is_some() || user.auth_provider.is_some() {
            return Err("users with exec or auth-provider are not supported; use a certificate or a token".to_owned());
        }
        let cert = self.pem(
            CERT,
            user.client_certificate.clone(),
            user.client_certificate_data.clone(),
        )?;
        let key = self.pem(KEY, user.client_key.clone(), user.client_key_data.clone())?;
        match (cert, key) {
            (None, None) => Ok(None),
            (Some(cert), Some(key)) => Ok(Some(PemIdentity { cert, key })),
            (Some(_), None) => Err("client-certificate without client-key".to_owned()),
            (None, Some(_)) => Err("client-key without client-certificate".to_owned()),
        }
    }

    /// client-go prefers the file over the inline token.
    fn token(&self, user: &User) -> Option<Token> {
        let set = |value: &Option<String>| value.clone().filter(|value| !value.is_empty());
        match set(&user.token_file) {
            Some(file) => Some(Token::File(self.folder.join(file))),
            None => set(&user.token).map(Token::Inline),
        }
    }

    fn pem(&self, field: &str, path: Option<String>, data: Option<String>) -> Result<Option<PemSource>, String> {
        if let Some(data) = data.filter(|data| !data.is_empty()) {
            // YAML may fold the value over lines.
            let data: String = data.split_whitespace().collect();
            let pem = BASE64
                .decode(data)
                .map_err(|e| format!("{field}-data is not base64: {e}"))?;
            let pem = String::from_utf8(pem).map_err(|_| format!("{field}-data does not hold PEM"))?;
            return Ok(Some(PemSource::inline(
                format!("{field}-data in {}", self.file.display()),
                pem,
            )));
        }
        Ok(path
            .filter(|path| !path.is_empty())
            .map(|path| PemSource::File(self.folder.join(path))))
    }
}

// === impl Token ===

impl Token {
    /// The token, read from its file if it has one. Blocks for a small read.
    ///
    /// # Errors
    /// When the file is unreadable or empty; the message names it.
    pub fn read(&self) -> std::io::Result<String> {
        let path = match self {
            Token::Inline(token) => return Ok(token.clone()),
            Token::File(path) => path,
        };
        let naming = |e: &dyn std::fmt::Display| std::io::Error::other(format!("token file {}: {e}", path.display()));
        let token = std::fs::read_to_string(path).map_err(|e| naming(&e))?.trim().to_owned();
        if token.is_empty() {
            Err(naming(&"empty"))
        } else {
            Ok(token)
        }
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Token::Inline(_) => f.write_str("Token(hidden)"),
            Token::File(path) => write!(f, "Token({})", path.display()),
        }
    }
}
