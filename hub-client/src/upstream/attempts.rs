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

    /// Begins an attempt, and returns its place in the order of the servers; `None` if there are no more. A connection
    /// that goes away says nothing about its server, so the next attempt has the same place.
    pub(crate) fn begin(&mut self) -> Option<usize> {
        let stale = self.stale.min(STALE_MAX);
        let (place, is_left) = (self.made.saturating_sub(stale), self.made < self.max + stale);
        self.made += usize::from(is_left);
        is_left.then_some(place)
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

    /// Places of the attempts at `servers`, of which the first `stale` meet connections that go away.
    fn places(servers: usize, stale: usize) -> Vec<usize> {
        let mut attempts = Attempts::among(servers);
        let made = (0..).map_while(|number| {
            let place = attempts.begin()?;
            attempts.note(&SendError {
                error: ClientError::Unusable {
                    server: String::new(),
                    why: String::new(),
                },
                is_unprocessed: true,
                is_stale: number < stale,
            });
            Some(place)
        });
        made.collect()
    }

    fn attempts(servers: usize, stale: usize) -> usize {
        places(servers, stale).len()
    }

    #[test]
    fn attempt_after_a_connection_that_goes_away_is_at_the_same_server() {
        assert_eq!(places(3, 2), [0, 0, 0, 1, 2]);
    }

    #[test]
    fn attempts_over_connections_that_go_away_do_not_count_up_to_a_limit() {
        assert_eq!([1, 2, 4].map(|servers| attempts(servers, 0)), [2, 2, 3]);
        assert_eq!([attempts(1, 1), attempts(3, 2)], [3, 5]);
        assert_eq!(attempts(1, usize::MAX), 2 + STALE_MAX);
    }
}
