//! Entry point: flags, build, run, exit code.

use std::io::Write as _;
use std::process::ExitCode;

use yurt_coordinator::config::{Config, FlagError};
use yurt_coordinator::{Files, StartError, build};
use yurt_runtime::shutdown::Signals;
use yurt_runtime::{exit, failpoints, files, log, tls};

/// Number of threads that poll requests. An edge node has few cores, and each thread costs memory.
const WORKER_THREADS: usize = 2;
/// Stack size of each thread, bytes. Untouched pages cost nothing. Builds without optimization have far larger frames.
const STACK_BYTES: usize = if cfg!(debug_assertions) { 4 << 20 } else { 1 << 20 };
/// Maximum number of threads for commits of pool data, for large bodies, and for files that are read again. At a time
/// one large body of clients and one of the feed is worked on. Six kinds of files may wait for a disk that hangs.
const BLOCKING_THREADS: usize = 12;
/// Exit code for a bad command line.
const BAD_FLAGS: u8 = 2;

fn main() -> ExitCode {
    let config = match Config::parse(std::env::args_os()) {
        Ok(config) => config,
        Err(FlagError::Help(text)) => {
            // A closed pipe is the reader's choice.
            let _ = std::io::stdout().write_all(text.as_bytes());
            return ExitCode::SUCCESS;
        }
        Err(FlagError::Bad(line)) => {
            let _ = exit::fail(line);
            return ExitCode::from(BAD_FLAGS);
        }
    };
    if let Err(error) = failpoints::check(&[]) {
        let _ = exit::fail(error);
        return ExitCode::from(BAD_FLAGS);
    }
    tls::install_crypto_provider();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKER_THREADS)
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_stack_size(STACK_BYTES)
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return exit::fail(format!("cannot start threads: {error}")),
    };
    runtime.block_on(run(config))
}

async fn run(config: Config) -> ExitCode {
    let signals = match Signals::install() {
        Ok(signals) => signals,
        Err(error) => return exit::fail(format!("cannot handle signals: {error}")),
    };
    match start(config, signals).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::fail(error),
    }
}

async fn start(config: Config, signals: Signals) -> Result<(), StartError> {
    // A failing start prints one line and nothing else, unless it may have to wait for others.
    let log = log::init_held(config.log.verbosity);
    if config.etcd.is_used() {
        log.release();
    }
    // Each connection is an open file.
    if let Err(error) = files::raise() {
        tracing::warn!(%error, "Failed to raise the limit of open files");
    }
    let (signals, coordinator) = signals.during(build(config)).await;
    let coordinator = coordinator?;
    log.release();
    announce(coordinator.files());
    let stop = async {
        let _ = signals.wait().await;
    };
    coordinator.run(stop).await
}

/// Prints the paths of the generated files for a first user.
fn announce(files: &Files) {
    let mut out = std::io::stdout();
    if let Some(ca) = &files.ca {
        let _ = writeln!(
            out,
            "certificate authority: {} (generated; for trying it out)",
            ca.display()
        );
    }
    if let Some(kubeconfig) = &files.admin_kubeconfig {
        let _ = writeln!(out, "admin kubeconfig: {}", kubeconfig.display());
    }
    let _ = out.flush();
}
