//! Entry point: flags, build, run, exit code.

use std::io::Write as _;
use std::process::ExitCode;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use yurt_coordinator::config::{Config, FlagError};
use yurt_coordinator::{Files, StartError, build};
use yurt_runtime::{exit, log, shutdown, tls};

/// Threads that poll requests. An edge node has few cores, and each thread costs memory.
const WORKER_THREADS: usize = 2;
/// Stack of each thread; nothing here recurses deeply.
const STACK_BYTES: usize = 512 << 10;
/// Threads for commits of pool data; one at a time runs.
const BLOCKING_THREADS: usize = 4;
/// Open files beside those of connections: the store, certificates, the log.
const OTHER_FILES: u64 = 256;
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
    match runtime.block_on(start(config)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::fail(error),
    }
}

async fn start(config: Config) -> Result<(), StartError> {
    // A start that fails says so in one line and nothing else, unless it may have to wait for others.
    let log = log::init_held(config.verbosity);
    if config.etcd.is_used() {
        log.release();
    }
    let connections = config.max_connections.get();
    let coordinator = build(config).await?;
    log.release();
    raise_open_files(connections);
    announce(coordinator.files());
    let stop = async {
        if let Err(error) = shutdown::wait_for_signal().await {
            tracing::error!(%error, "Cannot wait for signals, stopping");
        }
    };
    coordinator.run(stop).await
}

/// Tells a first user where the generated files are.
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

/// Each connection is an open file, and most processes begin with a limit of 1,024 although they may have more.
fn raise_open_files(connections: usize) {
    let wanted = u64::try_from(connections)
        .unwrap_or(u64::MAX)
        .saturating_add(OTHER_FILES);
    let limit = getrlimit(Resource::Nofile);
    let (raised, is_enough) = raised(limit.current, limit.maximum, wanted);
    if let Some(current) = raised {
        let maximum = limit.maximum;
        let new = Rlimit {
            current: Some(current),
            maximum,
        };
        if let Err(error) = setrlimit(Resource::Nofile, new) {
            tracing::warn!(%error, wanted, "The limit of open files cannot be raised");
        }
    }
    if !is_enough {
        tracing::warn!(
            wanted,
            hard_limit = limit.maximum,
            "--max-connections is above the hard limit of open files (RLIMIT_NOFILE); further connections will wait"
        );
    }
}

/// The soft limit to set, if it has to change, and whether it is as much as is `wanted`. No number is no limit.
fn raised(soft: Option<u64>, hard: Option<u64>, wanted: u64) -> (Option<u64>, bool) {
    let granted = hard.map_or(wanted, |hard| hard.min(wanted));
    let is_enough = granted == wanted || soft.is_none_or(|soft| soft >= wanted);
    (soft.filter(|soft| *soft < granted).map(|_| granted), is_enough)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_of_open_files_is_raised_as_far_as_it_is_needed_and_allowed() {
        assert_eq!(raised(Some(1_024), Some(4_096), 3_256), (Some(3_256), true));
        assert_eq!(raised(Some(1_024), None, 3_256), (Some(3_256), true));
        assert_eq!(raised(Some(1_024), Some(2_048), 3_256), (Some(2_048), false));
        assert_eq!(raised(Some(65_536), Some(65_536), 3_256), (None, true), "never lowered");
        assert_eq!(raised(None, None, 3_256), (None, true));
    }
}
