//! Flipped bits, lost or exchanged pages: never served, never a panic, always reported with the file's name.

use std::sync::Arc;

use yurt_runtime::Clock;

use crate::history::{Expected, Life, NAME, find};
use crate::medium::{Entry, Tape};
use crate::random::{Random, seeds};

const PAGE: usize = 4096;
/// Bits flipped per page, one at a time.
const FLIPS_PER_PAGE: usize = 3;

/// A file after a life: its bytes, the state it must contain, and the state before the last commit.
struct Written {
    bytes: Vec<u8>,
    expected: Expected,
    before: Expected,
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime")
}

fn written(random: &mut Random, is_clean: bool) -> Written {
    let tape = Arc::new(Tape::default());
    let (clock, hand) = Clock::fake();
    runtime().block_on(async {
        let mut life = Life::on(tape.clone(), clock, hand).await;
        for _ in 0..60 {
            life.step(random).await;
        }
        let killed = tape.bytes();
        if is_clean {
            life.close().await;
        } else {
            life.kill();
        }
        let (mut expected, mut before) = (Expected::default(), Expected::default());
        for entry in &tape.take_entries() {
            if let Entry::Fact(fact) = entry {
                if !is_volatile(fact) {
                    before = expected.clone();
                }
                expected.note(fact);
            }
        }
        Written {
            bytes: if is_clean { tape.bytes() } else { killed },
            expected,
            before,
        }
    })
}

fn is_volatile(fact: &crate::history::Fact) -> bool {
    matches!(fact, crate::history::Fact::Renewed { .. })
}

/// Result of opening damaged bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenOutcome {
    /// Rejected, with the file's name and the remedy.
    Refused,
    /// The damage had no effect: everything is there.
    Whole,
    /// The last commit was reverted, as after a power loss within it.
    RolledBack,
}

fn open(bytes: Vec<u8>, written: &Written) -> Result<OpenOutcome, String> {
    // The clock continues: RVs of a reverted commit are not used again.
    let (clock, hand) = Clock::fake();
    hand.advance(std::time::Duration::from_secs(100_000));
    match runtime().block_on(find(Tape::holding(bytes), &clock)) {
        Err(why) if why.contains(NAME) && (why.contains("delete it") || why.contains("read")) => {
            Ok(OpenOutcome::Refused)
        }
        Err(why) => Err(format!("it is not said what is wrong and what to do: {why}")),
        Ok(found) => match written.expected.check(&found) {
            Ok(()) => Ok(OpenOutcome::Whole),
            Err(_) if written.before.check(&found).is_ok() => Ok(OpenOutcome::RolledBack),
            Err(why) => Err(format!("damage is served: {why}")),
        },
    }
}

fn damage(random: &mut Random, bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut damaged = Vec::new();
    let used = bytes.len() - bytes.iter().rev().take_while(|byte| **byte == 0).count();
    for page in 0..used.div_ceil(PAGE) {
        let range = page * PAGE..((page + 1) * PAGE).min(bytes.len());
        for _ in 0..FLIPS_PER_PAGE {
            let (at, bit) = (range.start + random.index(range.len()), random.below(8));
            let mut flipped = bytes.to_vec();
            flipped[at] ^= 1 << bit;
            damaged.push((format!("bit {bit} of byte {at} flipped"), flipped));
        }
        let mut zeroed = bytes.to_vec();
        zeroed[range.clone()].fill(0);
        damaged.push((format!("page {page} zeroed"), zeroed));
        let other = random.index(used / PAGE) * PAGE;
        let mut misdirected = bytes.to_vec();
        misdirected.copy_within(other..other + range.len(), range.start);
        damaged.push((format!("page {page} overwritten by the one at {other}"), misdirected));
    }
    // The header: every byte of it.
    for at in 0..320 {
        let mut flipped = bytes.to_vec();
        flipped[at] ^= 1 << random.below(8);
        damaged.push((format!("header byte {at} flipped"), flipped));
    }
    for length in [1, 100, PAGE, bytes.len() / 2, bytes.len() - 1] {
        damaged.push((format!("cut to {length} bytes"), bytes[..length].to_vec()));
    }
    damaged
}

/// Conformance: 7.42
#[test]
fn damage_is_found_before_anything_is_served() {
    for seed in seeds(1) {
        let mut random = Random::new(seed);
        for is_clean in [true, false] {
            let written = written(&mut random, is_clean);
            assert_eq!(open(written.bytes.clone(), &written), Ok(OpenOutcome::Whole));
            let (mut refused, mut rolled_back) = (0, 0);
            for (what, bytes) in damage(&mut random, &written.bytes) {
                let context = format!("seed {seed}, closed in good order: {is_clean}, {what}");
                let outcome = std::panic::catch_unwind(|| open(bytes, &written));
                match outcome.unwrap_or_else(|_| panic!("{context}: it panics")) {
                    Ok(OpenOutcome::Refused) => refused += 1,
                    Ok(OpenOutcome::Whole) => {}
                    Ok(OpenOutcome::RolledBack) => {
                        assert!(!is_clean, "{context}: a commit is lost in silence");
                        rolled_back += 1;
                    }
                    Err(why) => panic!("{context}: {why}"),
                }
            }
            assert!(refused > 50, "{refused} refused, {rolled_back} rolled back");
        }
    }
}
