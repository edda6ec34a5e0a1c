//! Wait for the signal that ends this process.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tracing::{info, warn};

/// Exit code after a second signal: what a shell reports for a process killed by SIGINT.
const ABORTED: i32 = 130;

/// Signals that end this process: SIGTERM and SIGINT.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

// === impl Signals ===

impl Signals {
    /// Installs the handlers. Call it first: the kernel withholds both signals from the first process of a container
    /// for as long as it has none.
    ///
    /// # Errors
    /// When the kernel refuses to install the handlers.
    pub fn install() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Runs `start`. A signal before its end ends the process at once, with success: a start has nothing to store, and
    /// what it writes survives a kill.
    pub async fn during<T>(mut self, start: impl Future<Output = T>) -> (Self, T) {
        let (done, is_done) = oneshot::channel::<()>();
        // Ends before this function does. A task of its own, because parts of a start block their thread.
        #[allow(clippy::disallowed_methods)]
        let watching = tokio::spawn(async move {
            tokio::select! {
                name = self.next() => {
                    info!(signal = name, "Stopped before the start was complete");
                    std::process::exit(0)
                }
                _ = is_done => self,
            }
        });
        let started = start.await;
        drop(done);
        let signals = watching.await.expect("the task does not panic, and nothing aborts it");
        (signals, started)
    }

    /// Resolves with the signal's name on the first one. The second one ends the process immediately, without flushing
    /// anything. It is the way out when an orderly shutdown hangs.
    pub async fn wait(mut self) -> &'static str {
        let name = self.next().await;
        info!(signal = name, "Shutting down; a second signal aborts");
        // Belongs to no group on purpose: it must survive the shutdown of all groups.
        #[allow(clippy::disallowed_methods)]
        tokio::spawn(async move {
            let name = self.next().await;
            warn!(signal = name, "Second signal received; aborting");
            std::process::exit(ABORTED);
        });
        name
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// As [`Signals::wait`], for a program that has no start to wait for.
///
/// # Errors
/// When the kernel refuses to install the handlers.
pub async fn wait_for_signal() -> io::Result<&'static str> {
    Ok(Signals::install()?.wait().await)
}
