//! Observes the hub once a second: dates its conditions, and writes Events about changes to the pool.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use yurt_pool_protocol::names::{ELECTION_LEASE, ELECTION_NAMESPACE};
use yurt_pool_protocol::source::Source;

use super::Report;
use super::events::{About, Recorder};

/// Interval between observations. A source counts as changed when two consecutive observations agree.
const EVERY: Duration = Duration::from_secs(1);

/// Result of an observation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Look {
    /// Identity of this hub while it leads.
    pub(super) leads_as: Option<String>,
    /// Number of times this hub became leader.
    pub(super) elections_won: u64,
    /// Source of all pool-scope collections; `None` while they differ.
    pub(super) source: Option<Source>,
    /// Highest generation of the pool-scope collections; `None` while one is incomplete.
    pub(super) generation: Option<u64>,
    /// Number of forgeries, and a message about the last of them.
    pub(super) forged: (u64, String),
    /// Message about entries of the hub's ConfigMap that are not applied.
    pub(super) config_faults: Option<String>,
}

/// State reported last.
#[derive(Debug, Default)]
struct LastReported {
    leads_as: Option<String>,
    elections_won: u64,
    source: Option<Source>,
    /// Source in the last observation.
    last_source: Option<Source>,
    generation: Option<u64>,
    forgeries: u64,
    config_faults: Option<String>,
}

/// An event to write: object, whether it is a warning, reason, and message.
type News = (What, bool, &'static str, String);

/// Object of the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Election,
    Node,
}

/// Runs until `token` is cancelled.
pub(super) async fn run(report: Arc<Report>, recorder: Recorder, token: CancellationToken) {
    let mut told = LastReported::default();
    while token.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_some() {
        report.conditions();
        for (what, warning, reason, message) in told.look(report.look()) {
            let about = match what {
                What::Election => About::Lease(ELECTION_NAMESPACE.to_owned(), ELECTION_LEASE.to_owned()),
                What::Node => About::Node(report.node.clone()),
            };
            recorder.note(about, warning, reason, message);
        }
    }
}

// === impl LastReported ===

impl LastReported {
    fn look(&mut self, look: Look) -> Vec<News> {
        let mut news = Vec::new();
        let election = |text: String| (What::Election, false, "LeaderElection", text);
        let elected = look.elections_won != self.elections_won;
        if let Some(before) = self.leads_as.take().filter(|_| elected || look.leads_as.is_none()) {
            news.push(election(format!("{before} stopped leading")));
        }
        if let Some(identity) = look.leads_as.as_ref().filter(|_| elected) {
            news.push(election(format!("{identity} became leader")));
        }
        (self.leads_as, self.elections_won) = (look.leads_as, look.elections_won);
        if let Some(generation) = look.generation {
            let before = self.generation.replace(generation);
            if before.is_some_and(|before| before != generation) {
                let message = format!(
                    "The cloud returned with another history: pool data has generation {generation}, clients start over"
                );
                news.push((What::Node, true, "PoolDataGeneration", message));
            }
        }
        let (forgeries, message) = look.forged;
        if forgeries != self.forgeries {
            self.forgeries = forgeries;
            news.push((What::Node, true, "PoolDataForged", message));
        }
        if look.config_faults != self.config_faults {
            self.config_faults.clone_from(&look.config_faults);
            let message = look.config_faults.clone();
            news.extend(message.map(|message| (What::Node, true, "FilterConfigInvalid", message)));
        }
        let settled = look.source.filter(|_| look.source == self.last_source);
        self.last_source = look.source;
        let is_new = settled.is_some() && settled != self.source;
        if let Some(source) = settled.filter(|_| is_new) {
            // The first source after the start is not a change.
            if self.source.replace(source).is_some() {
                news.push(of_source(source));
            }
        }
        news
    }
}

fn of_source(source: Source) -> News {
    let message = match source {
        Source::None => "Pool data has no source; existing data is served".to_owned(),
        other => format!("Pool data comes from the {}", other.as_str()),
    };
    (What::Node, source == Source::None, "PoolDataSource", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(leads_as: Option<&str>, elections_won: u64, source: Option<Source>) -> Look {
        Look {
            leads_as: leads_as.map(str::to_owned),
            elections_won,
            source,
            generation: None,
            forged: (0, String::new()),
            config_faults: None,
        }
    }

    #[test]
    fn each_forgery_is_told_once() {
        let mut told = LastReported::default();
        let one = || Look {
            forged: (1, "services x/web is forged".to_owned()),
            ..look(None, 0, None)
        };
        let news = told.look(one());
        assert_eq!(news.len(), 1);
        assert_eq!(
            (news[0].1, news[0].2, news[0].3.as_str()),
            (true, "PoolDataForged", "services x/web is forged")
        );
        assert!(told.look(one()).is_empty());
    }

    #[test]
    fn entries_that_are_not_applied_are_told_once() {
        let mut told = LastReported::default();
        let mut see = |faults: Option<&str>| {
            let look = Look {
                config_faults: faults.map(str::to_owned),
                ..look(None, 0, None)
            };
            messages(&mut told, look)
        };
        assert_eq!(see(None), [""; 0]);
        assert_eq!(see(Some("a")), ["a"]);
        assert_eq!(see(Some("a")), [""; 0]);
        assert_eq!(see(Some("b")), ["b"]);
        assert_eq!(see(None), [""; 0]);
        assert_eq!(see(Some("b")), ["b"]);
    }

    fn messages(told: &mut LastReported, look: Look) -> Vec<String> {
        told.look(look).into_iter().map(|(.., message)| message).collect()
    }

    #[test]
    fn leading_is_told_at_both_ends() {
        let mut told = LastReported::default();
        assert_eq!(messages(&mut told, look(None, 0, None)), [""; 0]);
        assert_eq!(messages(&mut told, look(Some("n1_a"), 1, None)), ["n1_a became leader"]);
        assert_eq!(messages(&mut told, look(Some("n1_a"), 1, None)), [""; 0]);
        let again = messages(&mut told, look(Some("n1_a"), 2, None));
        assert_eq!(again, ["n1_a stopped leading", "n1_a became leader"]);
        assert_eq!(messages(&mut told, look(None, 2, None)), ["n1_a stopped leading"]);
        assert_eq!(messages(&mut told, look(None, 2, None)), [""; 0]);
    }

    #[test]
    fn a_new_generation_is_told_but_not_the_first_one() {
        let mut told = LastReported::default();
        let mut see = |generation| {
            let look = Look {
                generation,
                ..look(None, 0, None)
            };
            told.look(look).len()
        };
        assert_eq!(
            [None, Some(0), Some(0), None, Some(7), Some(7)].map(&mut see),
            [0, 0, 0, 0, 1, 0]
        );
    }

    #[test]
    fn a_source_is_told_when_it_has_settled() {
        let mut told = LastReported::default();
        let mut see = |source| messages(&mut told, look(None, 0, source));
        let (cloud, pool) = (Some(Source::Cloud), Some(Source::Coordinator));
        for source in [pool, pool, cloud, pool, None, pool, pool] {
            assert_eq!(see(source), [""; 0], "a start, and a moment elsewhere");
        }
        assert_eq!(see(cloud), [""; 0]);
        assert_eq!(see(cloud), ["Pool data comes from the cloud"]);
        assert_eq!(see(cloud), [""; 0]);
        see(Some(Source::None));
        assert_eq!(
            see(Some(Source::None)),
            ["Pool data has no source; existing data is served"]
        );
        see(pool);
        assert_eq!(see(pool), ["Pool data comes from the coordinator"]);
    }
}
