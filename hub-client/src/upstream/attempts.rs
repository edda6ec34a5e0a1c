//! Number of attempts to send one request over lanes. Pure.

use yurt_runtime::http::client::lane::SendError;

/// Maximum number of attempts, without those over connections that go away.
const ATTEMPTS: usize = 3;
/// Maximum number of attempts over connections that go away: more than a lane has, as a rule.
const STALE_MAX: usize = 8;

/// Attempts of one request.
#[derive(Debug)]
pub(crate) struct Attempts {
    made: usize,
    /// Attempts that met a connection that goes away: they do not count.
    stale: usize,
    max: usize,
}

// === impl Attempts ===

impl Attempts {
    /// Each of `servers` once, up to [`ATTEMPTS`], and a single one twice.
    pub(crate) fn among(servers: usize) -> Self {
        Self {
            made: 0,
            stale: 0,
            max: servers.clamp(2, ATTEMPTS),
        }
    }

    /// Begins an attempt, and returns its index; `None` if there are no more.
    pub(crate) fn begin(&mut self) -> Option<usize> {
        let index = self.made;
        let is_left = index < self.max + self.stale.min(STALE_MAX);
        self.made += usize::from(is_left);
        is_left.then_some(index)
    }

    /// Notes the failure of the last attempt.
    pub(crate) fn note(&mut self, failed: &SendError) {
        self.stale += usize::from(failed.is_stale);
    }
}

#[cfg(test)]
mod tests {
    use yurt_runtime::http::client::ClientError;

    use super::*;

    /// Number of attempts at `servers`, of which the first `stale` meet connections that go away.
    fn attempts(servers: usize, stale: usize) -> usize {
        let mut attempts = Attempts::among(servers);
        let made = std::iter::from_fn(|| {
            let index = attempts.begin()?;
            attempts.note(&SendError {
                error: ClientError::Unusable {
                    server: String::new(),
                    why: String::new(),
                },
                is_unprocessed: true,
                is_stale: index < stale,
            });
            Some(index)
        });
        made.count()
    }

    #[test]
    fn attempts_over_connections_that_go_away_do_not_count_up_to_a_limit() {
        assert_eq!([1, 2, 4].map(|servers| attempts(servers, 0)), [2, 2, 3]);
        assert_eq!([attempts(1, 1), attempts(3, 2)], [3, 5]);
        assert_eq!(attempts(1, usize::MAX), 2 + STALE_MAX);
    }
}
