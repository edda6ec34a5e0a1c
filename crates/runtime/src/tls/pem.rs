//! Certificates and keys from PEM, with errors that name the file and its fault.

use std::borrow::Cow;
use std::fmt;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use super::{TlsError, provider};

/// A certificate (or chain, leaf first) and its private key, both in PEM. `Debug` hides the key.
#[derive(Clone, PartialEq, Eq)]
pub struct PemPair {
    /// One or more CERTIFICATE blocks.
    pub cert_pem: String,
    /// One PRIVATE KEY block (PKCS#8 when made by [`pki`](crate::pki)).
    pub key_pem: String,
}

/// Source of PEM text. Displayed as the file's path, the field of a kubeconfig, or the name given to the inline text.
#[derive(Clone, PartialEq, Eq)]
pub enum PemSource {
    /// A file, read again whenever a configuration is built.
    File(PathBuf),
    /// Text embedded in a kubeconfig, read again likewise.
    Embedded {
        /// The kubeconfig.
        kubeconfig: PathBuf,
        /// Name of the field without `-data`.
        field: &'static str,
        /// Reader of the field.
        reader: FieldReader,
    },
    /// Text that does not change.
    Inline {
        /// Name of the text in errors, for example `ConfigMap cluster-info`.
        origin: String,
        /// The text.
        pem: String,
    },
}

/// Reader of a field of a file. All are equal: the file and the field tell sources apart.
#[derive(Clone, Copy)]
pub struct FieldReader(pub fn(&Path, &'static str) -> Result<Vec<u8>, TlsError>);

/// A certificate chain (leaf first) and its private key. Both may be the same file, as `kubelet-client-current.pem` is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PemIdentity {
    /// Source of the CERTIFICATE blocks.
    pub cert: PemSource,
    /// Source of the PRIVATE KEY block.
    pub key: PemSource,
}

/// Maximum size of a PEM file in bytes; a larger file is a mistake, such as a log or a device.
const MAX_PEM_BYTES: u64 = 4 * 1024 * 1024;

/// Checks that the key of `pair` belongs to its certificate.
///
/// # Errors
/// The fault of either, or [`TlsError::KeyMismatch`].
pub fn check_pair(pair: &PemPair) -> Result<(), TlsError> {
    PemIdentity::inline("the given pair", pair).load().map(drop)
}

/// Returns `der` as PEM (RFC 7468): base64 in lines of 64 characters.
pub(crate) fn to_pem(label: &str, der: &[u8]) -> String {
    use base64::Engine as _;
    let base64 = base64::engine::general_purpose::STANDARD.encode(der);
    let mut text = format!("-----BEGIN {label}-----\n");
    let mut rest = base64.as_str();
    while !rest.is_empty() {
        let (line, next) = rest.split_at(rest.len().min(64));
        text.push_str(line);
        text.push('\n');
        rest = next;
    }
    text.push_str(&format!("-----END {label}-----\n"));
    text
}

// === impl PemPair ===

impl fmt::Debug for PemPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PemPair")
            .field("cert_pem", &self.cert_pem)
            .field("key_pem", &"(hidden)")
            .finish()
    }
}

// === impl FieldReader ===

impl PartialEq for FieldReader {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for FieldReader {}

// === impl PemSource ===

impl PemSource {
    /// A source for text in memory; `origin` names it in errors.
    pub fn inline(origin: impl Into<String>, pem: impl Into<String>) -> Self {
        PemSource::Inline {
            origin: origin.into(),
            pem: pem.into(),
        }
    }

    /// The text.
    ///
    /// # Errors
    /// [`TlsError::Read`], or [`TlsError::Pem`] when the file is larger than 4 MiB.
    pub fn read(&self) -> Result<Cow<'_, [u8]>, TlsError> {
        let path = match self {
            PemSource::Inline { pem, .. } => return Ok(Cow::Borrowed(pem.as_bytes())),
            PemSource::Embedded {
                kubeconfig,
                field,
                reader,
            } => return (reader.0)(kubeconfig, field).map(Cow::Owned),
            PemSource::File(path) => path,
        };
        let mut content = Vec::new();
        std::fs::File::open(path)
            .and_then(|file| file.take(MAX_PEM_BYTES + 1).read_to_end(&mut content))
            .map_err(|error| TlsError::Read {
                path: path.clone(),
                error,
            })?;
        if content.len() as u64 > MAX_PEM_BYTES {
            return Err(self.problem(format!("larger than {MAX_PEM_BYTES} bytes, too large for a PEM file")));
        }
        Ok(Cow::Owned(content))
    }

    /// All CERTIFICATE blocks, at least one.
    ///
    /// # Errors
    /// [`TlsError::Pem`] when there is none or the text is broken.
    pub fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let certificates = CertificateDer::pem_slice_iter(&self.read()?).collect::<Result<Vec<_>, _>>();
        match certificates {
            Ok(certificates) if certificates.is_empty() => Err(self.problem("no CERTIFICATE block in it".to_owned())),
            Ok(certificates) => Ok(certificates),
            Err(error) => Err(self.problem(format!("not valid PEM: {error}"))),
        }
    }

    /// The certificates as trust anchors.
    ///
    /// # Errors
    /// As [`PemSource::certificates`]; [`TlsError::Refused`] when rustls cannot use one of them.
    pub fn roots(&self) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates()? {
            roots.add(certificate).map_err(|error| self.refused(error))?;
        }
        Ok(roots)
    }

    fn private_key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        PrivateKeyDer::from_pem_slice(&self.read()?).map_err(|error| match error {
            rustls_pki_types::pem::Error::NoItemsFound => self.problem("no PRIVATE KEY block in it".to_owned()),
            error => self.problem(format!("not valid PEM: {error}")),
        })
    }

    pub(super) fn problem(&self, problem: String) -> TlsError {
        TlsError::Pem {
            origin: self.to_string(),
            problem,
        }
    }

    pub(super) fn refused(&self, error: rustls::Error) -> TlsError {
        TlsError::Refused {
            origin: self.to_string(),
            error,
        }
    }
}

impl fmt::Display for PemSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PemSource::File(path) => path.display().fmt(f),
            PemSource::Embedded { kubeconfig, field, .. } => write!(f, "{field}-data in {}", kubeconfig.display()),
            PemSource::Inline { origin, .. } => f.write_str(origin),
        }
    }
}

impl fmt::Debug for PemSource {
    /// Without the text, which may be a key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PemSource({self})")
    }
}

impl From<PathBuf> for PemSource {
    fn from(path: PathBuf) -> Self {
        PemSource::File(path)
    }
}

// === impl PemIdentity ===

impl PemIdentity {
    /// Certificate and key in two files.
    pub fn files(cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        PemIdentity {
            cert: PemSource::File(cert.into()),
            key: PemSource::File(key.into()),
        }
    }

    /// Certificate and key in the same file.
    pub fn one_file(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        PemIdentity {
            cert: PemSource::File(path.clone()),
            key: PemSource::File(path),
        }
    }

    /// A pair in memory; `origin` names it in errors.
    #[must_use]
    pub fn inline(origin: &str, pair: &PemPair) -> Self {
        PemIdentity {
            cert: PemSource::inline(origin, pair.cert_pem.as_str()),
            key: PemSource::inline(origin, pair.key_pem.as_str()),
        }
    }

    /// Reads both and checks that they match.
    ///
    /// # Errors
    /// Names the file, and its fault.
    pub fn load(&self) -> Result<Arc<CertifiedKey>, TlsError> {
        let chain = self.cert.certificates()?;
        let key = self.key.private_key()?;
        let key = provider()
            .key_provider
            .load_private_key(key)
            .map_err(|error| self.key.refused(error))?;
        let certified = CertifiedKey::new(chain, key);
        match certified.keys_match() {
            // A key that does not reveal its public half is used unchecked.
            Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => Ok(Arc::new(certified)),
            Err(rustls::Error::InconsistentKeys(_)) => Err(TlsError::KeyMismatch {
                cert: self.cert.to_string(),
                key: self.key.to_string(),
            }),
            Err(error) => Err(self.cert.refused(error)),
        }
    }

    /// Reads both as text.
    ///
    /// # Errors
    /// [`TlsError::Read`], or [`TlsError::Pem`] when a file is not UTF-8.
    pub fn read_pair(&self) -> Result<PemPair, TlsError> {
        let text = |source: &PemSource| {
            let bytes = source.read()?.into_owned();
            String::from_utf8(bytes).map_err(|_| source.problem("not text".to_owned()))
        };
        Ok(PemPair {
            cert_pem: text(&self.cert)?,
            key_pem: text(&self.key)?,
        })
    }
}
