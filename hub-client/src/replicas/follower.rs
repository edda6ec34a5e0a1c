//! Keeps one stream per replica open and moves it between sources make-before-break: the old stream continues until the
//! new one has confirmed the replica's position. Both may deliver events at the same time; those that `C` already
//! covers are ignored. [`cloud_fallback`](yurt_pool_protocol::cloud_fallback) decides what to do when a source cannot
//! resume.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use yurt_collection::Collection;
use yurt_pool_protocol::cloud_fallback::{Begin, CloudFallback, Wanted};
use yurt_pool_protocol::members;
use yurt_pool_protocol::source::Source;
use yurt_runtime::{Clock, TaskGroup};
use yurt_storage::Replica;

use super::PoolData;
use super::reflector::{Reflector, StreamEnd};
use crate::health::CloudReach;
use crate::upstream::Upstreams;

/// First pause after a failure.
const BACKOFF_MIN: Duration = Duration::from_millis(200);
/// Longest pause before a replica that fell back to the cloud tries the coordinator again.
const FALLBACK_PAUSE_MAX: Duration = Duration::from_secs(2);
/// Longest pause after failures.
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// Longest pause after streams that ended early. A link that flaps ends them, too.
const REOPEN_MAX: Duration = Duration::from_secs(1);
/// Number of streams in a row that may end early before the pauses grow.
const EARLY_FREE: u32 = 2;
/// Time after its confirmation for which a stream must live to show that its source works. One that ends before that
/// ended early.
pub(crate) const SETTLES_AFTER: Duration = Duration::from_secs(3);
/// Longest pause after which a replica without a stream still counts as followed: a busy server asks for a second or
/// so.
const PROMPT: Duration = Duration::from_secs(2);
/// First pause when the coordinator has no complete data yet.
const NOT_READY: Duration = Duration::from_millis(500);
/// Maximum of that pause, to which jitter adds up to as much again. So 1,000 hubs with four replicas each send 1,000
/// requests a second at most during a first list over a thin link.
const NOT_READY_MAX: Duration = Duration::from_secs(4);
/// First pause after an oversized update, and the maximum factor by which it grows: up to an hour.
const OVERSIZED: (Duration, u32) = (Duration::from_secs(60), 60);
/// Maximum Retry-After that the hub honours.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// Keeps one replica up to date.
pub struct Follower {
    /// The replica.
    pub replica: Arc<Replica>,
    /// Records signs of life.
    pub data: Arc<PoolData>,
    /// Connections.
    pub upstreams: Upstreams,
    /// The source to follow.
    pub wanted: watch::Receiver<Wanted>,
    /// Reachability of the cloud.
    pub reach: watch::Receiver<CloudReach>,
    /// The pool's name.
    pub pool: String,
    /// Owner of the streams' tasks.
    pub tasks: TaskGroup,
    /// Clock.
    pub clock: Clock,
}

/// A running stream; dropping it ends it.
struct Running {
    source: Source,
    confirmed: oneshot::Receiver<()>,
    ended: oneshot::Receiver<StreamEnd>,
    progress: Progress,
    _cancel: DropGuard,
}

/// Progress of a stream.
enum Progress {
    /// The server has not confirmed the replica's position.
    Opening,
    /// The server has confirmed it; the stream settles at this time.
    Confirmed(Instant),
    /// The stream has lived long enough to show that its source works.
    Settled,
}

/// Back-off that grows with consecutive failures, and with consecutive streams that end early.
pub(crate) struct Backoff {
    /// Pause after the next failure. The confirmation of a stream resets it.
    next: Duration,
    /// Number of streams in a row that ended early.
    early: u32,
}

// === impl Follower ===

impl Follower {
    /// Runs until the hub stops.
    pub async fn run(mut self) {
        let token = self.tasks.token();
        let (mut active, mut next): (Option<Running>, Option<Running>) = (None, None);
        let mut fallback = CloudFallback::default();
        let mut backoff = Backoff::default();
        let mut distrusted = self.data.distrust().changes();
        loop {
            let _ = distrusted.borrow_and_update();
            let general = *self.wanted.borrow_and_update();
            let wanted = self.instead(general);
            if wanted != general {
                // Later data of the coordinator must not be applied.
                active.take_if(|running| running.source == Source::Coordinator);
            }
            let at_cloud = active.as_ref().is_some_and(|running| running.source == Source::Cloud);
            let (target, begin) = fallback.next(wanted, at_cloud);
            self.drop_unwanted(target, &mut active, &mut next);
            let following = active.iter().chain(&next).any(|running| running.source == target);
            if !following && target != Source::None {
                next = self.open(target, begin, wanted);
            }
            let (ran, ended) = tokio::select! {
                () = token.cancelled() => return,
                changed = self.wanted.changed() => if changed.is_err() { return } else { continue },
                Ok(()) = distrusted.changed() => continue,
                event = confirmed_or_ended(&mut next) => match event {
                    Some(ended) => (next.take(), ended),
                    None => {
                        active = next.take().map(Running::confirmed);
                        fallback.confirmed(target);
                        backoff.confirmed();
                        self.data.sources().confirmed(self.replica.name(), target);
                        let (collection, source) = (self.replica.name(), target.as_str());
                        tracing::info!(collection, source, "Source confirmed");
                        continue;
                    }
                },
                event = settled_or_ended(&mut active) => match event {
                    Some(ended) => (active.take(), ended),
                    None => {
                        backoff.settled();
                        self.data.failures().works(self.replica.name());
                        continue;
                    }
                },
            };
            let source = ran.as_ref().map_or(target, |running| running.source);
            let least = if ran.is_some_and(|running| running.is_early(&ended)) {
                backoff.ended_early(&ended)
            } else {
                Duration::ZERO
            };
            let loses_source = ended.loses_source();
            let pause = self
                .after(source, ended, wanted, &mut fallback, &mut backoff)
                .max(least);
            if (loses_source || pause > PROMPT) && active.is_none() {
                self.data.sources().lost(self.replica.name());
            }
            let is_asked_for = tokio::select! {
                is_asked_for = self.pause(pause, (general.source, wanted), &token) => is_asked_for,
                Ok(()) = distrusted.changed() => Some(()),
            };
            if is_asked_for.is_none() {
                return;
            }
        }
    }

    /// Source for this replica that replaces the `general` one.
    fn instead(&self, general: Wanted) -> Wanted {
        let now = self.clock.boot();
        self.data.distrust().instead(self.replica.name(), general, now)
    }

    fn note_failure(&self, source: Source, why: &str) {
        let why = format!("{}: {why}", source.as_str());
        self.data.failures().unanswered(self.replica.name(), &why);
    }

    /// Applies the end of a stream of `source` and returns the pause before the next one.
    fn after(
        &self,
        source: Source,
        ended: StreamEnd,
        wanted: Wanted,
        fallback: &mut CloudFallback,
        backoff: &mut Backoff,
    ) -> Duration {
        let (collection, name) = (self.replica.name(), source.as_str());
        match ended {
            // A stream that ended normally is reopened immediately: the source is not lost.
            StreamEnd::Closed | StreamEnd::Overtaken => backoff.short(),
            // Another server takes over, or the pause ends when one is up.
            StreamEnd::ServerDown if self.is_away(wanted) => BACKOFF_MAX,
            StreamEnd::ServerDown => backoff.short(),
            StreamEnd::Expired => {
                // Only this hub reads the members.
                let has_copy =
                    collection != members::COLLECTION && self.replica.collection().read(Collection::is_complete);
                if fallback.expired(source, wanted, has_copy) {
                    tracing::info!(
                        collection,
                        "The coordinator cannot resume this replica; resuming at the cloud"
                    );
                    self.data.history().reopen();
                    return wanted.fallback.unwrap_or_default() + backoff.short();
                }
                match fallback {
                    CloudFallback::Taken { .. } => backoff.grow().min(FALLBACK_PAUSE_MAX),
                    CloudFallback::None | CloudFallback::List(_) => backoff.short(),
                }
            }
            StreamEnd::OtherHistory => {
                fallback.contradicted(source);
                backoff.short()
            }
            StreamEnd::Oversized(why) => {
                let row = self.data.does_not_fit(collection, &why);
                // A later list may fit. Resuming event by event would never reach it.
                fallback.contradicted(source);
                after_oversized(row)
            }
            StreamEnd::NotReady(after) => {
                self.note_failure(source, "requested a retry later");
                fallback.failed(source);
                backoff.asked_for(source, after)
            }
            StreamEnd::Interrupted(why) => {
                tracing::debug!(collection, source = name, why, "List interrupted");
                backoff.confirmed();
                backoff.short()
            }
            StreamEnd::Refused(why)
            | StreamEnd::Denied(_, why)
            | StreamEnd::Unreadable(why)
            | StreamEnd::Unstored(why) => {
                let why = format!("{name}: {why}");
                self.data.failures().refused(collection, &why);
                fallback.failed(source);
                backoff.grow()
            }
            StreamEnd::Failed(why) | StreamEnd::Silent(why) => {
                tracing::debug!(collection, source = name, why, "Reflector failed");
                self.note_failure(source, &why);
                fallback.failed(source);
                backoff.grow()
            }
        }
    }

    /// Ends the stream of a source that is no longer wanted, unless the wanted source has not confirmed yet. The
    /// failure of another source ends if the stream of the wanted one has settled before.
    fn drop_unwanted(&self, target: Source, active: &mut Option<Running>, next: &mut Option<Running>) {
        if next.as_ref().is_some_and(|running| running.source != target) {
            *next = None;
        }
        let settled = active.as_ref().filter(|running| running.is_settled());
        if settled.is_some_and(|running| running.source == target) {
            self.data.failures().works(self.replica.name());
        }
        if target == Source::None {
            *active = None;
            // Also if the stream has ended by itself.
            self.data.sources().lost(self.replica.name());
        }
    }

    /// True if the wanted source is the cloud, and no server of it is up.
    fn is_away(&self, wanted: Wanted) -> bool {
        wanted.source == Source::Cloud && self.reach.borrow().is_failing()
    }

    /// Pauses; ends early when a source other than `general` is wanted, or when the wanted one is the cloud and is
    /// back. Returns `None` when the hub stops.
    async fn pause(
        &mut self,
        pause: Duration,
        (general, wanted): (Source, Wanted),
        token: &CancellationToken,
    ) -> Option<()> {
        let is_away = self.is_away(wanted);
        let (mut wanted, mut reach) = (self.wanted.clone(), self.reach.clone());
        tokio::select! {
            () = token.cancelled() => None,
            _ = reach.wait_for(|reach| !reach.is_failing()), if is_away => Some(()),
            _ = wanted.wait_for(|wanted| wanted.source != general) => Some(()),
            () = tokio::time::sleep(pause) => Some(()),
        }
    }

    fn open(&self, source: Source, begin: Begin, wanted: Wanted) -> Option<Running> {
        let place = self.upstreams.cloud.current();
        let client = match source {
            Source::None => return None,
            Source::Cloud => self.upstreams.cloud.at(place).streams.clone(),
            Source::Coordinator => self.upstreams.coordinator.as_ref()?.shared.clone(),
        };
        let (confirm, confirmed) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let stream = Reflector {
            source,
            client,
            traffic: self.upstreams.cloud.traffic().clone(),
            place,
            replica: self.replica.clone(),
            data: self.data.clone(),
            pool: self.pool.clone(),
            random: fastrand::u64(..),
            confirmed: Some(confirm),
            opened: None,
            generation: self.replica.collection().read(Collection::generation),
            has_fallback: begin != Begin::List && wanted.fallback.is_some() && source == Source::Coordinator,
            selected: None,
        };
        let token = self.tasks.token().child_token();
        let cancel = token.clone().drop_guard();
        let down = match source {
            Source::Cloud => self.upstreams.cloud.at(place).availability.down(),
            _ => CancellationToken::new(),
        };
        self.tasks.spawn("replica-stream", async move {
            let stream = async {
                // A stream of a server that is down may stay open without data, while another server has them.
                let ended = down.run_until_cancelled(stream.run(begin)).await;
                ended.unwrap_or_else(|| match begin {
                    Begin::List => StreamEnd::Failed("the server is down".to_owned()),
                    _ => StreamEnd::ServerDown,
                })
            };
            if let Some(result) = token.run_until_cancelled(stream).await {
                // The follower is gone when the hub stops.
                let _ = end.send(result);
            }
        });
        Some(Running {
            source,
            confirmed,
            ended,
            progress: Progress::Opening,
            _cancel: cancel,
        })
    }
}

// === impl Running ===

impl Running {
    /// The stream after its confirmation, which is now.
    fn confirmed(self) -> Self {
        Self {
            progress: Progress::Confirmed(Instant::now() + SETTLES_AFTER),
            ..self
        }
    }

    /// True if the stream has shown that its source works.
    fn is_settled(&self) -> bool {
        matches!(self.progress, Progress::Settled)
    }

    /// True if the stream ended too early to show that its source works.
    fn is_early(&self, ended: &StreamEnd) -> bool {
        match self.progress {
            // The pauses after other ends of such a stream grow anyway.
            Progress::Opening => ended.is_normal(),
            Progress::Confirmed(_) => true,
            Progress::Settled => false,
        }
    }
}

/// Pause after the `row`th oversized update in a row.
pub(crate) fn after_oversized(row: u32) -> Duration {
    OVERSIZED.0 * 2_u32.saturating_pow(row.saturating_sub(1)).min(OVERSIZED.1)
}

/// Waits until `running` has confirmed (`None`) or ended (its end); never resolves without a stream.
async fn confirmed_or_ended(running: &mut Option<Running>) -> Option<StreamEnd> {
    let Some(running) = running else {
        return std::future::pending().await;
    };
    tokio::select! {
        biased;
        Ok(()) = &mut running.confirmed => None,
        ended = &mut running.ended => Some(ended.unwrap_or(StreamEnd::Closed)),
    }
}

/// Waits until `running` has settled (`None`) or ended (its end); never resolves without a stream.
async fn settled_or_ended(running: &mut Option<Running>) -> Option<StreamEnd> {
    let Some(running) = running else {
        return std::future::pending().await;
    };
    let settles = match running.progress {
        Progress::Confirmed(settles) => Some(settles),
        Progress::Opening | Progress::Settled => None,
    };
    let settled = async {
        match settles {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        ended = &mut running.ended => Some(ended.unwrap_or(StreamEnd::Closed)),
        () = settled => {
            running.progress = Progress::Settled;
            None
        }
    }
}

// === impl Backoff ===

impl Default for Backoff {
    fn default() -> Self {
        Self {
            next: BACKOFF_MIN,
            early: 0,
        }
    }
}

impl Backoff {
    /// Records that a stream was confirmed: a server answers.
    pub(crate) fn confirmed(&mut self) {
        self.next = BACKOFF_MIN;
    }

    /// Records that a confirmed stream has lived for [`SETTLES_AFTER`].
    pub(crate) fn settled(&mut self) {
        self.early = 0;
    }

    /// Records that a stream ended before it settled. Returns the minimum pause before the next one: none after the
    /// first two in a row, since a link that flaps ends streams, too.
    pub(crate) fn ended_early(&mut self, ended: &StreamEnd) -> Duration {
        if matches!(ended, StreamEnd::ServerDown) {
            // The hub itself ended it.
            return Duration::ZERO;
        }
        self.early = self.early.saturating_add(1);
        let Some(doublings) = self.early.checked_sub(EARLY_FREE + 1) else {
            return Duration::ZERO;
        };
        let pause = BACKOFF_MIN * 2_u32.saturating_pow(doublings);
        with_jitter(pause.min(REOPEN_MAX))
    }

    /// Pause after a normal end: short, but long enough to avoid a busy loop.
    pub(crate) fn short(&self) -> Duration {
        Duration::from_millis(20 + fastrand::u64(..) % 80)
    }

    /// Pause that the server asked for, `after` if it sent a duration. A coordinator without complete data is near and
    /// has it soon.
    pub(crate) fn asked_for(&mut self, source: Source, after: Option<Duration>) -> Duration {
        let asked = after.unwrap_or_default().min(RETRY_AFTER_MAX);
        match source {
            Source::Cloud => asked + self.grow(),
            Source::Coordinator | Source::None => {
                self.next = self.next.clamp(NOT_READY, NOT_READY_MAX);
                asked.max(self.grow())
            }
        }
    }

    /// Pause after a failure: longer after each.
    pub(crate) fn grow(&mut self) -> Duration {
        let pause = self.next;
        self.next = (self.next * 2).min(BACKOFF_MAX);
        with_jitter(pause)
    }
}

/// The pause and up to as much again.
fn with_jitter(pause: Duration) -> Duration {
    pause + pause.mul_f64((fastrand::u64(..) % 1000) as f64 / 1000.0)
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::sync::atomic::Ordering;

    use yurt_runtime::http::client::{Dial, HttpClient, Protocol};
    use yurt_runtime::tls::{PemIdentity, PemSource};

    use super::*;
    use crate::replicas::history_check::Opened;
    use crate::replicas::reflector::tests::{BOOKMARK, END, HeldServices, SERVICES, server_of};
    use crate::upstream::{CertificateFiles, Cloud, CoordinatorClient};

    const FAILED: &str = r#"{"type":"ERROR","object":{"kind":"Status","code":500,"message":"it broke"}}"#;
    const UNREADABLE: &str = r#"{"type":"ADDED","object":{"metadata":{}}}"#;
    const EXPIRED: &str = r#"{"type":"ERROR","object":{"kind":"Status","code":410}}"#;

    /// A follower of `held` and the senders of its inputs. Its coordinator is reached with `client`.
    fn follower(
        held: &HeldServices,
        client: &HttpClient,
        source: Source,
    ) -> (Follower, watch::Sender<Wanted>, watch::Sender<CloudReach>) {
        let pem = PemSource::File("/nowhere".into());
        let wanted = watch::Sender::new(Wanted { source, fallback: None });
        let reach = watch::Sender::new(CloudReach::default());
        let follower = Follower {
            replica: held.replica.clone(),
            data: held.data.clone(),
            upstreams: Upstreams {
                cloud: Arc::new(Cloud::for_test("http://127.0.0.1:9")),
                coordinator: Some(CoordinatorClient {
                    shared: client.clone(),
                    feed: client.clone(),
                    once: client.clone(),
                    files: CertificateFiles::for_test(),
                }),
                cluster_ca: pem.clone(),
                client_ca: pem.clone(),
                node: PemIdentity {
                    cert: pem.clone(),
                    key: pem,
                },
                renewed: Arc::default(),
            },
            wanted: wanted.subscribe(),
            reach: reach.subscribe(),
            pool: String::new(),
            tasks: TaskGroup::new(),
            clock: Clock::system(),
        };
        (follower, wanted, reach)
    }

    /// Runs a follower for a minute at a coordinator that sends `sent` in each watch. Returns the number of watches,
    /// and whether the replica had a trouble all the time from the first failure on.
    async fn followed_for_a_minute(sent: &'static [(u64, &'static str)]) -> (usize, bool) {
        let held = HeldServices::new();
        let (client, connections) = server_of(sent);
        let (follower, wanted, _reach) = follower(&held, &client, Source::Coordinator);
        let mut is_trouble = Vec::new();
        let looking = async {
            loop {
                tokio::time::sleep(Duration::from_millis(7)).await;
                is_trouble.push(held.data.failures().why(SERVICES).is_some());
            }
        };
        let running = async {
            tokio::select! {
                () = follower.run() => {}
                () = looking => {}
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(60), running).await;
        drop(wanted);
        let first = is_trouble.iter().position(|is_trouble| *is_trouble).unwrap_or_default();
        let keeps = is_trouble[first..].iter().all(|is_trouble| *is_trouble);
        (connections.load(Ordering::SeqCst), keeps)
    }

    #[tokio::test(start_paused = true)]
    async fn stream_that_fails_soon_after_it_opened_is_opened_less_and_less() {
        for last in [FAILED, UNREADABLE] {
            let sent = Vec::leak(vec![(0, BOOKMARK), (1, last)]);
            let (opened, keeps_trouble) = followed_for_a_minute(sent).await;
            assert!((10..40).contains(&opened), "{last}: {opened} times");
            assert!(keeps_trouble, "{last}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn stream_that_ends_soon_after_it_opened_is_opened_less_and_less() {
        for sent in [
            &[(0, END)][..],
            &[(0, BOOKMARK), (0, END)],
            &[(0, BOOKMARK), (0, EXPIRED)],
        ] {
            let opened = followed_for_a_minute(sent).await.0;
            assert!((10..60).contains(&opened), "{sent:?}: {opened} times");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn trouble_ends_once_a_stream_has_settled() {
        let (opened, keeps_trouble) = followed_for_a_minute(&[(0, BOOKMARK), (5, FAILED)]).await;
        assert!(!keeps_trouble && opened > 9, "{opened} times");
    }

    /// The stream of the source that is wanted again has settled before that failure, so nothing else ends it.
    #[tokio::test(start_paused = true)]
    async fn trouble_with_another_source_ends_once_that_source_is_no_longer_wanted() {
        let held = HeldServices::new();
        held.data.history().prove(Opened {
            pool: 1,
            ..Opened::default()
        });
        let refuse: Dial = Arc::new(|| Box::pin(async { Err(ErrorKind::ConnectionRefused.into()) }));
        let base = "http://coordinator".parse().unwrap();
        let down = HttpClient::over(base, None, Protocol::Http1, BACKOFF_MAX, Some(refuse)).unwrap();
        let (mut follower, wanted, _reach) = follower(&held, &down, Source::Cloud);
        let (cloud, connections) = server_of(&[(0, BOOKMARK)]);
        follower.upstreams.cloud = Arc::new(Cloud::of_clients([cloud]));
        let trouble = || held.data.failures().why(SERVICES);
        let changes = async {
            tokio::time::sleep(2 * SETTLES_AFTER).await;
            assert_eq!(trouble(), None);
            wanted.send_modify(|wanted| wanted.source = Source::Coordinator);
            tokio::time::sleep(BACKOFF_MIN).await;
            assert!(trouble().is_some_and(|why| why.starts_with("coordinator: ")));
            wanted.send_modify(|wanted| wanted.source = Source::Cloud);
            tokio::time::sleep(BACKOFF_MIN).await;
            assert_eq!(trouble(), None);
        };
        tokio::select! {
            () = follower.run() => {}
            () = changes => {}
        }
        assert_eq!(connections.load(Ordering::SeqCst), 1, "the same stream all the time");
    }

    #[tokio::test(start_paused = true)]
    async fn cloud_that_is_down_is_not_asked_until_it_is_back() {
        let held = HeldServices::new();
        let (mut follower, wanted, reach) = follower(&held, &server_of(&[]).0, Source::Cloud);
        let pause = |follower: &Follower| {
            let wanted = *wanted.borrow();
            let (mut fallback, mut backoff) = (CloudFallback::default(), Backoff::default());
            follower.after(
                Source::Cloud,
                StreamEnd::ServerDown,
                wanted,
                &mut fallback,
                &mut backoff,
            )
        };
        let is_up = |failed| CloudReach {
            failed_probes: Some(failed),
        };
        assert!(pause(&follower) < BACKOFF_MIN, "another server may be up");
        reach.send_replace(is_up(2));
        assert_eq!(pause(&follower), BACKOFF_MAX);
        wanted.send_modify(|wanted| wanted.source = Source::Coordinator);
        assert!(
            pause(&follower) < BACKOFF_MIN,
            "it was the source of this replica alone"
        );
        wanted.send_modify(|wanted| wanted.source = Source::Cloud);

        let (began, token) = (Instant::now(), CancellationToken::new());
        let back = Duration::from_secs(1);
        let returns = async {
            tokio::time::sleep(back).await;
            reach.send_replace(is_up(0));
        };
        let sources = (Source::Cloud, *wanted.borrow());
        tokio::join!(follower.pause(BACKOFF_MAX, sources, &token), returns);
        assert_eq!(began.elapsed(), back);
        follower.pause(BACKOFF_MAX, sources, &token).await;
        assert_eq!(
            began.elapsed(),
            back + BACKOFF_MAX,
            "a server that is up is not asked sooner"
        );
    }

    #[test]
    fn a_busy_cloud_is_left_alone_as_long_as_it_asks_for() {
        let mut backoff = Backoff::default();
        let asked = Duration::from_secs(7);
        let first = backoff.asked_for(Source::Cloud, Some(asked));
        assert!(first > asked, "not all hubs at the same moment: {first:?}");
        let for_ever = Some(Duration::from_secs(1 << 40));
        assert!(backoff.asked_for(Source::Cloud, for_ever) <= RETRY_AFTER_MAX + 2 * BACKOFF_MAX);
        let (mut unsaid, mut last) = (Backoff::default(), Duration::ZERO);
        for _ in 0..10 {
            last = unsaid.asked_for(Source::Cloud, None);
        }
        assert!(last >= BACKOFF_MAX, "without a Retry-After the pauses grow: {last:?}");
    }

    #[test]
    fn streams_that_end_early_are_opened_less_and_less_until_one_settles() {
        for ended in [StreamEnd::Closed, StreamEnd::Failed("it broke".to_owned())] {
            let mut backoff = Backoff::default();
            let mut pauses = |count: usize| -> Vec<_> {
                let pause = |_| {
                    backoff.confirmed();
                    backoff.ended_early(&ended)
                };
                (0..count).map(pause).collect()
            };
            let first = pauses(3);
            assert_eq!(first[..2], [Duration::ZERO; 2], "a link may flap");
            assert!((BACKOFF_MIN..2 * BACKOFF_MIN).contains(&first[2]), "{first:?}");
            let later = pauses(100);
            assert!((REOPEN_MAX..2 * REOPEN_MAX).contains(&later[99]), "{:?}", later[99]);
            backoff.settled();
            assert_eq!(backoff.ended_early(&ended), Duration::ZERO);
        }
    }

    /// A link that flaps may be up for a moment only: a long pause after a failed attempt could miss it.
    #[test]
    fn early_ends_do_not_delay_the_attempts_while_a_server_does_not_answer() {
        let mut backoff = Backoff::default();
        for _ in 0..100 {
            backoff.confirmed();
            backoff.ended_early(&StreamEnd::Closed);
        }
        assert!(backoff.grow() <= 2 * BACKOFF_MIN);
    }

    #[test]
    fn coordinator_without_data_is_asked_less_and_less() {
        let mut backoff = Backoff::default();
        let first = backoff.asked_for(Source::Coordinator, None);
        assert!((NOT_READY..=2 * NOT_READY).contains(&first), "it is near: {first:?}");
        for _ in 0..10 {
            backoff.asked_for(Source::Coordinator, None);
        }
        let pauses: Vec<_> = (0..100).map(|_| backoff.asked_for(Source::Coordinator, None)).collect();
        assert!(
            pauses
                .iter()
                .all(|pause| (NOT_READY_MAX..=2 * NOT_READY_MAX).contains(pause)),
            "{pauses:?}"
        );
        assert!(
            pauses.iter().any(|pause| *pause != pauses[0]),
            "not all hubs at the same moment"
        );
        let (hubs, copies) = (1_000, 4);
        assert!(hubs * copies / NOT_READY_MAX.as_secs() <= 1_000);
        let asked = Duration::from_secs(20);
        assert!(backoff.asked_for(Source::Coordinator, Some(asked)) >= asked);
        let for_ever = Some(Duration::from_secs(1 << 40));
        assert_eq!(backoff.asked_for(Source::Coordinator, for_ever), RETRY_AFTER_MAX);
    }
}
