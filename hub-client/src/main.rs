//! The `yurthub` binary: reads flags, starts the hub, and stops it on a signal.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::Arc;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use yurt_hub_client::commands::filters::FiltersCommand;
use yurt_hub_client::config::{Config, Flags, proxy_variables};
use yurt_hub_client::{Hub, failpoints};
use yurt_runtime::http::server::Inherited;
use yurt_runtime::service_manager::{ServiceManager, ServiceState};
use yurt_runtime::shutdown::Signals;
use yurt_runtime::{TaskGroup, exit, files, log, memory, tls};

/// Worker threads; a hub does I/O rather than computation.
const WORKERS: usize = 2;
/// Stack size of each thread, bytes. Untouched pages cost nothing. Builds without optimization touch some 600 KiB for a
/// request that passes to the cloud.
const STACK: usize = if cfg!(debug_assertions) { 4 << 20 } else { 1 << 20 };
/// Exit code for an invalid command line, as usual for Unix programs.
const BAD_FLAGS: u8 = 2;

// Without a doc comment, --help begins with that of the hub's flags.
#[derive(Debug, Parser)]
#[command(
    name = "yurthub",
    version,
    max_term_width = 120,
    args_override_self = true,
    args_conflicts_with_subcommands = true
)]
struct CommandLine {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    flags: Flags,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Remove the address for pods and its firewall rules from this node. Takes the hub's flags. Stop the hub before:
    /// systemctl disable --now yurthub.socket yurthub.service.
    Cleanup(Box<Flags>),
    /// Explain the data filters. These commands run without a hub.
    #[command(subcommand)]
    Filters(FiltersCommand),
}

fn main() -> ExitCode {
    memory::limit_free();
    tls::install_crypto_provider();
    // This changes the environment, so it must precede the threads.
    let inherited = Inherited::from_env();
    if let Err(error) = yurt_runtime::failpoints::check(failpoints::NAMES) {
        return bad_flags(&error.to_string());
    }
    let config = match CommandLine::try_parse() {
        Ok(CommandLine {
            command: Some(Command::Cleanup(flags)),
            ..
        }) => return cleanup(&flags),
        Ok(CommandLine {
            command: Some(Command::Filters(command)),
            ..
        }) => return print(command.run()),
        Ok(line) => match line.flags.check() {
            Ok(config) => config,
            Err(error) => return bad_flags(&error.to_string()),
        },
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => error.exit(),
        Err(error) => return bad_flags(&one_line(&error)),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .thread_stack_size(STACK)
        .enable_all()
        .build();
    match runtime {
        Ok(runtime) => runtime.block_on(run(config, inherited)),
        Err(error) => exit::fail(format!("failed to start threads: {error}")),
    }
}

async fn run(config: Config, inherited: io::Result<Inherited>) -> ExitCode {
    let signals = match Signals::install() {
        Ok(signals) => signals,
        Err(error) => return exit::fail(format!("failed to handle signals: {error}")),
    };
    // A failed start prints exactly one line.
    let log = log::init_held(config.verbosity);
    let inherited = match inherited {
        Ok(inherited) => inherited,
        Err(error) => return exit::fail(error),
    };
    if !config.without_effect.is_empty() {
        tracing::warn!(flags = ?config.without_effect, "Flags have no effect");
    }
    let variables = proxy_variables::set(|name| std::env::var(name).ok());
    if !variables.is_empty() {
        tracing::warn!(?variables, "Variables have no effect: the hub uses no HTTP proxy");
    }
    // Each connection uses an open file.
    if let Err(error) = files::raise() {
        tracing::warn!(%error, "Failed to raise the limit of open files");
    }
    let (signals, hub) = signals
        .during(Hub::start_after(config, inherited, || log.release()))
        .await;
    let hub = match hub {
        Ok(hub) => hub,
        Err(error) => return exit::fail(error),
    };
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "Started");
    let (manager, notifications) = (service_manager(), TaskGroup::new());
    manager.notify(ServiceState::Ready);
    manager.watch(&notifications);
    let failed = tokio::select! {
        _ = signals.wait() => false,
        task = hub.failed() => {
            tracing::error!(task, "A critical task ended; stopping");
            true
        }
    };
    manager.notify(ServiceState::Stopping);
    // Tasks that did not end are logged.
    let _ = hub.stop().await;
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn service_manager() -> Arc<ServiceManager> {
    let connected = ServiceManager::from_env();
    let manager = connected.unwrap_or_else(|error| {
        tracing::warn!(%error, "Failed to connect to the service manager");
        ServiceManager::default()
    });
    Arc::new(manager)
}

fn cleanup(flags: &Flags) -> ExitCode {
    let network = match flags.network() {
        Ok(network) => network,
        Err(error) => return bad_flags(&error.to_string()),
    };
    match network.cleanup() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::fail(error),
    }
}

/// Prints the result of a command.
fn print(result: Result<String, String>) -> ExitCode {
    let written = result.and_then(|text| {
        io::stdout()
            .write_all(text.as_bytes())
            .map_err(|error| error.to_string())
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::fail(error),
    }
}

fn bad_flags(message: &str) -> ExitCode {
    // `fail` prints the line; only the exit code differs here.
    let _ = exit::fail(message);
    ExitCode::from(BAD_FLAGS)
}

/// Returns the first paragraph of clap's message as one line: the error, and the arguments that it is about. The rest
/// is usage.
fn one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let error = text.lines().map(str::trim).take_while(|line| !line.is_empty());
    let error = error.collect::<Vec<_>>().join(" ");
    format!("{}; see --help", error.trim_start_matches("error: "))
}
