//! Waits for a condition, with a time limit, and reports the last reason why it did not hold.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result};
use yurt_workspace::Stopwatch;

/// Interval between checks of the condition.
const PERIOD: Duration = Duration::from_millis(50);

/// A permanent error: [`wait_for`] gives up immediately.
#[derive(Debug)]
pub struct PermanentError(pub String);

/// Calls `attempt` until it succeeds, for at most `limit`. Returns its result and the time it took.
///
/// # Errors
/// The last error of `attempt`, as the reason why `what` did not happen; immediately if it is [`PermanentError`].
pub async fn wait_for<T>(
    limit: Duration,
    what: &str,
    mut attempt: impl AsyncFnMut() -> Result<T>,
) -> Result<(T, Duration)> {
    let watch = Stopwatch::start();
    loop {
        // The attempt itself may hang, so the limit is around it too.
        let left = limit.saturating_sub(watch.elapsed()).max(PERIOD);
        let outcome = tokio::time::timeout(left, attempt())
            .await
            .context("still waiting for an answer");
        match outcome.flatten() {
            Ok(value) => return Ok((value, watch.elapsed())),
            Err(error) if error.is::<PermanentError>() => return Err(error.context(format!("{what}: it never will"))),
            Err(error) if watch.elapsed() >= limit => {
                return Err(error.context(format!("{what}: not within {:.0} s", limit.as_secs_f64())));
            }
            Err(_) => tokio::time::sleep(PERIOD).await,
        }
    }
}

// === impl PermanentError ===

impl fmt::Display for PermanentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for PermanentError {}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[tokio::test]
    async fn it_returns_the_first_success() {
        let mut calls = 0;
        let attempt = async || {
            calls += 1;
            if calls < 3 { bail!("not yet") } else { Ok(calls) }
        };
        assert_eq!(
            wait_for(Duration::from_secs(5), "three calls", attempt)
                .await
                .expect("it happens")
                .0,
            3
        );
    }

    #[tokio::test]
    async fn it_says_what_did_not_happen_and_why() {
        let limit = Duration::from_millis(100);
        let error = wait_for(limit, "rain", async || -> Result<()> { bail!("the sky is blue") }).await;
        assert_eq!(
            format!("{:#}", error.expect_err("no rain")),
            "rain: not within 0 s: the sky is blue"
        );
        let hang = wait_for(limit, "an answer", async || -> Result<()> {
            std::future::pending().await
        })
        .await;
        assert!(format!("{:#}", hang.expect_err("a hang")).contains("still waiting"));
    }

    #[tokio::test]
    async fn a_hopeless_error_ends_the_wait() {
        let watch = Stopwatch::start();
        let attempt = async || -> Result<()> { Err(PermanentError("it has exited".to_owned()).into()) };
        assert!(wait_for(Duration::from_secs(60), "ready", attempt).await.is_err());
        assert!(watch.elapsed() < Duration::from_secs(30));
    }
}
