//! Owner of every task of the process: start, failure and shutdown.
//!
//! A group has a token that requests the end of its tasks, and child groups that end before it. A critical task that
//! ends without a stop, and any task that panics, makes [`TaskGroup::failed`] resolve. `main` waits for it and ends the
//! process, because a dead renewal task must never look like a held lease.
//!
//! ```
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! use yurt_runtime::TaskGroup;
//! let tasks = TaskGroup::new();
//! let token = tasks.token();
//! tasks.spawn_critical("renew-lease", async move { token.cancelled().await });
//! tasks.shutdown(std::time::Duration::from_secs(1)).await.unwrap();
//! # })
//! ```

use std::any::Any;
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

#[cfg(test)]
mod tests;

/// A set of tasks that start and stop together. Cheap to clone; clones are the same group.
///
/// # Panics
/// Starting a task outside of a tokio runtime panics.
#[derive(Clone, Debug)]
pub struct TaskGroup {
    shared: Arc<GroupShared>,
}

/// Tasks that did not end before the deadline of [`TaskGroup::shutdown`] and were dropped while running.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("tasks still running at the deadline: {}", names.join(", "))]
pub struct StillRunning {
    /// Their names, each once.
    pub names: Vec<&'static str>,
}

/// The task of [`TaskGroup::detached`] panicked or was dropped by a shutdown: there is no result.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("task {name} ended without a result")]
pub struct TaskLost {
    /// Name of the task.
    pub name: &'static str,
}

#[derive(Debug)]
struct GroupShared {
    parent: Option<TaskGroup>,
    /// Requests the end of the tasks.
    token: CancellationToken,
    /// Drops the tasks that did not end.
    kill: CancellationToken,
    /// Name of the first failed task, of this group or of a child.
    failed: watch::Sender<Option<&'static str>>,
    // Number of tasks running under each name, children's included. The watch lets shutdown wait for zero, and
    // announces nothing else, because a request has several tasks.
    running: Mutex<BTreeMap<&'static str, usize>>,
    count: watch::Sender<usize>,
}

/// Meaning of a task's end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Importance {
    /// Ending without a stop or panicking is a failure of the group.
    Critical,
    /// May end; panicking is a failure of the group.
    Normal,
    /// May end; a panic is logged.
    Isolated,
}

// === impl TaskGroup ===

impl TaskGroup {
    /// A group without tasks.
    #[must_use]
    pub fn new() -> Self {
        Self::with(None, CancellationToken::new(), CancellationToken::new())
    }

    /// A group that ends with `self` at the latest. Its failures are also failures of `self`, and the shutdown of
    /// `self` waits for its tasks.
    #[must_use]
    pub fn child(&self) -> Self {
        Self::with(
            Some(self.clone()),
            self.shared.token.child_token(),
            self.shared.kill.child_token(),
        )
    }

    fn with(parent: Option<TaskGroup>, token: CancellationToken, kill: CancellationToken) -> Self {
        let (failed, _) = watch::channel(None);
        let (count, _) = watch::channel(0);
        TaskGroup {
            shared: Arc::new(GroupShared {
                parent,
                token,
                kill,
                failed,
                running: Mutex::default(),
                count,
            }),
        }
    }

    /// Token that is cancelled when the tasks of this group should end.
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        self.shared.token.clone()
    }

    /// Starts a task that may end. A panic is a failure of the group.
    pub fn spawn(&self, name: &'static str, future: impl Future<Output = ()> + Send + 'static) {
        self.start(name, Importance::Normal, future);
    }

    /// Starts a task that must run until the token is cancelled; if it ends earlier the group has failed.
    pub fn spawn_critical(&self, name: &'static str, future: impl Future<Output = ()> + Send + 'static) {
        self.start(name, Importance::Critical, future);
    }

    /// Starts a task that works for one client only: its panic is logged and affects no other client.
    pub fn spawn_isolated(&self, name: &'static str, future: impl Future<Output = ()> + Send + 'static) {
        self.start(name, Importance::Isolated, future);
    }

    /// Runs `future` to completion even when the returned future is dropped. It is for writes, which must complete when
    /// the client hangs up. Starts immediately, not at the first poll.
    ///
    /// # Errors
    /// [`TaskLost`] when `future` panicked (logged, no failure of the group), or when the group was shut down before
    /// its end.
    pub fn detached<F>(
        &self,
        name: &'static str,
        future: F,
    ) -> impl Future<Output = Result<F::Output, TaskLost>> + use<F>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let (send, receive) = oneshot::channel();
        self.start(name, Importance::Isolated, async move {
            // The receiver is gone when the client hung up: then the result is not needed.
            let _ = send.send(future.await);
        });
        async move { receive.await.map_err(|_| TaskLost { name }) }
    }

    /// Resolves with the name of the first task that failed; never when none does.
    ///
    /// # Cancel safety
    /// Safe: a later call sees the same failure.
    pub async fn failed(&self) -> &'static str {
        let mut failed = self.shared.failed.subscribe();
        loop {
            let name = *failed.borrow_and_update();
            match name {
                Some(name) => return name,
                // `self` keeps the sender alive, so this waits without end and returns no error.
                None => drop(failed.changed().await),
            }
        }
    }

    /// Names of the running tasks, children's included, with the number of tasks under each.
    #[must_use]
    pub fn running(&self) -> Vec<(&'static str, usize)> {
        self.shared
            .running
            .lock()
            .iter()
            .map(|(name, count)| (*name, *count))
            .collect()
    }

    /// Requests the end of all tasks, children's included, and waits for them. Tasks still running after `deadline` are
    /// dropped at their next await.
    ///
    /// # Errors
    /// [`StillRunning`] names the tasks that were dropped.
    pub async fn shutdown(&self, deadline: Duration) -> Result<(), StillRunning> {
        self.shared.token.cancel();
        let mut count = self.shared.count.subscribe();
        let ended = tokio::time::timeout(deadline, count.wait_for(|running| *running == 0))
            .await
            .is_ok();
        if ended {
            return Ok(());
        }
        let names: Vec<_> = self.running().into_iter().map(|(name, _)| name).collect();
        warn!(?names, "Tasks did not end in time; dropping them");
        self.shared.kill.cancel();
        Err(StillRunning { names })
    }

    fn start(&self, name: &'static str, importance: Importance, future: impl Future<Output = ()> + Send + 'static) {
        self.start_boxed(name, importance, Box::pin(future));
    }

    /// Starts a task of one type, so that a program contains the runtime's code for tasks only once.
    fn start_boxed(&self, name: &'static str, importance: Importance, future: BoxFuture<'static, ()>) {
        let group = self.clone();
        let running = Running::enter(self, name);
        let mut future = AssertUnwindSafe(future).catch_unwind();
        let task = async move {
            let ended = tokio::select! {
                biased;
                ended = &mut future => ended,
                () = cancelled(&group.shared.kill) => Ok(()),
            };
            group.ended(name, importance, ended.err());
            // Its resources go first: a caller that waits for the task may need them (a file, a port).
            drop(future);
            drop(running);
        };
        // The one place that may spawn: everything else goes through a group.
        #[allow(clippy::disallowed_methods)]
        tokio::spawn(task);
    }

    fn ended(&self, name: &'static str, importance: Importance, panic: Option<Box<dyn Any + Send>>) {
        let asked = self.shared.token.is_cancelled();
        let failed = match (&panic, importance) {
            (Some(_), Importance::Isolated) => false,
            (Some(_), _) => true,
            (None, importance) => importance == Importance::Critical && !asked,
        };
        match panic {
            Some(panic) => error!(task = name, panic = panic_message(&*panic), "Task panicked"),
            None if failed => error!(task = name, "Critical task ended without a stop"),
            None => debug!(task = name, "Task ended"),
        }
        if failed {
            self.ancestry().for_each(|group| {
                group
                    .shared
                    .failed
                    .send_if_modified(|first| first.is_none() && first.replace(name).is_none());
            });
        }
    }

    /// This group, its parent, and so on.
    fn ancestry(&self) -> impl Iterator<Item = &TaskGroup> {
        std::iter::successors(Some(self), |group| group.shared.parent.as_ref())
    }
}

impl Default for TaskGroup {
    fn default() -> Self {
        Self::new()
    }
}

/// Counts one task in its group and all groups above, also when the runtime drops the task.
struct Running {
    group: TaskGroup,
    name: &'static str,
}

// === impl Running ===

impl Running {
    fn enter(group: &TaskGroup, name: &'static str) -> Self {
        for group in group.ancestry() {
            *group.shared.running.lock().entry(name).or_default() += 1;
            group.shared.count.send_if_modified(|count| {
                *count += 1;
                // No waiter needs further notifications.
                false
            });
        }
        Running {
            group: group.clone(),
            name,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for group in self.group.ancestry() {
            let mut running = group.shared.running.lock();
            if let Some(count) = running.get_mut(self.name) {
                *count -= 1;
                if *count == 0 {
                    running.remove(self.name);
                }
            }
            drop(running);
            group.shared.count.send_if_modified(|count| {
                *count -= 1;
                *count == 0
            });
        }
    }
}

/// Waits for a token in a task that mostly wakes up for something else. It enters the token's list of waiters once and
/// stays. [`CancellationToken::cancelled`] checks its entry there at every poll, under a lock that all tasks share.
///
/// # Cancel safety
/// Safe, but a new future for each wait loses the advantage.
pub async fn cancelled(token: &CancellationToken) {
    let mut place = pin!(token.cancelled());
    let mut waker: Option<Waker> = None;
    poll_fn(|cx| {
        if token.is_cancelled() {
            return Poll::Ready(());
        }
        if waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            return Poll::Pending;
        }
        waker = Some(cx.waker().clone());
        place.as_mut().poll(cx)
    })
    .await;
}

/// The text of a panic, for a log line.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&'static str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(no text)")
}
