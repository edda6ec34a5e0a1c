//! Single rules, and a day of a link that loses packets.

use super::*;

const SECOND: Duration = Duration::from_secs(1);
/// As [`yurt_runtime::http::client::SIGN_INTERVAL`].
const SIGNS: Duration = yurt_runtime::http::client::SIGN_INTERVAL;
/// Time between two looks at the silence.
const LOOK: Duration = Duration::from_millis(250);

fn up() -> Judge {
    let mut judge = Judge::default();
    assert_eq!((judge.is_up(), judge.failed_probes()), (None, None));
    judge.probed(Duration::ZERO, Probe::Answered);
    assert_eq!((judge.is_up(), judge.failed_probes()), (Some(true), Some(0)));
    judge
}

#[test]
fn one_failed_probe_is_confirmed_at_once_and_changes_nothing() {
    let mut judge = up();
    assert_eq!(judge.pause(Duration::ZERO), EVERY);
    judge.probed(SECOND, Probe::Failed);
    assert_eq!((judge.is_up(), judge.failed_probes()), (Some(true), Some(0)));
    assert!(judge.pause(Duration::ZERO) < SECOND);
    judge.probed(2 * SECOND, Probe::Answered);
    judge.probed(3 * SECOND, Probe::Failed);
    assert_eq!(judge.is_up(), Some(true), "not in a row");
    judge.probed(4 * SECOND, Probe::Failed);
    assert_eq!((judge.is_up(), judge.failed_probes()), (Some(false), Some(2)));
}

/// A link that swallows packets may be back at any time: probes that are never answered follow each other.
#[test]
fn probe_of_a_server_that_is_down_begins_a_second_after_the_last_one_began() {
    let mut judge = up();
    judge.silent(SECOND, SILENCE);
    let pauses = [0, 400, 1000, 3000].map(|took| judge.pause(Duration::from_millis(took)).as_millis());
    assert_eq!(pauses, [1000, 600, 0, 0]);
    judge.probed(2 * SECOND, Probe::Answered);
    assert_eq!(judge.pause(3 * SECOND), CONFIRM, "the first answer needs its time");
}

#[test]
fn first_failed_probe_of_an_unknown_server_counts() {
    let mut judge = Judge::default();
    judge.probed(SECOND, Probe::Failed);
    assert_eq!((judge.is_up(), judge.failed_probes()), (Some(false), Some(1)));
}

#[test]
fn silence_is_probed_and_then_believed() {
    let mut judge = up();
    assert!(!judge.silent(SECOND, SUSPECT / 2));
    assert!(judge.silent(SECOND, SUSPECT) && judge.is_up() == Some(true));
    assert!(judge.silent(2 * SECOND, SILENCE));
    assert_eq!((judge.is_up(), judge.failed_probes()), (Some(false), Some(MISSES)));
    assert!(SIGNS + SILENCE + LOOK <= 5 * SECOND, "known within 5 s");
}

#[test]
fn looks_are_rare_while_nothing_is_awaited_and_find_silence_soon() {
    let millis = Duration::from_millis;
    assert!(next_look(Duration::ZERO) < SUSPECT && next_look(Duration::ZERO) < LOOK_GAP);
    assert!(
        next_look(Duration::ZERO) >= millis(900),
        "each look is a wake of an idle hub"
    );
    for begins in (0..2000).map(millis) {
        let (mut judge, mut now) = (up(), Duration::ZERO);
        let silence = |now: Duration| now.saturating_sub(begins);
        while !judge.silent(now, silence(now)) {
            now += next_look(silence(now));
        }
        assert!(silence(now) <= SUSPECT + LOOK, "silence from {begins:?} on: {now:?}");
    }
}

/// A machine that does not run for a while finds old silence: neither its prober nor its readers ran.
#[test]
fn stall_of_this_machine_is_no_silence_of_the_server() {
    let mut judge = up();
    let (mut now, mut since) = (SECOND, Duration::ZERO);
    assert!(!judge.silent(now, since));
    for stall in [4, 10, 60] {
        now += stall * SECOND;
        since += stall * SECOND;
        judge.silent(now, since);
        assert_eq!(judge.is_up(), Some(true), "{stall} s of its own");
    }
    let mut looks = 0;
    while judge.is_up() == Some(true) {
        now += LOOK;
        since += LOOK;
        judge.silent(now, since);
        looks += 1;
    }
    assert!(LOOK * looks <= SILENCE, "a silent server falls {looks} looks later");
    // A machine that is slow all the time finds it, too.
    let mut judge = up();
    let slow = (1..).find(|look| {
        judge.silent(*look * 3 * SECOND, *look * 3 * SECOND);
        judge.is_up() == Some(false)
    });
    assert!(slow <= Some(5), "{slow:?}");
}

#[test]
fn byte_between_two_stalls_ends_the_silence_with_them() {
    let mut judge = up();
    judge.silent(SECOND, Duration::ZERO);
    judge.silent(60 * SECOND, 59 * SECOND);
    judge.silent(60 * SECOND + LOOK, Duration::ZERO);
    for look in 1..=13 {
        let silence = LOOK * look;
        judge.silent(60 * SECOND + LOOK + silence, silence);
    }
    assert_eq!(judge.is_up(), Some(false), "earlier stalls excuse nothing");
}

/// Returns the time for which the server had to answer at `now` until it was up.
fn recovery(judge: &mut Judge, now: Duration) -> Duration {
    for turn in 0..100 {
        let time = turn * STEADY;
        judge.probed(now + time, Probe::Answered);
        if judge.is_up() == Some(true) {
            return time;
        }
    }
    panic!("the server must come up");
}

#[test]
fn server_that_falls_again_soon_must_answer_for_longer() {
    let mut judge = up();
    let mut now = Duration::ZERO;
    let mut times = Vec::new();
    for stay in [60, 5, 5, 5, 5, 5, 5, 60] {
        now += stay * SECOND;
        judge.silent(now, SILENCE);
        let time = recovery(&mut judge, now);
        now += time;
        times.push(time.as_millis());
    }
    assert_eq!(times, [250, 500, 1000, 2000, 4000, 8000, 8000, 250]);
}

#[test]
fn failed_probe_ends_a_row_of_answers() {
    let mut judge = up();
    judge.silent(SECOND, SILENCE);
    judge.probed(2 * SECOND, Probe::Answered);
    judge.probed(2 * SECOND, Probe::Failed);
    judge.probed(3 * SECOND, Probe::Answered);
    assert_eq!(judge.is_up(), Some(false));
    judge.probed(4 * SECOND, Probe::Answered);
    assert_eq!(judge.is_up(), Some(true));
}

#[test]
fn server_that_answers_an_error_is_down_and_may_still_answer_requests() {
    let mut judge = up();
    for _ in 0..2 {
        assert!(judge.may_answer());
        judge.probed(SECOND, Probe::Unhealthy);
    }
    assert!(judge.may_answer() && judge.is_up() == Some(false));
    judge.probed(2 * SECOND, Probe::Failed);
    assert!(!judge.may_answer());
    judge.probed(3 * SECOND, Probe::Answered);
    assert!(!judge.may_answer(), "one answer is not enough");
    judge.probed(4 * SECOND, Probe::Answered);
    assert!(judge.may_answer() && judge.is_up() == Some(true));
}

#[test]
fn preferred_server_is_used_again_once_it_is_steady() {
    let both = [up(), up()];
    let choose = |mode, current, judges: &[Judge], at| choose(mode, judges, current, at);
    for mode in [LbMode::RoundRobin, LbMode::Priority] {
        assert_eq!(choose(mode, 0, &both, FAILBACK), 0);
        assert_eq!(choose(mode, 1, &both, FAILBACK - SECOND), 1);
        let mut first_fails = both.clone();
        first_fails[0].silent(SECOND, SILENCE);
        assert_eq!(choose(mode, 0, &first_fails, SECOND), 1);
        first_fails[1].silent(SECOND, SILENCE);
        assert_eq!(choose(mode, 1, &first_fails, SECOND), 1, "no server is better");
    }
    assert_eq!(choose(LbMode::RoundRobin, 1, &both, FAILBACK), 1);
    assert_eq!(choose(LbMode::Priority, 1, &both, FAILBACK), 0);
}

/// Link that loses each packet with this probability, with the retransmissions of TCP.
struct Lossy {
    random: fastrand::Rng,
    loss: f64,
}

impl Lossy {
    /// Time until the answer to something sent now; the first retransmission is after `first`, each later one after
    /// twice the time. `None` if it takes longer than a minute.
    fn answered_after(&mut self, first: Duration) -> Option<Duration> {
        let (mut after, mut pause) = (Duration::ZERO, first);
        while after < 60 * SECOND {
            if self.random.f64() >= self.loss && self.random.f64() >= self.loss {
                return Some(after + Duration::from_millis(20));
            }
            after += pause;
            pause *= 2;
        }
        None
    }

    /// Time until the first byte over a new connection: SYN, then the TLS handshake.
    fn first_byte_of_a_new_connection(&mut self) -> Option<Duration> {
        Some(self.answered_after(SECOND)? + self.answered_after(SECOND / 5)?)
    }
}

/// Runs a link for `time` and returns how often its server fell.
fn falls(seed: u64, loss: f64, time: Duration) -> usize {
    let mut link = Lossy {
        random: fastrand::Rng::with_seed(seed),
        loss,
    };
    let (mut judge, mut now, mut falls) = (up(), Duration::ZERO, 0);
    while now < time {
        // A sign of life is requested over the open connection.
        now += SIGNS;
        let mut heard = link.answered_after(SECOND / 5).map(|after| now + after);
        let sent = now;
        while heard.is_none_or(|heard| heard > now) {
            let was_up = judge.is_up() == Some(true);
            if judge.silent(now, now - sent) {
                // A new connection is opened at every look.
                let other = link.first_byte_of_a_new_connection().map(|after| now + after);
                heard = [heard, other].into_iter().flatten().min();
            }
            if was_up && judge.is_up() == Some(false) {
                falls += 1;
                judge = up();
                break;
            }
            now += LOOK;
        }
    }
    falls
}

#[test]
fn link_that_loses_a_fifth_of_its_packets_does_not_flap() {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    let fallen: usize = (0..10).map(|seed| falls(seed, 0.2, DAY)).sum();
    assert!(fallen <= 1, "{fallen} falls in ten days");
    let fallen = falls(1, 1.0, DAY);
    assert!(fallen > 10_000, "a link without any packets falls each time: {fallen}");
}
