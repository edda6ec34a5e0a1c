//! Interface to the Go module `interop/`: runs its tests, and compares answers.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Result;
use yurt_workspace::command;
use yurt_workspace::programs::{self, INTEROP, Profile, build_kubernetes, go};

use events::Events;

mod events;

/// Interval at which a run of all tests prints the tests in progress.
const PROGRESS_EVERY: Duration = Duration::from_secs(30);

/// Environment variable with the path of the etcd that [`build_kubernetes`] made, for tests written in Rust.
pub(crate) const ETCD_VARIABLE: &str = "YURT_ETCD";
/// Environment variable that switches backend-independent tests from the embedded store to etcd.
const OVER_ETCD_VARIABLE: &str = "YURT_OVER_ETCD";
/// Path of etcd, below [`INTEROP`].
const ETCD: &str = ".cache/bin/etcd";

/// Rust tests that start an etcd, by package and target. They are ignored elsewhere, or run over the embedded store.
const ETCD_TESTS: [(&str, &str); 2] = [("yurt-storage", "etcd3"), ("yurt-coordinator", "api")];

/// Environment variable with the folder of `yurt-coordinator` and `yurthub`, for the Go side.
const BIN_DIR_VARIABLE: &str = "YURT_BIN_DIR";

/// Arguments of `go test`. One package at a time: each starts whole clusters. Parallel tests mostly wait, so there may
/// be more of them than cores. Results are not cached: the cache does not depend on our programs. A run that takes
/// longer than the timeout fails, and `go test` prints all stacks.
const HOW: [&str; 4] = ["-p=1", "-parallel=4", "-count=1", "-timeout=60m"];

/// Arguments of `cargo xtask differential`.
#[derive(clap::Args)]
pub(crate) struct DifferentialArgs {
    /// Run only scripts whose id begins with this, and print every difference
    #[arg(long, value_name = "ID")]
    case: Option<String>,
    /// Seed of the sampled scripts
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Arguments for the Go program (interop/cmd/differential; `-- -help` lists them)
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// Builds everything that [`test()`] needs: programs, Kubernetes programs, and the tests in Rust and Go.
pub(crate) fn prepare() -> Result<()> {
    programs::build(Profile::Tests)?;
    build_kubernetes()?;
    install_iptables();
    for (package, target) in ETCD_TESTS {
        let mut command = yurt_workspace::cargo();
        command.args(["test", "--package", package, "--test", target, "--no-run"]);
        command::run(command.current_dir(yurt_workspace::root()?))?;
    }
    // No test has an empty name: this compiles the tests and runs none.
    command::run(go()?.args(["test", "-run", "^$", "./..."]))
}

/// Installs iptables on a CI machine with apt-get. Elsewhere it is left to the user: without it, the test of
/// kube-proxy's traffic is skipped.
fn install_iptables() {
    let is_ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
    if !is_ci || command::succeeds(Command::new("iptables").arg("--version")) {
        return;
    }
    let apt_get = |args: &[&str]| {
        let mut command = Command::new("apt-get");
        command
            .args(["--quiet", "--yes", "--option=DPkg::Lock::Timeout=60"])
            .args(args);
        command::succeeds(command.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null()))
    };
    if !apt_get(&["update"]) || !apt_get(&["install", "--no-install-recommends", "iptables"]) {
        println!("   iptables cannot be installed: TestKubeProxyTopology is skipped");
    }
}

/// The interop step of `cargo xtask test`: all tests, or those whose name matches `filter`.
pub(crate) fn test(filter: Option<&str>) -> Result<()> {
    let bin_dir = programs::build(Profile::Tests)?;
    build_kubernetes()?;
    test_over_etcd(filter)?;
    command::run(go()?.args(["vet", "./..."]))?;
    let mut command = go()?;
    command.arg("test").args(HOW).env(BIN_DIR_VARIABLE, bin_dir);
    if let Some(filter) = filter {
        return command::run(command.args(["-v", "-run", filter, "./..."]));
    }
    let mut events = Events::default();
    command::run_lines(command.args(["-json", "./..."]), PROGRESS_EVERY, |line| match line {
        Some(line) => print!("{}", events.take(line)),
        None => println!("   {}", events.progress()),
    })
}

/// Path of the etcd that [`build_kubernetes`] made, if it exists.
pub(crate) fn etcd() -> Result<Option<PathBuf>> {
    let etcd = yurt_workspace::root()?.join(INTEROP).join(ETCD);
    Ok(etcd.is_file().then_some(etcd))
}

fn test_over_etcd(filter: Option<&str>) -> Result<()> {
    let root = yurt_workspace::root()?;
    let etcd = root.join(INTEROP).join(ETCD);
    for (package, target) in ETCD_TESTS {
        let mut command = yurt_workspace::cargo();
        command.args(["test", "--package", package, "--test", target, "--"]);
        command.arg("--include-ignored").args(filter);
        command::run(
            command
                .current_dir(&root)
                .env(ETCD_VARIABLE, &etcd)
                .env(OVER_ETCD_VARIABLE, "1"),
        )?;
    }
    Ok(())
}

/// Builds the dependencies of the named tests; the command prints the events of `go test -json`.
pub(crate) fn test_events(names: &BTreeSet<&str>) -> Result<Command> {
    let bin_dir = programs::build(Profile::Tests)?;
    build_kubernetes()?;
    let names: Vec<&str> = names.iter().copied().collect();
    println!("   running {} tests of {INTEROP}", names.len());
    let mut command = go()?;
    command
        .args(["test", "-json"])
        .args(HOW)
        .arg("-run")
        .arg(format!("^({})$", names.join("|")))
        .arg("./...")
        .env(BIN_DIR_VARIABLE, bin_dir);
    Ok(command)
}

/// `cargo xtask differential`: sends the same requests to kube-apiserver and to the coordinator, and compares the
/// answers.
pub(crate) fn differential(args: &DifferentialArgs) -> Result<()> {
    let bin_dir = programs::build(Profile::Quick)?;
    build_kubernetes()?;
    let mut command = go()?;
    command.args(["run", "./cmd/differential", "-seed", &args.seed.to_string()]);
    if let Some(case) = &args.case {
        command.args(["-case", case]);
    }
    command::run(command.args(&args.arguments).env(BIN_DIR_VARIABLE, bin_dir))
}
