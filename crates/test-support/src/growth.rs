//! Growth of work with its input, for tests that bound work and have to hold on a loaded machine.

use rustix::time::{ClockId, clock_gettime};

/// Upper bound of the growth of linear work for four times the input, with room for caches and noise. Linear work grows
/// four times; work that compares each part with each other part grows sixteen times.
pub const LINEAR: f64 = 9.0;

/// Runs of each size; the fastest one counts.
const RUNS: usize = 3;
/// Minimum time in seconds that counts; less is noise.
const LEAST: f64 = 0.001;

/// Ratio of the CPU time of `work` for an input of `4 * n` to that for one of `n`. Time of other threads and processes
/// does not count.
pub fn growth<T>(n: usize, input: impl Fn(usize) -> T, work: impl Fn(T)) -> f64 {
    let seconds = |n: usize| {
        let run = |_| {
            let input = input(n);
            let before = cpu_seconds();
            work(input);
            cpu_seconds() - before
        };
        (0..RUNS).map(run).fold(f64::INFINITY, f64::min).max(LEAST)
    };
    let once = seconds(n);
    seconds(4 * n) / once
}

/// CPU time of this thread so far.
#[must_use]
pub fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparing_all_with_all_is_told_from_going_once_over_all() {
        let input = |n: usize| (0..n).collect::<Vec<usize>>();
        let once = |list: Vec<usize>| assert!(list.iter().sum::<usize>() > 0);
        assert!(growth(200_000, input, once) < LINEAR);
        let all_with_all = |list: Vec<usize>| {
            let found = list
                .iter()
                .filter(|one| list.iter().any(|other| *other == **one + 1_000_000));
            assert_eq!(found.count(), 0);
        };
        assert!(growth(1_000, input, all_with_all) > LINEAR);
    }
}
