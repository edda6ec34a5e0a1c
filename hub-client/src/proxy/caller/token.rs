//! The kubelet's token: a file that only root reads, and with `--node-identity=token` the proof that a request is the node's.
//!
//! It means nothing to the cloud and never goes there. It is kept over restarts; a client that follows its tokenFile takes
//! over a new one by itself.

use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};
use yurt_runtime::pki::write_secret;

/// Name of the file below the root folder.
pub const FILE: &str = "kubelet.token";
/// Characters of a token that is kept, at least: 128 bits.
const TOKEN_MIN: usize = 22;
/// Random bytes of a new token.
const RANDOM: usize = 32;

/// The kubelet's token, as something to compare with.
#[derive(Clone)]
pub struct NodeToken {
    key: hmac::Key,
    tag: hmac::Tag,
}

// === impl NodeToken ===

impl NodeToken {
    /// The token in `folder`; a new one where there is none, or one that others than its owner could read or guess.
    ///
    /// # Errors
    /// The file cannot be read or written, or the system has no randomness.
    pub fn open(folder: &Path) -> io::Result<Self> {
        let path = folder.join(FILE);
        match kept(&path) {
            Ok(token) => return Self::new(&token),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                tracing::warn!(path = %path.display(), %error, "The kubelet's token is replaced by a new one");
            }
            Err(error) => return Err(error),
        }
        let mut random = [0; RANDOM];
        SystemRandom::new().fill(&mut random).map_err(no_randomness)?;
        let token = URL_SAFE_NO_PAD.encode(random);
        write_secret(&path, &token)?;
        Self::new(&token)
    }

    /// This very token.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn new(token: &str) -> io::Result<Self> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).map_err(no_randomness)?;
        let tag = hmac::sign(&key, token.as_bytes());
        Ok(Self { key, tag })
    }

    /// Whether `token` is this one, in a time that does not depend on how much of it is right.
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

/// The token in the file; `InvalidData` when it is not worth keeping.
fn kept(path: &Path) -> io::Result<String> {
    let unfit = |why: String| io::Error::new(ErrorKind::InvalidData, why);
    let mode = std::fs::metadata(path)?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(unfit(format!("mode {:o} lets others read or write it", mode & 0o777)));
    }
    let token = std::fs::read_to_string(path)?;
    let token = token.trim();
    if token.len() < TOKEN_MIN || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(unfit(format!(
            "not {TOKEN_MIN} or more printable characters without a space"
        )));
    }
    Ok(token.to_owned())
}

fn no_randomness(_: ring::error::Unspecified) -> io::Error {
    io::Error::other("the system has no randomness")
}

#[cfg(test)]
mod tests {
    use yurt_test_support::TestDir;

    use super::*;

    #[test]
    fn token_is_made_once_and_for_its_owner_alone() {
        let folder = TestDir::new();
        let token = NodeToken::open(folder.path()).unwrap();
        let path = folder.path().join(FILE);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(token.is(&text) && NodeToken::open(folder.path()).unwrap().is(&text));
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
            assert!(!NodeToken::open(folder.path()).unwrap().is(text), "{text:?} {mode:o}");
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        std::fs::write(&path, format!("{long}\n")).unwrap();
        assert!(NodeToken::open(folder.path()).unwrap().is(long), "an operator's own");
        assert!(!format!("{:?}", NodeToken::new(long).unwrap()).contains(long));
    }
}
