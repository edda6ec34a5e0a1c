//! Address of the hub for this node's pods: the same on every node, on a dummy interface of the hub, or on loopback if
//! the kernel has no such interfaces. Also the firewall's rules for it (`--enable-iptables`).
//!
//! `rules` computes the changes; the programs `ip`, `iptables` and `nft` make them. Everything is idempotent, and only
//! the hub's own interface, address, chain and table are touched. `yurthub cleanup` removes them; a stop of the hub
//! does not, so that pods keep the address over a restart.

mod rules;
#[cfg(test)]
mod tests;

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Child, ChildStderr, ChildStdout, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use yurt_runtime::TaskGroup;

use crate::failures::Failures;
use rules::{Call, LOOPBACK, Link};

/// Failure key: pods cannot reach the hub, or not at the address of the flags.
pub(crate) const ADDRESS: &str = "address for pods";
/// Failure key: the firewall's rules for pods are missing, or are not those of iptables.
pub(crate) const FIREWALL: &str = "firewall for pods";

/// Interval at which the network is compared with the desired one, as upstream does.
const ENSURE_EVERY: Duration = Duration::from_secs(60);
/// First and longest pause between attempts to make an address that a start could not make. The pauses double.
const RETRY: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(30 * 60));

/// Maximum time for one program; it is killed then. Longer than iptables waits for its lock.
const PROGRAM_MAX: Duration = Duration::from_secs(10);
/// Seconds that iptables waits for the lock of other programs.
const LOCK_SECONDS: &str = "5";

/// Exit code of iptables without a resource: also if it cannot open the file of its lock, or the kernel refuses
/// nftables.
const NO_RESOURCE: i32 = 4;
/// Part of its message while another program holds the lock.
const LOCK_IS_HELD: &str = "holding the xtables lock";
/// Parts of its message on a kernel without its tables: of legacy iptables, and of nft's.
const NO_TABLES: [&str; 3] = [
    "do you need to insmod?",
    "initialize nft: Protocol not supported",
    "rule set generation id: Invalid argument",
];

/// Desired network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeNetwork {
    /// Name of the dummy interface.
    pub interface: String,
    /// Its address.
    pub address: IpAddr,
    /// Ports of the proxy.
    pub ports: [u16; 2],
    /// True if the firewall must accept connections to these ports.
    pub accepts: bool,
}

/// Interface that has the address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressInterface {
    /// The dummy interface.
    Dummy,
    /// Loopback, with the reason why there is no dummy interface.
    Loopback(String),
}

/// The network that was made.
#[derive(Debug, PartialEq, Eq)]
pub struct Made {
    /// Interface that has the address.
    pub interface: AddressInterface,
    /// The reason why the firewall's rules are missing or are not those of iptables.
    pub firewall: Result<(), String>,
}

/// A change failed; the text says which, and the alternative.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NetworkError(String);

/// Failure of a program.
#[derive(Debug)]
enum ProgramError {
    /// The program is not installed.
    Missing,
    /// Another program held its lock: the call and its message.
    Busy(String),
    /// The kernel lacks its tables, so there are no rules of it: the call and its message.
    NoTables(String),
    /// It could not run, or failed: the call and its message.
    Failed(String),
}

/// Runs programs; tests have one of their own.
trait Programs {
    /// Returns the program's output. `input` is its standard input.
    fn run(&self, program: &str, call: &[String], input: &str) -> Result<String, ProgramError>;
}

/// The programs of this machine.
struct Installed;

/// Checks the address of `--dummy-if-ip`: upstream's range for IPv4, any for IPv6.
///
/// # Errors
/// The permitted range.
pub fn check_address(address: IpAddr) -> Result<(), String> {
    let IpAddr::V4(v4) = address else { return Ok(()) };
    let [a, b, c, _] = v4.octets();
    let is_taken = c == 31 || v4 == Ipv4Addr::new(169, 254, 1, 1);
    match (a, b) == (169, 254) && !is_taken {
        true => Ok(()),
        false => Err(format!(
            "{v4} must be in 169.254.0.0/16, and neither in 169.254.31.0/24 nor 169.254.1.1, which network plugins use"
        )),
    }
}

// === impl NodeNetwork ===

impl NodeNetwork {
    /// Makes the network as desired. Blocks for a few short commands.
    ///
    /// # Errors
    /// [`NetworkError`]; the address is not usable then.
    pub fn ensure(&self) -> Result<Made, NetworkError> {
        self.ensure_with(&Installed)
    }

    /// Removes everything that [`Self::ensure`] makes. Blocks for a few short commands.
    ///
    /// # Errors
    /// All changes that failed.
    pub fn cleanup(&self) -> Result<(), NetworkError> {
        self.cleanup_with(&Installed)
    }

    /// Repeats [`Self::ensure`] every minute, because other programs may remove the interface or the rules.
    pub(crate) fn keep(self, tasks: &TaskGroup, failures: Failures) {
        let stop = tasks.token();
        tasks.spawn_critical("keep-node-network", async move {
            while stop
                .run_until_cancelled(tokio::time::sleep(ENSURE_EVERY))
                .await
                .is_some()
            {
                let own = self.clone();
                let ensuring = tokio::task::spawn_blocking(move || own.ensure());
                let Some(ensured) = stop.run_until_cancelled(ensuring).await else {
                    return;
                };
                match ensured {
                    Ok(ensured) => tell(&failures, ensured),
                    Err(error) => tracing::warn!(%error, "Failed to check the node's network for pods"),
                }
            }
        });
    }

    /// Repeats [`Self::ensure`] after a start without the address. Once it succeeds the hub ends, and its service
    /// manager starts it again: ports, filters and the certificate for pods depend on the address. `failed` records the
    /// reasons.
    pub(crate) fn retry(self, tasks: &TaskGroup, failed: impl Fn(String) + Send + Sync + 'static) {
        let stop = tasks.token();
        tasks.spawn_critical("make-node-network", async move {
            let ensure = || {
                let own = self.clone();
                let ensuring = tokio::task::spawn_blocking(move || own.ensure());
                async move { ensuring.await.map_err(|error| NetworkError(error.to_string()))? }
            };
            let made = until_made(ensure, |error| failed(error.to_string()));
            if stop.run_until_cancelled(made).await.is_some() {
                tracing::warn!(address = %self.address, "Made the address for pods; starting again");
            }
        });
    }

    fn ensure_with(&self, programs: &dyn Programs) -> Result<Made, NetworkError> {
        let interface = self.ensure_address(programs)?;
        // The address works unless the firewall drops.
        let firewall = if self.accepts {
            self.ensure_rules(programs)
        } else {
            Ok(())
        };
        Ok(Made { interface, firewall })
    }

    fn ensure_address(&self, programs: &dyn Programs) -> Result<AddressInterface, NetworkError> {
        let name = &self.interface;
        let present = link(programs, name);
        let made = ip(programs, &self.link_changes(present.as_ref()));
        let Err(why) = made else {
            return Ok(AddressInterface::Dummy);
        };
        let loopback = link(programs, LOOPBACK).unwrap_or_default();
        match ip(programs, &self.loopback_changes(&loopback)) {
            Ok(()) => Ok(AddressInterface::Loopback(why)),
            Err(on_loopback) => Err(NetworkError(format!(
                "no dummy interface {name} with {} ({why}; on {LOOPBACK}: {on_loopback}): give the hub CAP_NET_ADMIN and \
                 iproute2, or start with --enable-dummy-if=false and an address of an existing interface in \
                 --bind-proxy-address if pods shall reach the hub",
                self.address
            ))),
        }
    }

    /// Sets the rules of iptables, or the table of nft if iptables is missing or fails. A kernel may lack what the
    /// installed iptables needs.
    fn ensure_rules(&self, programs: &dyn Programs) -> Result<(), String> {
        let iptables = self.iptables();
        let listed = programs.run(iptables, &list(), "");
        let made = listed.and_then(|present| all(programs, iptables, &waiting(self.iptables_changes(&present))));
        let Err(error) = made else {
            return self.remove_table(programs);
        };
        let why = error.text(iptables);
        if let ProgramError::Busy(_) = error {
            // A table of nft would last until the next attempt only.
            return Err(why);
        }
        self.ensure_table(programs).map_err(|nft| format!("{why}, and {nft}"))?;
        match error {
            ProgramError::Missing => Ok(()),
            _ => Err(format!("nft has the rules, because iptables failed: {why}")),
        }
    }

    fn ensure_table(&self, programs: &dyn Programs) -> Result<(), String> {
        let present = programs.run("nft", &self.nft_list(), "");
        if present.is_ok_and(|present| self.is_nft_table(&present)) {
            return Ok(());
        }
        let made = programs.run("nft", &["-f".to_owned(), "-".to_owned()], &self.nft_script());
        made.map(drop).map_err(|error| error.text("nft"))
    }

    /// Removes the table of nft. A list that fails means that there is none.
    fn remove_table(&self, programs: &dyn Programs) -> Result<(), String> {
        match programs.run("nft", &self.nft_list(), "") {
            Ok(_) => all(programs, "nft", &[self.nft_removal()]).map_err(|error| error.text("nft")),
            Err(_) => Ok(()),
        }
    }

    fn cleanup_with(&self, programs: &dyn Programs) -> Result<(), NetworkError> {
        let own = link(programs, &self.interface);
        let loopback = link(programs, LOOPBACK).unwrap_or_default();
        let iptables = self.iptables();
        let mut problems = Vec::new();
        for call in self.link_removal(own.as_ref(), &loopback) {
            problems.extend(programs.run("ip", &call, "").err().map(|error| error.text("ip")));
        }
        let listed = programs.run(iptables, &list(), "");
        match listed.and_then(|present| all(programs, iptables, &waiting(self.iptables_removal(&present)))) {
            Ok(()) | Err(ProgramError::Missing | ProgramError::NoTables(_)) => {}
            Err(error) => problems.push(error.text(iptables)),
        }
        problems.extend(self.remove_table(programs).err());
        match problems.is_empty() {
            true => Ok(()),
            false => Err(NetworkError(problems.join("; "))),
        }
    }
}

/// Records in `failures` what [`NodeNetwork::keep`] found.
fn tell(failures: &Failures, ensured: Result<Made, NetworkError>) {
    match ensured {
        Ok(made) => {
            failures.works(ADDRESS);
            failures.tell(FIREWALL, made.firewall.err());
        }
        Err(error) => failures.refused(ADDRESS, &error.to_string()),
    }
}

/// Returns once an attempt succeeds. The first one follows after a pause.
async fn until_made<E>(ensure: impl Fn() -> E, failed: impl Fn(NetworkError))
where
    E: Future<Output = Result<Made, NetworkError>>,
{
    let (mut pause, longest) = RETRY;
    loop {
        tokio::time::sleep(pause).await;
        match ensure().await {
            Ok(_) => return,
            Err(error) => failed(error),
        }
        pause = longest.min(pause * 2);
    }
}

/// Lists the rules of the filter table; `-w` waits for the lock of other programs.
fn list() -> Call {
    ["-w", LOCK_SECONDS, "-S"].map(str::to_owned).to_vec()
}

fn waiting(calls: Vec<Call>) -> Vec<Call> {
    let with_lock = |call: Call| {
        ["-w", LOCK_SECONDS]
            .map(str::to_owned)
            .into_iter()
            .chain(call)
            .collect()
    };
    calls.into_iter().map(with_lock).collect()
}

/// The interface as it is; `None` if there is none.
fn link(programs: &dyn Programs, name: &str) -> Option<Link> {
    let show = |what: &str| {
        let call = ["-o", what, "show", "dev", name].map(str::to_owned);
        programs.run("ip", &call, "")
    };
    Some(Link::parse(&show("link").ok()?, &show("addr").ok()?))
}

fn all(programs: &dyn Programs, program: &str, calls: &[Call]) -> Result<(), ProgramError> {
    for call in calls {
        programs.run(program, call, "")?;
    }
    Ok(())
}

fn ip(programs: &dyn Programs, calls: &[Call]) -> Result<(), String> {
    all(programs, "ip", calls).map_err(|error| error.text("ip"))
}

// === impl ProgramError ===

impl ProgramError {
    fn text(&self, program: &str) -> String {
        match self {
            Self::Missing => format!("{program} is not installed"),
            Self::Busy(why) | Self::NoTables(why) | Self::Failed(why) => why.clone(),
        }
    }
}

// === impl Installed ===

impl Programs for Installed {
    fn run(&self, program: &str, call: &[String], input: &str) -> Result<String, ProgramError> {
        Self::run_within(PROGRAM_MAX, program, call, input)
    }
}

impl Installed {
    /// Runs the program; after `limit` it fails, and the program is killed.
    fn run_within(limit: Duration, program: &str, call: &[String], input: &str) -> Result<String, ProgramError> {
        let why = |message: String| format!("{program} {}: {message}", call.join(" "));
        let failed = |message: String| ProgramError::Failed(why(message));
        let of_io = |error: io::Error| match error.kind() {
            ErrorKind::NotFound => ProgramError::Missing,
            _ => failed(error.to_string()),
        };
        let mut child = Command::new(program)
            .args(call)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(of_io)?;
        if let Some(mut stdin) = child.stdin.take() {
            // A program that reads nothing closes it first, which is no failure.
            let _ = stdin.write_all(input.as_bytes());
        }
        let output = end_of(child, limit).map_err(of_io)?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let is_busy = output.status.code() == Some(NO_RESOURCE) && message.contains(LOCK_IS_HELD);
        let has_no_tables = NO_TABLES.iter().any(|part| message.contains(part));
        Err(match (is_busy, has_no_tables) {
            (true, _) => ProgramError::Busy(why(message)),
            (_, true) => ProgramError::NoTables(why(message)),
            _ => failed(message),
        })
    }
}

/// Waits for the end of a program, and kills it after `limit`.
fn end_of(mut child: Child, limit: Duration) -> io::Result<Output> {
    let outputs = (child.stdout.take(), child.stderr.take());
    let (ended, end) = mpsc::sync_channel(1);
    // Not joined: a child of the killed program may keep its outputs open.
    thread::Builder::new().spawn(move || ended.send(read(outputs)))?;
    let Ok(outputs) = end.recv_timeout(limit) else {
        child.kill()?;
        child.wait()?;
        let why = format!("did not end within {limit:?}");
        return Err(io::Error::new(ErrorKind::TimedOut, why));
    };
    let (stdout, stderr) = outputs?;
    let status = child.wait()?;
    Ok(Output { status, stdout, stderr })
}

/// Reads both outputs. The messages of these programs are short, so they do not block on the second one.
fn read((stdout, stderr): (Option<ChildStdout>, Option<ChildStderr>)) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let (mut output, mut messages) = (Vec::new(), Vec::new());
    if let Some(mut stdout) = stdout {
        stdout.read_to_end(&mut output)?;
    }
    if let Some(mut stderr) = stderr {
        stderr.read_to_end(&mut messages)?;
    }
    Ok((output, messages))
}
