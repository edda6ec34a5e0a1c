//! Wait for the signal that ends this process.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{info, warn};

/// Exit code after a second signal: what a shell reports for a process killed by SIGINT.
const ABORTED: i32 = 130;

/// Resolves with the signal's name on the first SIGTERM or SIGINT. The second one ends the process immediately, without
/// flushing anything. It is the way out when an orderly shutdown hangs.
///
/// # Errors
/// When the kernel refuses to install the handlers.
pub async fn wait_for_signal() -> std::io::Result<&'static str> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let name = next(&mut terminate, &mut interrupt).await;
    info!(signal = name, "Shutting down; a second signal aborts");
    // Belongs to no group on purpose: it must survive the shutdown of all groups.
    #[allow(clippy::disallowed_methods)]
    tokio::spawn(async move {
        let name = next(&mut terminate, &mut interrupt).await;
        warn!(signal = name, "Second signal received; aborting");
        std::process::exit(ABORTED);
    });
    Ok(name)
}

async fn next(terminate: &mut Signal, interrupt: &mut Signal) -> &'static str {
    tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    }
}
