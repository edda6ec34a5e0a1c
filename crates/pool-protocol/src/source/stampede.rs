//! Simulates a whole pool that decides by [`choose`]: the number of hubs at the cloud, their requests, and their
//! concurrency.

use super::*;

/// One step of the simulation.
const STEP: Duration = Duration::from_millis(100);
/// Steps within which a complete copy follows its source.
const COPIED: u64 = 10;

/// State of a hub at a step.
#[derive(Clone, Debug)]
struct Hub {
    jitter: Duration,
    leads: bool,
    source: Source,
    complete: bool,
    /// Steps on its present source.
    steps: u64,
}

/// Conditions around the hubs.
#[derive(Clone, Copy)]
struct Weather {
    /// Index of the hub that holds the lease, if any.
    leader: Option<usize>,
    coordinator: bool,
}

/// Load on the cloud.
#[derive(Debug, Default, PartialEq, Eq)]
struct CloudLoad {
    /// Streams that began with a full list.
    lists: usize,
    /// Streams that resumed at a position.
    resumes: usize,
    /// Most streams that began within one second.
    rush: usize,
    /// Start of the first stream that was not a leader's.
    first: Option<Duration>,
}

struct Pool {
    hubs: Vec<Hub>,
    /// True if the coordinator has complete data.
    fed: bool,
    away_since: Option<BootTime>,
}

// === impl Pool ===

impl Pool {
    fn new(members: u32, complete: bool) -> Self {
        let hub = |index: u32| Hub {
            // Spread as random draws are.
            jitter: jitter(members, (f64::from(index) * 0.618_034).fract()),
            leads: false,
            source: Source::None,
            complete,
            steps: 0,
        };
        Self {
            hubs: (0..members).map(hub).collect(),
            fed: complete,
            away_since: None,
        }
    }

    /// Simulates `lasts` under `weather`.
    fn live(&mut self, lasts: Duration, weather: impl Fn(Duration) -> Weather) -> CloudLoad {
        let start = BootTime::from_boot(Duration::from_secs(100));
        let (mut seen, mut begun) = (CloudLoad::default(), Vec::new());
        let mut elapsed = Duration::ZERO;
        while elapsed < lasts {
            let Weather { leader, coordinator } = weather(elapsed);
            let now = start + elapsed;
            self.away_since = if coordinator {
                None
            } else {
                self.away_since.or(Some(now))
            };
            let state = match self.away_since {
                None => CoordinatorState::Reachable,
                Some(since) => CoordinatorState::Unreachable { since },
            };
            let mut feeds = false;
            for (index, hub) in self.hubs.iter_mut().enumerate() {
                hub.leads = leader == Some(index);
                let (source, _) = choose(Situation {
                    leading: hub.leads,
                    coordinator: state,
                    cloud_reachable: true,
                    jitter: hub.jitter,
                    now,
                });
                if std::mem::replace(&mut hub.source, source) != source {
                    hub.steps = 0;
                    if source == Source::Cloud {
                        begun.push(elapsed);
                        *(if hub.complete {
                            &mut seen.resumes
                        } else {
                            &mut seen.lists
                        }) += 1;
                        if !hub.leads {
                            seen.first.get_or_insert(elapsed);
                        }
                    }
                }
                hub.steps += 1;
                let has_data = source == Source::Cloud || (source == Source::Coordinator && coordinator && self.fed);
                hub.complete |= has_data && hub.steps >= COPIED;
                feeds |= hub.leads && hub.complete && coordinator;
            }
            self.fed |= feeds;
            elapsed += STEP;
        }
        let within = |from: &Duration| {
            let until = *from + Duration::from_secs(1);
            begun.iter().filter(|at| **at >= *from && **at < until).count()
        };
        seen.rush = begun.iter().map(within).max().unwrap_or(0);
        seen
    }
}

/// Twice the starts per second of an even spread, and a few more.
fn rush_of_even_spread(members: usize) -> usize {
    let spread = (JITTER_PER_MEMBER.1 - JITTER_PER_MEMBER.0).as_secs_f64() * members as f64;
    (members as f64 / spread.max(1.0) * 2.0) as usize + 4
}

const SIZES: [u32; 3] = [3, 100, 1000];

#[test]
fn cold_start_lists_the_cloud_once_however_long_nobody_leads() {
    for members in SIZES {
        let mut pool = Pool::new(members, false);
        let seen = pool.live(Duration::from_secs(180), |at| Weather {
            leader: (at > Duration::from_secs(120)).then_some(0),
            coordinator: true,
        });
        assert_eq!((seen.lists, seen.resumes), (1, 0), "{members} hubs");
        assert!(pool.hubs.iter().all(|hub| hub.complete));
    }
}

#[test]
fn leader_crash_costs_one_resume_and_no_list() {
    for members in SIZES {
        let mut pool = Pool::new(members, true);
        let seen = pool.live(Duration::from_secs(60), |at| Weather {
            leader: match at.as_secs() {
                0..20 => Some(0),
                20..35 => None,
                _ => Some(1),
            },
            coordinator: true,
        });
        assert_eq!(
            (seen.lists, seen.resumes),
            (0, 2),
            "{members} hubs: both leaders, no other hub"
        );
    }
}

#[test]
fn coordinator_that_stays_away_sends_the_pool_to_the_cloud_bit_by_bit_and_without_lists() {
    for members in SIZES {
        let mut pool = Pool::new(members, true);
        // The leader steps down when its renew deadline has passed.
        let seen = pool.live(Duration::from_secs(200), |at| Weather {
            leader: (at < Duration::from_secs(30)).then_some(0),
            coordinator: at < Duration::from_secs(20),
        });
        let members = members as usize;
        // The leader has followed the cloud before; a small pool goes there before it steps down.
        assert!(
            seen.lists == 0 && (members..=members + 1).contains(&seen.resumes),
            "{seen:?}"
        );
        assert!(
            seen.rush <= rush_of_even_spread(members),
            "{} of {members} within a second",
            seen.rush
        );
        let first = seen.first.unwrap() - Duration::from_secs(20);
        assert!(
            first >= PATIENCE + JITTER_PER_MEMBER.0 * u32::try_from(members).unwrap(),
            "{first:?}"
        );
    }
}

#[test]
fn hubs_without_data_list_the_cloud_one_after_the_other_when_there_is_no_coordinator() {
    for members in SIZES {
        let mut pool = Pool::new(members, false);
        let seen = pool.live(Duration::from_secs(200), |_| Weather {
            leader: None,
            coordinator: false,
        });
        let members = members as usize;
        assert_eq!((seen.lists, seen.resumes), (members, 0));
        assert!(
            seen.rush <= rush_of_even_spread(members),
            "{} of {members} within a second",
            seen.rush
        );
    }
}

#[test]
fn short_absences_of_the_coordinator_send_nobody_to_the_cloud() {
    for members in SIZES {
        let mut pool = Pool::new(members, true);
        let seen = pool.live(Duration::from_secs(120), |at| Weather {
            leader: Some(0),
            coordinator: at.as_secs() % 20 >= 4,
        });
        assert_eq!(
            (seen.lists, seen.resumes),
            (0, 1),
            "{members} hubs: the leader's own stream"
        );
    }
}

#[test]
fn copies_that_the_coordinator_cannot_lead_on_come_to_the_cloud_one_after_the_other() {
    for members in SIZES {
        let pool = Pool::new(members, true);
        let pauses: Vec<_> = pool
            .hubs
            .iter()
            .filter_map(|hub| fallback_pause(Some(0), hub.jitter))
            .collect();
        let members = members as usize;
        assert_eq!(pauses.len(), members);
        let within = |from: &Duration| {
            let second = *from..*from + Duration::from_secs(1);
            pauses.iter().filter(|&at| second.contains(at)).count()
        };
        let rush = pauses.iter().map(within).max().unwrap();
        assert!(
            rush <= rush_of_even_spread(members),
            "{rush} of {members} within a second"
        );
    }
}
