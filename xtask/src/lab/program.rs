//! One child process of the demo: started with a log file, killed, started again with the same arguments.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::process::{Child, Command};

use super::net::namespace::Namespace;
use super::until::Hopeless;

/// How to start a program; starting it again appends to the same log.
#[derive(Clone)]
pub(crate) struct Launch {
    /// What the story and the log file call it.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) arguments: Vec<String>,
    /// The folder of the log.
    pub(crate) dir: PathBuf,
    /// Where it runs, if not where we do.
    namespace: Option<Namespace>,
    environment: Vec<(String, String)>,
    /// The machine seems to have been up for so much longer.
    uptime: Duration,
}

/// A running program. It is killed when this is dropped.
pub(crate) struct Program {
    launch: Launch,
    child: Child,
}

/// The place of a program that is ended and started again.
pub(crate) struct Seat {
    launch: Launch,
    program: Option<Program>,
}

// === impl Launch ===

impl Launch {
    pub(crate) fn new(dir: &Path, name: &str, path: PathBuf) -> Self {
        Self {
            name: name.to_owned(),
            path,
            arguments: Vec::new(),
            dir: dir.to_path_buf(),
            namespace: None,
            environment: Vec::new(),
            uptime: Duration::ZERO,
        }
    }

    /// It runs in this network namespace.
    pub(crate) fn within(mut self, namespace: &Namespace) -> Self {
        self.namespace = Some(namespace.clone());
        self
    }

    /// Adds `--flag=value`.
    pub(crate) fn flag(mut self, flag: &str, value: impl std::fmt::Display) -> Self {
        self.arguments.push(format!("--{flag}={value}"));
        self
    }

    /// Starts it with stdout and stderr in `<dir>/<name>.log`.
    pub(crate) fn start(&self) -> Result<Program> {
        let mut log = self.log()?;
        writeln!(log, "== {} {}", self.path.display(), self.arguments.join(" ")).context("cannot write the log")?;
        let mut words = Vec::new();
        if !self.uptime.is_zero() {
            words.extend(longer_up(self.uptime));
        }
        if let Some(namespace) = &self.namespace {
            words.extend(namespace.prefix().map(Into::into));
        }
        words.push(self.path.clone().into_os_string());
        let (program, rest) = words.split_first().context("a program has a path")?;
        let child = Command::new(program)
            .args(rest)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("cannot share the log")?)
            .stderr(log)
            // Ctrl-C goes to the demo, which ends its programs in order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", self.path.display()))?;
        Ok(Program {
            launch: self.clone(),
            child,
        })
    }

    fn log(&self) -> Result<File> {
        let path = self.dir.join(format!("{}.log", self.name));
        let file = OpenOptions::new().create(true).append(true).open(&path);
        file.with_context(|| format!("cannot open {}", path.display()))
    }
}

/// What stands before a program for which the machine shall seem to have been up for so much longer. It is still the process that we
/// start: exec enters the namespace.
fn longer_up(by: Duration) -> [OsString; 6] {
    let seconds = by.as_secs().to_string();
    ["unshare", "--time", "--boottime", &seconds, "--monotonic", &seconds].map(OsString::from)
}

/// Whether a machine can seem to have been up for longer here (Linux 6.1 and the right to make namespaces).
pub(crate) fn can_shift_uptime() -> bool {
    const DAY: Duration = Duration::from_secs(86_400);
    let [program, arguments @ ..] = longer_up(DAY);
    let mut command = std::process::Command::new(program);
    command.args(arguments).args(["cat", "/proc/uptime"]);
    let told = command.output().map(|output| output.stdout).unwrap_or_default();
    let told = String::from_utf8_lossy(&told).into_owned();
    let uptime = told.split('.').next().and_then(|seconds| seconds.parse().ok());
    let own = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
    let own: Option<u64> = own.split('.').next().and_then(|seconds| seconds.parse().ok());
    uptime
        .zip(own)
        .is_some_and(|(there, here): (u64, u64)| there >= here + DAY.as_secs() / 2)
}

// === impl Program ===

impl Program {
    /// An error that ends every wait if the program is gone: what it should do will never happen.
    pub(crate) fn must_run(&mut self) -> Result<()> {
        match self
            .child
            .try_wait()
            .with_context(|| format!("cannot ask about {}", self.launch.name))?
        {
            None => Ok(()),
            Some(status) => Err(Hopeless(format!("{} has ended ({status}), see its log", self.launch.name)).into()),
        }
    }

    /// The process, while it runs.
    pub(crate) fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// SIGTERM, and SIGKILL if it has not ended within `limit`.
    pub(crate) async fn stop(mut self, limit: Duration) -> Result<()> {
        if let Some(id) = self.child.id() {
            let status = Command::new("kill").arg(id.to_string()).status().await;
            status.with_context(|| format!("cannot signal {}", self.launch.name))?;
        }
        if tokio::time::timeout(limit, self.child.wait()).await.is_err() {
            self.child.kill().await?;
        }
        Ok(())
    }

    /// Sends a signal (`STOP`, `CONT`).
    pub(crate) async fn signal(&self, name: &str) -> Result<()> {
        let id = self.id().with_context(|| format!("{} has ended", self.launch.name))?;
        let status = Command::new("kill").args(["-s", name, &id.to_string()]).status().await;
        ensure!(
            status
                .with_context(|| format!("cannot signal {}", self.launch.name))?
                .success(),
            "{} took no {name}",
            self.launch.name
        );
        Ok(())
    }

    /// SIGKILL: no goodbye. Returns when it is gone.
    pub(crate) async fn kill(mut self) -> Result<Launch> {
        self.child
            .kill()
            .await
            .with_context(|| format!("cannot kill {}", self.launch.name))?;
        Ok(self.launch.clone())
    }
}

// === impl Seat ===

impl Seat {
    /// Nothing runs there yet.
    pub(crate) fn new(launch: Launch) -> Self {
        Self { launch, program: None }
    }

    /// Adds `--flag=value` from the next start on.
    pub(crate) fn add_flag(&mut self, flag: &str, value: impl std::fmt::Display) {
        self.launch.arguments.push(format!("--{flag}={value}"));
    }

    /// Replaces `--flag` from the next start on.
    pub(crate) fn set_flag(&mut self, flag: &str, value: impl std::fmt::Display) {
        let prefix = format!("--{flag}=");
        self.launch.arguments.retain(|argument| !argument.starts_with(&prefix));
        self.add_flag(flag, value);
    }

    /// Sets a variable of the environment, from the next start on.
    pub(crate) fn add_variable(&mut self, name: &str, value: impl std::fmt::Display) {
        self.launch.environment.push((name.to_owned(), value.to_string()));
    }

    /// From the next start on the machine seems to have been up for so much longer.
    pub(crate) fn set_uptime(&mut self, by: Duration) {
        self.launch.uptime = by;
    }

    /// What the story and the log file call the program.
    pub(crate) fn name(&self) -> &str {
        &self.launch.name
    }

    /// Starts the program without waiting for it; one that ran there before is killed.
    pub(crate) fn start(&mut self) -> Result<&mut Program> {
        Ok(self.program.insert(self.launch.start()?))
    }

    /// The running program.
    pub(crate) fn program(&mut self) -> Result<&mut Program> {
        let name = &self.launch.name;
        self.program.as_mut().with_context(|| format!("{name} does not run"))
    }

    /// SIGTERM, and SIGKILL if it has not ended within `limit`.
    pub(crate) async fn stop(&mut self, limit: Duration) -> Result<()> {
        match self.program.take() {
            Some(program) => program.stop(limit).await,
            None => Ok(()),
        }
    }

    /// SIGKILL.
    pub(crate) async fn kill(&mut self) -> Result<()> {
        let name = &self.launch.name;
        let program = self.program.take();
        program
            .with_context(|| format!("{name} must run to be killed"))?
            .kill()
            .await?;
        Ok(())
    }

    pub(crate) fn runs(&self) -> bool {
        self.program.is_some()
    }
}

/// The last `count` lines of every log in `dir`, each under its name.
pub(crate) fn log_tails(dir: &Path, count: usize) -> String {
    let entries = std::fs::read_dir(dir)
        .map(|entries| entries.flatten().collect::<Vec<_>>())
        .unwrap_or_default();
    let mut logs: Vec<PathBuf> = entries.iter().map(std::fs::DirEntry::path).collect();
    logs.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
    logs.sort();
    let tails = logs.iter().map(|path| {
        let text = String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        format!(
            "--- {name}\n{}\n",
            lines[lines.len().saturating_sub(count)..].join("\n")
        )
    });
    tails.collect()
}

#[cfg(test)]
mod tests {
    use super::super::until::until;
    use super::*;

    fn shell(dir: &Path, script: &str) -> Launch {
        let mut launch = Launch::new(dir, "shell", PathBuf::from("/bin/sh"));
        launch.arguments = vec!["-c".to_owned(), script.to_owned()];
        launch
    }

    #[tokio::test]
    async fn a_program_that_ended_is_noticed_and_its_log_kept() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut program = shell(dir.path(), "echo out; echo bad flag >&2; exit 3")
            .start()
            .expect("it starts");
        let wait = until(Duration::from_secs(5), "exit", async || match program.must_run() {
            Err(error) if error.is::<Hopeless>() => Ok(error.to_string()),
            _ => anyhow::bail!("still running"),
        });
        let (reason, _) = wait.await.expect("it ends");
        assert!(reason.contains("exit status: 3"), "{reason}");
        let tails = log_tails(dir.path(), 1);
        assert!(tails.contains("bad flag") && !tails.contains("out"), "{tails}");
    }

    #[tokio::test]
    async fn a_killed_program_can_be_started_again() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut program = shell(dir.path(), "exec sleep 60").start().expect("it starts");
        program.must_run().expect("it runs");
        let launch = program.kill().await.expect("it is killed");
        launch
            .start()
            .expect("it starts again")
            .must_run()
            .expect("it runs again");
        assert_eq!(log_tails(dir.path(), 9).matches("== ").count(), 2);
    }
}
