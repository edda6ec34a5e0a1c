//! A network namespace without a name: it is removed with the last process in it and this handle.

use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A network namespace with its loopback interface up. Cheap to clone; clones are the same namespace.
#[derive(Clone)]
pub struct Namespace {
    file: Arc<File>,
}

/// Names are needed for a moment only.
static NEXT: AtomicU32 = AtomicU32::new(0);

// === impl Namespace ===

impl Namespace {
    /// # Errors
    /// The reason why this machine or user may not have one.
    pub(super) fn new() -> Result<Self> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("yurt-testbed-{}-{number}", std::process::id());
        run(Command::new("ip").args(["netns", "add", &name]))?;
        // An open file keeps it; without its name nothing remains after a crash.
        let file = File::open(format!("/run/netns/{name}")).context("cannot open the network namespace");
        run(Command::new("ip").args(["netns", "delete", &name]))?;
        let this = Self { file: Arc::new(file?) };
        this.ip(&["link", "set", "lo", "up"])?;
        Ok(this)
    }

    /// Words before a program and its arguments that run it in this namespace; the process keeps its id.
    pub fn prefix(&self) -> [String; 3] {
        let (process, file) = (std::process::id(), self.file.as_raw_fd());
        [
            "nsenter".to_owned(),
            format!("--net=/proc/{process}/fd/{file}"),
            "--".to_owned(),
        ]
    }

    /// Runs `ip` with these arguments in this namespace.
    pub(super) fn ip(&self, arguments: &[&str]) -> Result<()> {
        let [program, net, end] = self.prefix();
        run(Command::new(program).args([&net, &end, "ip"]).args(arguments))
    }

    /// Runs `work` on a thread in this namespace: the files and sockets it opens stay in it.
    pub(super) fn inside<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let there = || {
            move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network))
                .context("cannot enter a network namespace")?;
            work()
        };
        let outcome = std::thread::scope(|scope| scope.spawn(there).join());
        outcome.unwrap_or_else(|_| anyhow::bail!("a thread in a network namespace panicked"))
    }
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run {command:?}"))?;
    let told = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}", told.trim());
    Ok(())
}
