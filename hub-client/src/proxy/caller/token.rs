//! Token of the kubelet: a file readable by root only. With `--node-identity=token` it proves that a request is the
//! node's.
//!
//! The token is unknown to the cloud and never sent there. It survives restarts; a client that follows its tokenFile
//! picks up a new one by itself.

use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};

use crate::unwritten::{Readers, Unwritten};

/// Name of the file below the root folder.
pub const FILE: &str = "kubelet.token";
/// Minimum length of a token that is kept, characters: 128 bits.
const TOKEN_MIN: usize = 22;
/// Number of random bytes of a new token.
const RANDOM: usize = 32;

/// Token of the kubelet, stored only for comparison.
#[derive(Clone)]
pub struct NodeToken {
    key: hmac::Key,
    tag: hmac::Tag,
}

// === impl NodeToken ===

impl NodeToken {
    /// Returns the token in `folder`. Creates a new one if there is none, or if users other than the owner could read
    /// or guess it. On a disk that takes nothing the new one is in `unwritten`; no client knows it until it is stored.
    ///
    /// # Errors
    /// The file cannot be read or written, or the system has no source of randomness.
    pub(crate) fn open(folder: &Path, unwritten: &mut Unwritten) -> io::Result<Self> {
        let path = folder.join(FILE);
        match kept(&path) {
            Ok(token) => return Self::new(&token),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                tracing::warn!(path = %path.display(), %error, "Replacing unusable kubelet token");
            }
            Err(error) => return Err(error),
        }
        let mut random = [0; RANDOM];
        SystemRandom::new().fill(&mut random).map_err(no_randomness)?;
        let token = URL_SAFE_NO_PAD.encode(random);
        unwritten.write(folder, FILE, &token, Readers::Owner)?;
        Self::new(&token)
    }

    /// Creates the comparison for this token.
    ///
    /// # Errors
    /// The system has no source of randomness.
    pub fn new(token: &str) -> io::Result<Self> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).map_err(no_randomness)?;
        let tag = hmac::sign(&key, token.as_bytes());
        Ok(Self { key, tag })
    }

    /// True if `token` is this one. The time does not depend on how many of its characters are right.
    #[must_use]
    pub fn is(&self, token: &str) -> bool {
        hmac::verify(&self.key, token.as_bytes(), self.tag.as_ref()).is_ok()
    }
}

impl std::fmt::Debug for NodeToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NodeToken")
    }
}

/// Returns the token in the file; `InvalidData` if the token must be replaced.
fn kept(path: &Path) -> io::Result<String> {
    let unfit = |why: String| io::Error::new(ErrorKind::InvalidData, why);
    let mode = std::fs::metadata(path)?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(unfit(format!(
            "mode {:o} lets other users read or write it",
            mode & 0o777
        )));
    }
    let token = std::fs::read_to_string(path)?;
    let token = token.trim();
    if token.len() < TOKEN_MIN || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(unfit(format!(
            "must have at least {TOKEN_MIN} printable characters and no space"
        )));
    }
    Ok(token.to_owned())
}

fn no_randomness(_: ring::error::Unspecified) -> io::Error {
    io::Error::other("the system has no source of randomness")
}

#[cfg(test)]
mod tests {
    use yurt_test_support::TestDir;

    use super::*;

    fn open(folder: &Path) -> NodeToken {
        NodeToken::open(folder, &mut Unwritten::default()).unwrap()
    }

    #[test]
    fn token_is_made_once_and_for_its_owner_alone() {
        let folder = TestDir::new();
        let token = open(folder.path());
        let path = folder.path().join(FILE);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(token.is(&text) && open(folder.path()).is(&text));
        for other in ["", &text[1..], &format!("{text}x"), &text.to_uppercase()] {
            assert!(!token.is(other), "{other:?}");
        }
    }

    #[test]
    fn token_that_others_could_know_is_replaced() {
        let folder = TestDir::new();
        let path = folder.path().join(FILE);
        let long = "a-token-of-somebody-who-wrote-it-down";
        for (text, mode) in [(long, 0o640), (long, 0o602), ("short", 0o600), ("", 0o600)] {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert!(!open(folder.path()).is(text), "{text:?} {mode:o}");
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        std::fs::write(&path, format!("{long}\n")).unwrap();
        assert!(open(folder.path()).is(long), "an operator's own");
        assert!(!format!("{:?}", NodeToken::new(long).unwrap()).contains(long));
    }
}
