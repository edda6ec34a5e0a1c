//! Short work on many items, divided among the cores.

use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::thread;

/// Minimum items for each thread: a thread takes some 50 µs to start, an item as many to parse or encode.
const ITEMS_MIN: usize = 64;
/// Maximum number of threads, the calling one included.
const THREADS_MAX: usize = 4;

/// The results of `run` for `items`, in their order. The calling thread does its share, and all of it if there are few
/// items, one core, or no further threads. Returns when all is done.
pub fn map<T: Sync, R: Send>(items: &[T], run: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = (items.len() / ITEMS_MIN).min(THREADS_MAX);
    if threads < 2 {
        return items.iter().map(run).collect();
    }
    let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    map_on(threads.min(cores), items, &run)
}

fn map_on<T: Sync, R: Send>(threads: usize, items: &[T], run: &(impl Fn(&T) -> R + Sync)) -> Vec<R> {
    let share = items.len().div_ceil(threads.max(1)).max(1);
    let (own, others) = items.split_at(share.min(items.len()));
    let all = |items: &[T]| -> Vec<R> { items.iter().map(run).collect() };
    thread::scope(|scope| {
        let spawn = |items| {
            (
                items,
                thread::Builder::new().spawn_scoped(scope, move || all(items)).ok(),
            )
        };
        let others: Vec<_> = others.chunks(share).map(spawn).collect();
        let mut results = all(own);
        for (items, thread) in others {
            results.extend(match thread {
                Some(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
                None => all(items),
            });
        }
        results
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_items() {
        for len in [0, 1, 63, 64, 127, 128, 1000] {
            let items: Vec<usize> = (0..len).collect();
            let want: Vec<usize> = items.iter().map(|item| item * 2).collect();
            assert_eq!(map(&items, |item| item * 2), want);
            for threads in 0..5 {
                assert_eq!(map_on(threads, &items, &|item| item * 2), want, "{threads}");
            }
        }
    }

    #[test]
    fn every_thread_takes_a_share() {
        let seen = map_on(3, &[(); 30], &|()| thread::current().id());
        let distinct: std::collections::HashSet<_> = seen.iter().collect();
        assert_eq!((distinct.len(), seen[0]), (3, thread::current().id()));
    }

    #[test]
    #[should_panic(expected = "an item")]
    fn panic_of_an_item_reaches_the_caller() {
        map_on(2, &[1, 2, 3, 4], &|item| assert!(*item < 4, "an item"));
    }
}
