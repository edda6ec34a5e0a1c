//! Mutations of the kept inputs through every target: `YURT_MUTATIONS=1000000` for each of them, a few without it.

use std::path::Path;

use yurt_fuzz::{TARGETS, Target};

/// Inputs of each target in an ordinary run.
const MUTATIONS: usize = 500;
/// Bytes that have a meaning in one of the formats.
const MEANT: &[u8] = b"\0\"\\{}[]:,./?&=%#+-_ \n\r0129aAzZ\x7f\x80\xff";

/// A small generator, seeded by the target.
struct Random(u64);

// === impl Random ===

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % (bound.max(1) as u64)).unwrap_or(0)
    }

    /// Changes `data` in one place; `other` is another input.
    fn mutate(&mut self, data: &mut Vec<u8>, other: &[u8]) {
        let at = self.below(data.len() + 1);
        let byte = MEANT[self.below(MEANT.len())];
        match self.below(7) {
            0 => data.insert(at, byte),
            1 if at < data.len() => data[at] = byte,
            2 if at < data.len() => data[at] ^= 1 << self.below(8),
            3 => data.truncate(at),
            4 => {
                let end = at + self.below(data.len() + 1 - at);
                data.drain(at..end);
            }
            5 => {
                let end = at + self.below(data.len() + 1 - at);
                let copy = data[at..end].to_vec();
                data.extend(copy);
            }
            _ => {
                let from = self.below(other.len() + 1);
                data.splice(at.., other[from..].iter().copied());
            }
        }
    }
}

fn kept(target: &Target) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .expect("kept inputs")
        .map(|file| file.expect("a kept input").path())
        .collect();
    paths.sort();
    paths
        .iter()
        .map(|path| std::fs::read(path).expect("a kept input"))
        .collect()
}

#[test]
fn mutated_inputs_find_nothing() {
    let count = std::env::var("YURT_MUTATIONS")
        .ok()
        .and_then(|count| count.parse().ok());
    let only = std::env::var("YURT_TARGET").ok();
    // Files of a database and CPU times: libFuzzer has these alone.
    let is_quick = |target: &&Target| !matches!(target.name, "store-recovery" | "wide");
    let is_chosen = |target: &&Target| only.as_ref().is_none_or(|only| target.name.starts_with(only.as_str()));
    for target in TARGETS.iter().filter(is_quick).filter(is_chosen) {
        let kept = kept(target);
        let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ target.name.len() as u64);
        let mut data = Vec::new();
        for turn in 0..count.unwrap_or(MUTATIONS) {
            if turn % 8 == 0 {
                data.clone_from(&kept[random.below(kept.len())]);
            }
            let other = &kept[random.below(kept.len())];
            random.mutate(&mut data, other);
            data.truncate(target.len_max);
            let outcome = std::panic::catch_unwind(|| (target.run)(&data));
            assert!(
                outcome.is_ok(),
                "{}, input {turn}: {}",
                target.name,
                data.escape_ascii()
            );
        }
    }
}
