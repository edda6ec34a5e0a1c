//! Seeded random numbers. A failure names its seed, and `STORE_TEST_SEED=<n>` runs only that one.

/// SplitMix64.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

/// Seeds of a test: the one of the environment, or `count` fixed ones.
pub(crate) fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("STORE_TEST_SEED") {
        Ok(seed) => vec![seed.parse().expect("STORE_TEST_SEED is a number")],
        Err(_) => (1..=count).collect(),
    }
}

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x5851_f42d_4c95_7f2d))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// True once in `n` times.
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).expect("lengths are small")
    }
}
