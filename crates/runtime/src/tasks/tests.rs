//! Failures of tasks, and waits of groups for their tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Context;

use super::*;

const SOON: Duration = Duration::from_secs(10);

#[tokio::test]
async fn critical_task_that_ends_unasked_fails_the_group_and_its_parents() {
    let tasks = TaskGroup::new();
    let child = tasks.child();
    child.spawn_critical("renew", async {});
    assert_eq!(child.failed().await, "renew");
    assert_eq!(tasks.failed().await, "renew");
}

#[tokio::test]
async fn critical_task_that_ends_when_asked_is_fine() {
    let tasks = TaskGroup::new();
    let token = tasks.token();
    tasks.spawn_critical("renew", async move { token.cancelled().await });
    assert_eq!(tasks.running(), [("renew", 1)]);
    assert_eq!(tasks.shutdown(SOON).await, Ok(()));
    assert!(tasks.failed().now_or_never().is_none());
    assert!(tasks.running().is_empty());
}

#[tokio::test]
async fn panic_fails_the_group_unless_isolated() {
    let tasks = TaskGroup::new();
    tasks.spawn_isolated("client", async { panic!("one client's bug") });
    tasks.spawn("quiet", async {});
    tasks
        .shared
        .count
        .subscribe()
        .wait_for(|count| *count == 0)
        .await
        .unwrap();
    assert!(tasks.failed().now_or_never().is_none());
    tasks.spawn("loud", async { panic!("ours") });
    assert_eq!(tasks.failed().await, "loud");
}

#[tokio::test(start_paused = true)]
async fn shutdown_drops_tasks_that_ignore_it_and_names_them() {
    let tasks = TaskGroup::new();
    let dropped = Arc::new(AtomicBool::new(false));
    let flag = SetOnDrop(dropped.clone());
    tasks.child().spawn("deaf", async move {
        let _flag = flag;
        std::future::pending::<()>().await;
    });
    assert_eq!(tasks.shutdown(SOON).await, Err(StillRunning { names: vec!["deaf"] }));
    tasks
        .shared
        .count
        .subscribe()
        .wait_for(|count| *count == 0)
        .await
        .unwrap();
    assert!(dropped.load(Ordering::SeqCst));
}

#[tokio::test]
async fn shutdown_of_a_child_leaves_the_parent_running() {
    let tasks = TaskGroup::new();
    let child = tasks.child();
    let token = child.token();
    child.spawn_critical("watch", async move { token.cancelled().await });
    child.shutdown(SOON).await.unwrap();
    assert!(child.token().is_cancelled() && !tasks.token().is_cancelled());
    assert!(tasks.failed().now_or_never().is_none());
}

#[tokio::test]
async fn detached_work_is_finished_after_the_caller_hung_up() {
    let tasks = TaskGroup::new();
    let (go, wait) = oneshot::channel::<()>();
    let done = Arc::new(AtomicBool::new(false));
    let flag = done.clone();
    let caller = tasks.detached("write", async move {
        wait.await.unwrap();
        flag.store(true, Ordering::SeqCst);
    });
    drop(caller);
    go.send(()).unwrap();
    tasks.shutdown(SOON).await.unwrap();
    assert!(done.load(Ordering::SeqCst));
}

#[tokio::test]
async fn detached_work_gives_its_result_or_says_that_it_is_lost() {
    let tasks = TaskGroup::new();
    assert_eq!(tasks.detached("sum", async { 1 + 1 }).await, Ok(2));
    let lost = tasks.detached("bug", async { panic!("bug in a write") });
    assert_eq!(lost.await, Err::<(), _>(TaskLost { name: "bug" }));
}

struct SetOnDrop(Arc<AtomicBool>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Ends immediately; when dropped, it records the number of running tasks of its group.
struct Holds(TaskGroup, Arc<Mutex<Option<usize>>>);

impl Future for Holds {
    type Output = ();

    fn poll(self: std::pin::Pin<&mut Self>, _: &mut std::task::Context<'_>) -> std::task::Poll<()> {
        std::task::Poll::Ready(())
    }
}

impl Drop for Holds {
    fn drop(&mut self) {
        *self.1.lock() = Some(self.0.running().len());
    }
}

#[tokio::test]
async fn a_task_runs_until_what_it_holds_is_dropped() {
    let (tasks, seen) = (TaskGroup::new(), Arc::default());
    tasks.spawn("holder", Holds(tasks.clone(), Arc::clone(&seen)));
    assert_eq!(tasks.shutdown(SOON).await, Ok(()));
    assert_eq!(*seen.lock(), Some(1), "a shutdown must wait until the task is dropped");
}

/// Counts how often it was woken.
#[derive(Default)]
struct Bell(AtomicUsize);

impl std::task::Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn whoever_waits_for_a_token_is_woken_by_its_last_waker() {
    let (token, bells) = (CancellationToken::new(), [(); 2].map(|()| Arc::<Bell>::default()));
    let mut waits = pin!(cancelled(&token));
    for bell in [&bells[0], &bells[0], &bells[1], &bells[1]] {
        let waker = Waker::from(bell.clone());
        assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    token.cancel();
    assert_eq!(bells.each_ref().map(|bell| bell.0.load(Ordering::SeqCst)), [0, 1]);
    assert!(waits.now_or_never().is_some());
}
