//! How many objects to ask for at once, from how the pages before fared.
//!
//! Pure. Pages are made to take about two seconds. On a thin link that alone leads into a trap: servers compress an answer
//! above 128 KiB only, so a smaller page can take many times as long per object as a larger one, and what takes long is
//! asked for in yet smaller pages. So a page is made large enough to be compressed while that proves to pay off.

use std::time::Duration;

/// Objects of the first page: what a probe beside it has to wait for is still short on a thin link.
const PAGE_FIRST: usize = 16;
/// Objects of a page at the most; client-go's number.
const PAGE_MAX: usize = 500;
/// Pages are made to take about this long. Whatever else uses the link waits for one of them at most, and probes have 3 s.
const PAGE_TAKES: Duration = Duration::from_secs(2);
/// A page is at most this many times larger than the one before.
const PAGE_GROWS: usize = 8;
/// A page has at most this part (1/n) of what came since the last cut: that much is lost by the next one.
const PAGE_SHARE: usize = 8;
/// Plain bytes of a page that servers compress: above 128 KiB, and a quarter more because objects differ.
const COMPRESSED_ABOVE: usize = 160 << 10;
/// A page that is large only to be compressed may take so long.
const COMPRESSED_TAKES: Duration = Duration::from_secs(8);
/// A link that carries fewer of them in [`PAGE_TAKES`] is thin. On others, plain pages lose less by a cut.
const THIN: usize = 4;
/// After so many smaller pages it is tried again, and after twice as many each time that it did not pay off.
const TRY_AGAIN_AFTER: u32 = 8;
const TRY_AGAIN_MAX: u32 = 1 << 16;
/// When a single object has been cut off so often in a row, the link does not carry it.
const STUCK_AFTER: u32 = 3;

/// How many objects to ask for.
#[derive(Debug)]
pub struct PageSize {
    limit: usize,
    /// Objects that came since the last cut.
    run: usize,
    /// Set by the first cut.
    ceiling: Option<usize>,
    /// Objects that servers compress together; unknown before the first page.
    compressed: Option<usize>,
    /// Compressed pages pay off, as far as is known.
    pays: bool,
    /// Smaller pages until it is tried again.
    left: u32,
    patience: u32,
    /// Cuts in a row in the middle of a page of one object.
    stuck: u32,
    /// Objects that are still to come, where the server tells.
    rest: Option<usize>,
    /// The link carries a few compressed pages at the most in the time of one page.
    is_thin: bool,
}

// === impl PageSize ===

impl Default for PageSize {
    fn default() -> Self {
        Self {
            limit: PAGE_FIRST,
            run: 0,
            ceiling: None,
            compressed: None,
            pays: true,
            left: 0,
            patience: TRY_AGAIN_AFTER,
            stuck: 0,
            rest: None,
            is_thin: false,
        }
    }
}

impl PageSize {
    /// Objects to ask for.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Whether the next object is larger than what passes between two cuts. The API has no ranges: it comes when the link
    /// gets better, and the list waits.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        self.stuck >= STUCK_AFTER
    }

    /// A page of so many objects came, of so many bytes when they are not compressed, and took that long. `rest`: objects
    /// after it, as far as the server tells.
    pub fn took(&mut self, objects: usize, bytes: usize, rest: Option<usize>, elapsed: Duration) {
        self.rest = rest;
        self.run = self.run.saturating_add(objects);
        self.stuck = 0;
        if objects > 0 && bytes > 0 {
            self.compressed = Some(COMPRESSED_ABOVE.div_ceil((bytes / objects).max(1)));
        }
        if let Some(compressed) = self.compressed.filter(|compressed| objects >= *compressed) {
            // What the smallest such page would have taken.
            match elapsed.mul_f64(compressed as f64 / objects as f64) <= COMPRESSED_TAKES {
                true => (self.pays, self.patience) = (true, TRY_AGAIN_AFTER),
                false => self.does_not_pay(),
            }
        } else if !self.pays {
            self.left = self.left.saturating_sub(1);
            self.pays = self.left == 0;
        }
        let fits = PAGE_TAKES.as_secs_f64() / elapsed.as_secs_f64().max(1e-3);
        let few = self.compressed.map_or(0, |compressed| THIN * compressed);
        self.is_thin = objects as f64 * fits < few as f64;
        let by_time = (self.limit as f64 * fits.min(PAGE_GROWS as f64)) as usize;
        self.limit = self.compressible(by_time.clamp(1, self.bound()));
    }

    /// The link broke in the middle of a page.
    pub fn cut(&mut self) {
        if self.run == 0 && self.compressed.is_some_and(|compressed| self.limit >= compressed) {
            self.does_not_pay();
        }
        self.stuck = match (self.run, self.limit) {
            (0, 1) => self.stuck.saturating_add(1),
            _ => 0,
        };
        let kept = if self.run > 0 {
            self.run / PAGE_SHARE
        } else {
            self.limit / 4
        };
        self.ceiling = Some(kept.max(1));
        self.run = 0;
        self.limit = self.compressible(self.limit.min(self.bound()));
    }

    /// The list that was cut off is of no use any more.
    pub fn begins_again(&mut self) {
        self.stuck = 0;
    }

    fn does_not_pay(&mut self) {
        (self.pays, self.left) = (false, self.patience);
        self.patience = (self.patience * 2).min(TRY_AGAIN_MAX);
    }

    /// `limit`, or as many as are compressed. What would be left is not left to a plain page at the end.
    fn compressible(&self, limit: usize) -> usize {
        let Some(compressed) = self
            .compressed
            .filter(|objects| self.pays && self.is_thin && *objects <= PAGE_MAX)
        else {
            return limit;
        };
        let limit = limit.max(compressed);
        let is_last = |rest: &usize| (limit..limit + compressed).contains(rest);
        self.rest.filter(is_last).map_or(limit, |rest| rest.min(PAGE_MAX))
    }

    fn bound(&self) -> usize {
        let ceiling = self
            .ceiling
            .map_or(PAGE_MAX, |ceiling| ceiling.max(self.run / PAGE_SHARE));
        ceiling.clamp(1, PAGE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 50 kbit/s that break every 25 s, and a server that compresses above 128 KiB.
    struct ThinLink {
        bytes_per_second: f64,
        object_bytes: usize,
        /// Plain bytes for one of a compressed answer.
        ratio: f64,
    }

    impl ThinLink {
        fn bytes_of(&self, objects: usize) -> f64 {
            let plain = (objects * self.object_bytes) as f64;
            let headers = 400.0;
            headers + if plain > 131_072.0 { plain / self.ratio } else { plain }
        }

        /// Bytes that a list of 1,000 objects moves, and the largest page that came.
        fn lists(&self, disturbed: bool) -> (f64, usize) {
            let mut size = PageSize::default();
            let (mut now, mut cut_at, mut got, mut moved, mut largest) = (0.0, 25.0, 0, 0.0, 0);
            while got < 1000 {
                let objects = size.limit().min(1000 - got);
                // Other lists use the link, too, while a hub starts.
                let share = if disturbed && now < 60.0 { 0.4 } else { 1.0 };
                let takes = 0.1 + self.bytes_of(objects) / (self.bytes_per_second * share);
                if now + takes > cut_at {
                    moved += (cut_at - now) * self.bytes_per_second * share;
                    (now, cut_at) = (cut_at, cut_at + 25.0);
                    size.cut();
                    continue;
                }
                now += takes;
                moved += self.bytes_of(objects);
                got += objects;
                largest = largest.max(objects);
                let plain = objects * self.object_bytes;
                size.took(objects, plain, Some(1000 - got), Duration::from_secs_f64(takes));
                assert!(now < 20_000.0, "it never ends");
            }
            (moved, largest)
        }
    }

    const SLICES: ThinLink = ThinLink {
        bytes_per_second: 6_250.0,
        object_bytes: 25_000,
        ratio: 16.0,
    };

    #[test]
    fn a_thin_link_carries_compressed_pages_also_after_cuts_and_beside_other_lists() {
        let all = 1000.0 * 25_000.0 / 16.0;
        for disturbed in [false, true] {
            let (moved, _) = SLICES.lists(disturbed);
            assert!(moved < 1.3 * all, "{moved} bytes of {all}, disturbed: {disturbed}");
        }
        let small = ThinLink {
            object_bytes: 5_000,
            ..SLICES
        };
        let (moved, _) = small.lists(true);
        assert!(moved < 1.5 * all / 5.0, "{moved} bytes of small objects");
    }

    #[test]
    fn an_object_that_is_cut_off_again_and_again_is_told() {
        let mut size = PageSize::default();
        let cuts = (0..20).take_while(|_| {
            size.cut();
            !size.is_stuck()
        });
        assert!(cuts.count() < 10, "it is told soon");
        assert_eq!(size.limit(), 1);
        size.took(1, 25_000_000, None, Duration::from_secs(3000));
        assert!(!size.is_stuck(), "it has come");
    }

    #[test]
    fn what_does_not_compress_comes_in_small_pages() {
        let noise = ThinLink { ratio: 1.0, ..SLICES };
        let (moved, largest) = noise.lists(false);
        let all = 1000.0 * 25_000.0;
        assert!(moved < 1.2 * all, "{moved} bytes of {all}");
        assert!(largest <= 16, "{largest} objects of a page took too long");
    }

    proptest! {
        #[test]
        fn a_page_is_never_more_than_a_share_of_what_came_between_two_cuts(
            fates in proptest::collection::vec((any::<bool>(), 1..5000_u64), 1..200)
        ) {
            let mut size = PageSize::default();
            let (mut run, mut best) = (0, usize::MAX);
            for (cut, millis) in fates {
                let limit = size.limit();
                prop_assert!((1..=PAGE_MAX).contains(&limit));
                prop_assert!(limit <= best.max(run / PAGE_SHARE).max(1), "{limit} of {run}");
                if cut {
                    best = if run > 0 { (run / PAGE_SHARE).max(1) } else { (limit / 4).max(1) };
                    run = 0;
                    size.cut();
                } else {
                    run += limit;
                    // So small that no page of them is compressed.
                    size.took(limit, limit * 300, None, Duration::from_millis(millis));
                }
            }
        }
    }

    #[test]
    fn thin_links_get_pages_of_two_seconds_and_fast_ones_large_pages() {
        let mut size = PageSize::default();
        for _ in 0..4 {
            size.took(size.limit(), size.limit() * 10_000, None, Duration::from_millis(5));
        }
        assert_eq!(size.limit(), PAGE_MAX);
        // 50 kbit/s, objects of 10 KB that do not compress.
        for _ in 0..10 {
            let limit = size.limit();
            size.took(limit, limit * 10_000, None, Duration::from_millis(1600 * limit as u64));
        }
        assert_eq!(size.limit(), 1);
    }
}
