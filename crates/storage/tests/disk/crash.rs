//! Kill and power loss at every write point of a store's life, and again while it recovers.

use std::sync::Arc;
use std::time::Duration;

use yurt_runtime::{Clock, FakeClock, UnixTime};
use yurt_storage::backend::Durability;

use crate::history::{Expected, Life, config_map, find, put};
use crate::medium::{Entry, Loss, Tape, after_power_loss, apply};
use crate::random::{Random, seeds};

/// Lives per run; each is about seventy commits.
const LIVES: u64 = 1;
/// Number of steps between two starts of one life.
const STEPS: u64 = 50;
/// One recovery in so many is crashed itself, at each of its writes.
const CRASH_RECOVERY_ONE_IN: u64 = 40;

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime")
}

/// Two starts, one after a clean stop, with everything the medium saw.
fn live(random: &mut Random) -> Vec<Entry> {
    let tape = Arc::new(Tape::default());
    let (clock, hand) = Clock::fake();
    runtime().block_on(async {
        let mut life = Life::on(tape.clone(), clock.clone(), hand.clone()).await;
        for _ in 0..STEPS {
            life.step(random).await;
        }
        assert_eq!(life.refused, []);
        let mut beside = life.beside;
        life.close().await;
        let mut life = Life::on(tape.clone(), clock, hand).await;
        for _ in 0..STEPS {
            life.step(random).await;
        }
        beside += life.beside;
        assert!(beside > 0, "no renewal was done during a commit");
        life.kill();
    });
    tape.take_entries()
}

/// A medium that is followed from write to write: the page cache's content, and the content that is certain.
#[derive(Default)]
pub(crate) struct Replay {
    cached: Vec<u8>,
    stable: Vec<u8>,
    pending: Vec<Entry>,
}

impl Replay {
    fn on(bytes: Vec<u8>) -> Self {
        Self {
            stable: bytes.clone(),
            cached: bytes,
            pending: Vec::new(),
        }
    }

    /// The content that a power loss cannot take.
    pub(crate) fn stable(&self) -> &[u8] {
        &self.stable
    }

    pub(crate) fn apply(&mut self, entry: &Entry) {
        apply(&mut self.cached, entry);
        match entry {
            Entry::Sync => {
                self.stable.clone_from(&self.cached);
                self.pending.clear();
            }
            Entry::Fact(_) => {}
            change => self.pending.push(change.clone()),
        }
    }

    /// Possible contents of the medium after a crash at this point.
    pub(crate) fn images(&self, random: &mut Random) -> Vec<(String, Vec<u8>)> {
        let mut images = vec![("killed".to_owned(), self.cached.clone())];
        if let Some(Entry::Write { offset, data }) = self.pending.last() {
            // A kill in the middle of the write: the other sectors are unchanged.
            let mut torn = self.cached.clone();
            let from = offset + random.index(data.len());
            let mut before = self.stable.clone();
            self.pending[..self.pending.len() - 1]
                .iter()
                .for_each(|entry| apply(&mut before, entry));
            before.resize(torn.len(), 0);
            torn[from..offset + data.len()].copy_from_slice(&before[from..offset + data.len()]);
            images.push(("killed within a write".to_owned(), torn));
        }
        if !self.pending.is_empty() {
            let losses = [Loss::All, Loss::Writes, Loss::Sectors(512), Loss::Sectors(4096)];
            let loss = losses[random.index(losses.len())];
            let image = after_power_loss(&self.stable, &self.pending, loss, random);
            images.push((format!("power lost, {loss:?}"), image));
        }
        images
    }
}

/// A clock that may have been stepped back since.
fn some_clock(random: &mut Random) -> (Clock, FakeClock) {
    let (clock, hand) = Clock::fake();
    match random.below(3) {
        0 => hand.set_unix(UnixTime { secs: 0, nanos: 0 }),
        1 => hand.advance(Duration::from_secs(100_000)),
        _ => {}
    }
    (clock, hand)
}

/// Opens `image` and compares; returns the operations that opening it did on the medium.
fn check(image: Vec<u8>, expected: &Expected, random: &mut Random) -> Result<Vec<Entry>, String> {
    let (clock, _) = some_clock(random);
    let tape = Tape::holding(image);
    let found = runtime().block_on(find(tape.clone(), &clock))?;
    expected.check(&found)?;
    Ok(tape.take_entries())
}

/// Crashes the recovery of `image` at each of its own writes, then lets it finish and crashes the operations that
/// follow.
fn crash_recovery(image: &[u8], expected: &Expected, random: &mut Random) -> Result<usize, String> {
    let recovery = check(image.to_vec(), expected, random)?;
    let mut replay = Replay::on(image.to_vec());
    for entry in &recovery {
        replay.apply(entry);
        for (how, image) in replay.images(random) {
            check(image, expected, random).map_err(|why| format!("recovery {how}: {why}"))?;
        }
    }
    let (clock, hand) = some_clock(random);
    let tape = Tape::holding(image.to_vec());
    let mut state = runtime().block_on(async {
        let mut life = Life::on(tape.clone(), clock, hand).await;
        let state = Expected::from_found(&life.found());
        life.write(vec![put(&config_map(99), 1_000_000, Durability::Durable)])
            .await;
        life.kill();
        state
    });
    let (mut replay, mut points, mut has_started) = (Replay::on(image.to_vec()), recovery.len(), false);
    for entry in &tape.take_entries() {
        if let Entry::Fact(fact) = entry {
            state.note(fact);
            has_started = true;
        }
        replay.apply(entry);
        if has_started {
            for (how, image) in replay.images(random) {
                check(image, &state, random).map_err(|why| format!("after recovery {how}: {why}"))?;
            }
            points += 1;
        }
    }
    Ok(points)
}

/// Invariants for any state of the disk after a kill or a power loss:
///
/// * acknowledged writes are there,
/// * lease and epoch belong together,
/// * pool data belongs to its C,
/// * RVs continue above every one shown,
/// * the store opens.
///
/// Conformance: 7.42, 7.43
#[test]
fn every_write_point_survives_kill_and_power_loss() {
    for seed in seeds(LIVES) {
        let mut random = Random::new(seed);
        let entries = live(&mut random);
        let (mut replay, mut expected) = (Replay::default(), Expected::default());
        let (mut points, mut checks, mut in_recovery) = (0, 0, 0);
        for entry in &entries {
            if let Entry::Fact(fact) = entry {
                expected.note(fact);
                continue;
            }
            replay.apply(entry);
            points += 1;
            for (how, image) in replay.images(&mut random) {
                let context = |why: String| format!("seed {seed}, write point {points}, {how}: {why}");
                if random.one_in(CRASH_RECOVERY_ONE_IN) {
                    let crashed = crash_recovery(&image, &expected, &mut random);
                    in_recovery += crashed.unwrap_or_else(|why| panic!("{}", context(why)));
                }
                if let Err(why) = check(image, &expected, &mut random) {
                    panic!("{}", context(why));
                }
                checks += 1;
            }
        }
        assert!(
            points > 500 && in_recovery > 100,
            "seed {seed}: {points} write points, {in_recovery} in recovery"
        );
        assert!(checks > points);
    }
}
