//! Rule for the names of metrics.

/// Returns the `# TYPE` lines of a scrape whose name ends in `_total` although it is no counter, or the reverse.
#[must_use]
pub fn misnamed_counters(scrape: &str) -> Vec<&str> {
    let is_misnamed = |line: &&str| {
        let kind = line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' '));
        kind.is_some_and(|(name, kind)| name.ends_with("_total") != (kind == "counter"))
    };
    scrape.lines().filter(is_misnamed).collect()
}
