//! Bearer token that is rotated in its file, as the kubelet does with a bound token every hour.

use std::io;
use std::sync::Arc;

use tokio::sync::Notify;
use yurt_runtime::http::client::HttpClient;
use yurt_runtime::kubeconfig::Token;
use yurt_runtime::tls::POLL_INTERVAL;
use yurt_runtime::{TaskGroup, files};

/// Source of a token, and its value when last read.
pub(super) struct TokenWatch {
    source: Token,
    token: String,
}

/// Handle for rereading a token.
#[derive(Debug)]
pub(super) struct RotatedToken(Arc<Notify>);

// === impl RotatedToken ===

impl RotatedToken {
    /// Rereads the token immediately.
    pub(super) fn read_again(&self) {
        self.0.notify_one();
    }
}

// === impl TokenWatch ===

impl TokenWatch {
    /// Reads the token for the first time.
    ///
    /// # Errors
    /// Its file cannot be read, or is empty.
    pub(super) fn new(source: Token) -> io::Result<Self> {
        let token = source.read()?;
        Ok(Self { source, token })
    }

    /// The token as last read.
    pub(super) fn token(&self) -> &str {
        &self.token
    }

    /// Rereads the token every [`POLL_INTERVAL`] and on demand, and sends a new one to all `clients`.
    pub(super) fn start(mut self, tasks: &TaskGroup, clients: Vec<HttpClient>) -> RotatedToken {
        let wake = Arc::new(Notify::new());
        let handle = RotatedToken(wake.clone());
        if matches!(self.source, Token::Inline(_)) {
            return handle;
        }
        let token = tasks.token();
        tasks.spawn_critical("reload-token", async move {
            let next = async |this: &mut Self| {
                let _ = tokio::time::timeout(POLL_INTERVAL, wake.notified()).await;
                this.take_change().await
            };
            while let Some(taken) = token.run_until_cancelled(next(&mut self)).await {
                match taken {
                    Ok(false) => {}
                    Ok(true) => {
                        tracing::info!(source = ?self.source, "Bearer token reloaded");
                        clients
                            .iter()
                            .for_each(|client| client.set_bearer_token(Some(&self.token)));
                    }
                    Err(error) => tracing::warn!(%error, "Failed to reload the bearer token; keeping the previous one"),
                }
            }
        });
        handle
    }

    /// Returns true if the file has another token than before.
    async fn take_change(&mut self) -> io::Result<bool> {
        let source = self.source.clone();
        let now = files::access(move || source.read()).await?;
        Ok(std::mem::replace(&mut self.token, now.clone()) != now)
    }
}

#[cfg(test)]
mod tests {
    use yurt_test_support::{TestDir, hang, runs_while_reading};

    use super::*;

    #[tokio::test]
    async fn another_token_in_the_file_is_a_change_once_and_an_empty_file_is_none() {
        let folder = TestDir::new();
        let mut watch = TokenWatch::new(Token::File(folder.write("token", "one\n"))).unwrap();
        assert_eq!(watch.token(), "one");
        assert!(!watch.take_change().await.unwrap());
        folder.write("token", "two\n");
        assert!(watch.take_change().await.unwrap() && !watch.take_change().await.unwrap());
        assert_eq!(watch.token(), "two");
        folder.write("token", "");
        assert!(watch.take_change().await.is_err());
        assert_eq!(watch.token(), "two");
    }

    #[test]
    fn token_file_that_hangs_holds_no_thread_of_the_runtime() {
        let folder = TestDir::new();
        let path = folder.write("token", "one");
        let watch = TokenWatch::new(Token::File(path.clone())).unwrap();
        hang(&path);
        runs_while_reading(&path, async move || {
            let tasks = TaskGroup::new();
            (watch.start(&tasks, Vec::new()), tasks)
        });
    }
}
