//! Chooses the size of the next page from the results of earlier pages.
//!
//! Pure. Pages aim at about two seconds. On a thin link that alone is a trap. Servers compress only answers above 128
//! KiB, so a smaller page can take many times as long per object as a larger one. Slow pages would then become smaller
//! still. So pages are made large enough for compression as long as that proves to pay off.

use std::time::Duration;

/// Objects of the first page: few enough that a concurrent probe waits only briefly, even on a thin link.
const PAGE_FIRST: usize = 16;
/// Maximum objects of a page; client-go's number.
const PAGE_MAX: usize = 500;
/// Target duration of a page. Other traffic waits for one page at most, and probes time out after 3 s.
const PAGE_TAKES: Duration = Duration::from_secs(2);
/// Maximum growth factor from one page to the next.
const PAGE_GROWS: usize = 8;
/// Maximum share (1/n) of a page in the objects received since the last cut, because the next cut loses the page.
const PAGE_SHARE: usize = 8;
/// Uncompressed bytes of a page that servers compress: above 128 KiB, and a quarter more because objects differ in
/// size.
const COMPRESSED_ABOVE: usize = 160 << 10;
/// Maximum duration of a page that is large only to be compressed.
const COMPRESSED_TAKES: Duration = Duration::from_secs(8);
/// Compressed pages per [`PAGE_TAKES`] below which a link is thin. On other links plain pages lose less by a cut.
const THIN: usize = 4;
/// Smaller pages before a compressed one is tried again; doubles each time that it does not pay off.
const TRY_AGAIN_AFTER: u32 = 8;
const TRY_AGAIN_MAX: u32 = 1 << 16;
/// Cuts in a row of a single object after which the link cannot carry it.
const STUCK_AFTER: u32 = 3;

/// Size of the next page.
#[derive(Debug)]
pub struct PageSize {
    limit: usize,
    /// Objects received since the last cut.
    run: usize,
    /// Maximum page, set by the first cut.
    ceiling: Option<usize>,
    /// Objects that servers compress together; unknown before the first page.
    compressed: Option<usize>,
    /// True if compressed pages pay off as far as known.
    pays: bool,
    /// Smaller pages before compression is tried again.
    left: u32,
    patience: u32,
    /// Cuts in a row in the middle of a page of one object.
    stuck: u32,
    /// Objects still to come, if the server sends the number.
    rest: Option<usize>,
    /// True if the link carries only a few compressed pages in the time of one page.
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
    /// Number of objects to request.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// True if the next object is too large to arrive between two cuts. The API has no ranges, so the list waits until
    /// the link improves.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        self.stuck >= STUCK_AFTER
    }

    /// Records a page of `objects` with `bytes` before compression that took `elapsed`. `rest`: objects after it, if
    /// the server sends the number.
    pub fn took(&mut self, objects: usize, bytes: usize, rest: Option<usize>, elapsed: Duration) {
        self.rest = rest;
        self.run = self.run.saturating_add(objects);
        self.stuck = 0;
        if objects > 0 && bytes > 0 {
            self.compressed = Some(COMPRESSED_ABOVE.div_ceil((bytes / objects).max(1)));
        }
        if let Some(compressed) = self.compressed.filter(|compressed| objects >= *compressed) {
            // Time of the smallest compressed page.
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

    /// Records that the link broke in the middle of a page.
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

    /// Records that the list begins again from its first page.
    pub fn begins_again(&mut self) {
        self.stuck = 0;
    }

    fn does_not_pay(&mut self) {
        (self.pays, self.left) = (false, self.patience);
        self.patience = (self.patience * 2).min(TRY_AGAIN_MAX);
    }

    /// Returns `limit`, or the size of a compressed page. A small remainder joins that page instead of becoming a plain
    /// one.
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
        /// Ratio of plain bytes to compressed bytes.
        ratio: f64,
    }

    impl ThinLink {
        fn bytes_of(&self, objects: usize) -> f64 {
            let plain = (objects * self.object_bytes) as f64;
            let headers = 400.0;
            headers + if plain > 131_072.0 { plain / self.ratio } else { plain }
        }

        /// Returns the bytes that a list of 1,000 objects moves, and the objects of its largest page.
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
        assert!(cuts.count() < 10, "it is reported soon");
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
