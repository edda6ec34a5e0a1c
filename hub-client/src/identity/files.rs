//! Files of the node's certificate below the root directory, with upstream's names.

use std::io;
use std::path::{Path, PathBuf};

use yurt_runtime::kubeconfig::{self, Credential, Kubeconfig};
use yurt_runtime::pki::{PkiError, RequestKey, make_folder, write_public, write_secret};
use yurt_runtime::tls::{CertificateInfo, PemIdentity, PemSource, TlsError, missing_in};

use super::discovery::JoinToken;
use crate::FOLDER_MODE;
use crate::config::OWN_KUBECONFIG;
use crate::replicas::disk;

/// Users in the kubeconfigs.
const BOOTSTRAP_USER: &str = "token-bootstrap-client";
const USER: &str = "default-auth";

/// Paths of the files.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    /// Certificate and key.
    pub(crate) pair: PathBuf,
    /// Key of the pending request.
    pub(crate) pending: PathBuf,
    /// The cluster's CA.
    pub(crate) ca: PathBuf,
    /// Kubeconfig with the certificate.
    pub(crate) kubeconfig: PathBuf,
    /// Kubeconfig with the last join token.
    pub(crate) bootstrap: PathBuf,
}

/// A file cannot be used; the message names it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    /// Reading or writing failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A certificate is not usable.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A key is not usable.
    #[error(transparent)]
    Key(#[from] PkiError),
    /// The issued certificate is not the requested one.
    #[error("the issued certificate {0}")]
    Foreign(String),
}

// === impl FileError ===

impl FileError {
    /// True if the disk takes nothing new.
    pub(crate) fn takes_nothing(&self) -> bool {
        matches!(self, Self::Io(error) if disk::takes_nothing(error))
    }
}

// === impl Files ===

impl Files {
    pub(crate) fn new(root: &Path) -> Self {
        Self {
            pair: root.join("pki/yurthub-current.pem"),
            pending: root.join("pki/yurthub-pending.key"),
            ca: root.join("pki/ca.crt"),
            kubeconfig: root.join(OWN_KUBECONFIG),
            bootstrap: root.join("bootstrap-hub.conf"),
        }
    }

    /// The present certificate; `None` if there is no file.
    ///
    /// # Errors
    /// The file is not a certificate with its key.
    pub(crate) fn certificate(&self) -> Result<Option<CertificateInfo>, FileError> {
        if !self.pair.exists() {
            return Ok(None);
        }
        PemIdentity::one_file(&self.pair).load()?;
        Ok(Some(CertificateInfo::leaf(&PemSource::from(self.pair.clone()))?))
    }

    /// Key of the pending request: the stored one, so that a restart finds its request, or a new one.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub(crate) fn pending_key(&self) -> Result<RequestKey, FileError> {
        let stored = std::fs::read_to_string(&self.pending);
        let stored = stored.ok().and_then(|pem| RequestKey::load(&pem).ok());
        let own = self.certificate().ok().flatten();
        // The key of the present certificate is left over from a stop during the installation.
        let is_used = |key: &RequestKey| own.as_ref().is_some_and(|own| own.public_key == key.public_key());
        if let Some(key) = stored.filter(|key| !is_used(key)) {
            return Ok(key);
        }
        let key = RequestKey::generate()?;
        self.make_folder()?;
        write_secret(&self.pending, key.pem())?;
        Ok(key)
    }

    /// Stores an issued certificate with its key, after checking that it is the requested one.
    ///
    /// # Errors
    /// The certificate is of another key or user, or a file cannot be written.
    pub(crate) fn install(&self, issued: &str, key: &RequestKey, user: &str) -> Result<CertificateInfo, FileError> {
        let info = CertificateInfo::leaf(&PemSource::inline("status.certificate", issued))?;
        if info.public_key != key.public_key() {
            return Err(FileError::Foreign("is for another key".to_owned()));
        }
        if info.identity.common_name != user {
            let name = &info.identity.common_name;
            return Err(FileError::Foreign(format!("is for user {name:?} instead of {user}")));
        }
        let end = if issued.ends_with('\n') { "" } else { "\n" };
        write_secret(&self.pair, format!("{issued}{end}{}", key.pem()))?;
        match std::fs::remove_file(&self.pending) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(info),
        }
    }

    /// Stores the cluster's CA. A bundle that is stored already keeps its certificates, because it may be newer than
    /// the credential of a join, and gets those that it lacks.
    ///
    /// # Errors
    /// The authorities cannot be read, or the file cannot be written.
    pub(crate) fn store_ca(&self, ca: &PemSource) -> Result<(), FileError> {
        let stored = PemSource::from(self.ca.clone());
        let bundle = match stored.certificates() {
            Ok(_) => {
                let missing = missing_in(&stored, ca)?;
                if missing.is_empty() {
                    return Ok(());
                }
                let text = String::from_utf8_lossy(&stored.read()?).trim_end().to_owned();
                format!("{text}\n{missing}").into_bytes()
            }
            Err(TlsError::Read { error, .. }) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            // There is none, or one that no connection can be made with.
            Err(_) => ca.read()?.into_owned(),
        };
        self.make_folder()?;
        Ok(write_public(&self.ca, bundle)?)
    }

    /// Writes the kubeconfig with the certificate.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn write_kubeconfig(&self, server: &str) -> Result<(), FileError> {
        let credential = Credential::File(USER, &self.pair);
        let ca = PemSource::from(self.ca.clone());
        Ok(kubeconfig::write_client(&self.kubeconfig, server, &ca, credential)?)
    }

    /// Writes the kubeconfig with a join token; `ca` is embedded.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn write_bootstrap(&self, server: &str, ca: &str, token: &JoinToken) -> Result<(), FileError> {
        let bearer = token.bearer();
        let credential = Credential::Token(BOOTSTRAP_USER, &bearer);
        let ca = PemSource::inline("the cluster's CA", ca);
        Ok(kubeconfig::write_client(&self.bootstrap, server, &ca, credential)?)
    }

    /// The join token that [`Self::write_bootstrap`] stored; `None` without one.
    pub(crate) fn stored_token(&self) -> Option<String> {
        let kubeconfig = Kubeconfig::load(&self.bootstrap).ok()?;
        kubeconfig.token?.read().ok()
    }

    fn make_folder(&self) -> io::Result<()> {
        self.pair
            .parent()
            .map_or(Ok(()), |folder| make_folder(folder, FOLDER_MODE))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::Duration;

    use yurt_test_support::{TestDir, TestPki};

    use super::*;

    const USER: &str = "system:node:n1";
    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn issue(pki: &TestPki, key: &RequestKey, user: &str) -> String {
        let request = key.request(user, &["system:nodes"], &[] as &[&str]).unwrap();
        pki.sign(&request, user, &["system:nodes"], DAY)
    }

    #[test]
    fn pending_key_survives_a_restart_and_ends_with_its_certificate() {
        let (folder, pki) = (TestDir::new(), TestPki::new());
        let files = Files::new(folder.path());
        let key = files.pending_key().unwrap();
        assert_eq!(files.pending_key().unwrap().public_key(), key.public_key());
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&files.pending), 0o600);
        let left_over = std::fs::read(&files.pending).unwrap();
        files.install(&issue(&pki, &key, USER), &key, USER).unwrap();
        assert_eq!(mode(&files.pair), 0o600);
        assert!(!files.pending.exists());
        assert_eq!(files.certificate().unwrap().unwrap().public_key, key.public_key());
        // As after a stop between the two steps of the installation.
        std::fs::write(&files.pending, left_over).unwrap();
        assert_ne!(files.pending_key().unwrap().public_key(), key.public_key());
    }

    #[test]
    fn bundle_gets_the_authority_of_another_join_and_keeps_its_own() {
        let (folder, [old, new]) = (TestDir::new(), [TestPki::new(), TestPki::new()]);
        let files = Files::new(folder.path());
        let store = |pem: &str| {
            files.store_ca(&PemSource::inline("credential", pem)).unwrap();
            std::fs::read_to_string(&files.ca).unwrap()
        };
        assert_eq!(store(old.ca_pem()), old.ca_pem());
        // The administrator of a cluster that changes its CA.
        let bundle = format!("# both\n{}{}", new.ca_pem(), old.ca_pem().trim_end());
        std::fs::write(&files.ca, &bundle).unwrap();
        assert_eq!(store(old.ca_pem()), bundle, "the credential is older");
        std::fs::write(&files.ca, new.ca_pem().trim_end()).unwrap();
        assert_eq!(store(old.ca_pem()), format!("{}{}", new.ca_pem(), old.ca_pem()));
        std::fs::write(&files.ca, "damaged").unwrap();
        assert_eq!(store(old.ca_pem()), old.ca_pem());
    }

    #[test]
    fn certificate_of_another_key_or_user_replaces_nothing() {
        let (folder, pki) = (TestDir::new(), TestPki::new());
        let files = Files::new(folder.path());
        let key = files.pending_key().unwrap();
        let other = RequestKey::generate().unwrap();
        for (issued, why) in [
            (issue(&pki, &other, USER), "another key"),
            (issue(&pki, &key, "system:node:n2"), "system:node:n2"),
        ] {
            let error = files.install(&issued, &key, USER).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
        }
        assert!(files.certificate().unwrap().is_none() && files.pending.exists());
    }
}
