//! One child process of the demo: started with a log file, killed, started again with the same arguments.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::process::{Child, Command};
use yurt_apimachinery::time::BootTime;

use super::net::namespace::Namespace;
use super::supervisor::Supervisor;
use super::wait_for::PermanentError;

/// Command line of a program; starting it again appends to the same log.
#[derive(Clone)]
pub struct Launch {
    /// Name in the story and of the log file.
    pub name: String,
    /// The program's file.
    pub path: PathBuf,
    /// Arguments of the command line.
    pub arguments: Vec<String>,
    /// The folder of the log.
    pub dir: PathBuf,
    /// Network namespace, if it is not our own.
    namespace: Option<Namespace>,
    environment: Vec<(String, String)>,
    /// Shift of the apparent time since boot.
    uptime: Duration,
}

/// A running program. It is killed when this is dropped.
pub struct Program {
    launch: Launch,
    child: Child,
}

/// A program that is stopped and started again.
pub struct ManagedProcess {
    launch: Launch,
    program: Option<Program>,
    supervisor: Supervisor,
    /// Time at which a program that ended is started again.
    again: Option<BootTime>,
}

/// Bytes at the end of a log that are read; the log of a refused start is shorter.
const SAID_MAX: u64 = 4096;
/// Prefix of the line in a log with the command line of a start.
const START_MARK: &str = "== ";
/// Text of a panic in a log, of a thread or of a task.
const PANIC: &str = "panicked at";
/// Source of panics that are caught on purpose: the store's library panics over a file that a fault has damaged. A
/// panic that is not caught ends the program, which is detected.
const CAUGHT: &str = "/redb-";

// === impl Launch ===

impl Launch {
    /// Launch without arguments; the log is `NAME.log` in `dir`.
    pub fn new(dir: &Path, name: &str, path: PathBuf) -> Self {
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

    /// Runs it in this network namespace.
    pub fn within(mut self, namespace: &Namespace) -> Self {
        self.namespace = Some(namespace.clone());
        self
    }

    /// Adds `--flag=value`.
    pub fn flag(mut self, flag: &str, value: impl std::fmt::Display) -> Self {
        self.arguments.push(format!("--{flag}={value}"));
        self
    }

    /// Starts it with stdout and stderr in `<dir>/<name>.log`.
    pub fn start(&self) -> Result<Program> {
        let mut log = self.log()?;
        writeln!(log, "{START_MARK}{} {}", self.path.display(), self.arguments.join(" "))
            .context("cannot write the log")?;
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

    fn log_path(&self) -> PathBuf {
        self.dir.join(format!("{}.log", self.name))
    }

    /// Its log since the latest start; only the end of a long one.
    fn said(&self) -> Result<String> {
        let path = self.log_path();
        let read = || {
            let mut file = File::open(&path)?;
            let from = file.metadata()?.len().saturating_sub(SAID_MAX);
            file.seek(SeekFrom::Start(from))?;
            let mut end = Vec::new();
            file.read_to_end(&mut end)?;
            Ok::<_, std::io::Error>(end)
        };
        let end = read().with_context(|| format!("cannot read {}", path.display()))?;
        let end = String::from_utf8_lossy(&end);
        let start = end
            .split_inclusive('\n')
            .rev()
            .take_while(|line| !line.starts_with(START_MARK));
        Ok(start.collect::<Vec<_>>().into_iter().rev().collect())
    }

    fn log(&self) -> Result<File> {
        let path = self.log_path();
        let file = OpenOptions::new().create(true).append(true).open(&path);
        file.with_context(|| format!("cannot open {}", path.display()))
    }
}

/// Words before a program that shift its apparent time since boot. It is still our child process: exec enters the
/// namespace.
fn longer_up(by: Duration) -> [OsString; 6] {
    let seconds = by.as_secs().to_string();
    ["unshare", "--time", "--boottime", &seconds, "--monotonic", &seconds].map(OsString::from)
}

/// True if the apparent time since boot can be shifted here (Linux 6.1 and the right to make namespaces).
pub fn can_shift_uptime() -> bool {
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
    /// Returns an error if the program has ended, which ends every wait for it.
    pub fn must_run(&mut self) -> Result<()> {
        match self
            .child
            .try_wait()
            .with_context(|| format!("cannot ask about {}", self.launch.name))?
        {
            None => Ok(()),
            Some(status) => {
                Err(PermanentError(format!("{} has ended ({status}), see its log", self.launch.name)).into())
            }
        }
    }

    /// The process, while it runs.
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// SIGTERM, and SIGKILL if it has not ended within `limit`.
    pub async fn stop(mut self, limit: Duration) -> Result<()> {
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
    pub async fn signal(&self, name: &str) -> Result<()> {
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

    /// Sends SIGKILL. Returns when the process is gone.
    pub async fn kill(mut self) -> Result<Launch> {
        // A process that has ended and was reaped cannot be signalled.
        if self.id().is_some() {
            let killed = self.child.kill().await;
            killed.with_context(|| format!("cannot kill {}", self.launch.name))?;
        }
        Ok(self.launch.clone())
    }
}

// === impl ManagedProcess ===

impl ManagedProcess {
    /// A process without a running program.
    pub fn new(launch: Launch) -> Self {
        Self {
            launch,
            program: None,
            supervisor: Supervisor::default(),
            again: None,
        }
    }

    /// Adds `--flag=value` from the next start on.
    pub fn add_flag(&mut self, flag: &str, value: impl std::fmt::Display) {
        self.launch.arguments.push(format!("--{flag}={value}"));
    }

    /// Replaces `--flag` from the next start on.
    pub fn set_flag(&mut self, flag: &str, value: impl std::fmt::Display) {
        let prefix = format!("--{flag}=");
        self.launch.arguments.retain(|argument| !argument.starts_with(&prefix));
        self.add_flag(flag, value);
    }

    /// Sets an environment variable, from the next start on.
    pub fn add_variable(&mut self, name: &str, value: impl std::fmt::Display) {
        self.launch.environment.push((name.to_owned(), value.to_string()));
    }

    /// Shifts the apparent time since boot, from the next start on.
    pub fn set_uptime(&mut self, by: Duration) {
        self.launch.uptime = by;
    }

    /// Name of the program in the story and of the log file.
    pub fn name(&self) -> &str {
        &self.launch.name
    }

    /// Starts the program without waiting for it; one that ran there before is killed.
    pub fn start(&mut self) -> Result<&mut Program> {
        self.again = None;
        Ok(self.program.insert(self.launch.start()?))
    }

    /// Restarts a program after an allowed end, once its pause is over; returns a message, if any.
    ///
    /// # Errors
    /// [`PermanentError`] when it ended in any other way, or too often.
    pub fn supervise(&mut self, now: BootTime) -> Result<Option<String>> {
        if let Some(at) = self.again {
            if now >= at {
                self.start()?;
            }
            return Ok(None);
        }
        let Some(program) = &mut self.program else {
            return Ok(None);
        };
        let Some(status) = program.child.try_wait().context("cannot ask about a program")? else {
            return Ok(None);
        };
        let (name, said) = (&self.launch.name, self.launch.said()?);
        let last_line = said.lines().last().unwrap_or_default();
        match self.supervisor.judge(status.code(), &said, now) {
            Some(pause) => {
                self.again = Some(now + pause);
                let after = pause.as_secs();
                Ok(Some(format!(
                    "{name} is started again in {after} s, it ended: {last_line}"
                )))
            }
            None => Err(PermanentError(format!("{name} has ended ({status}): {last_line}")).into()),
        }
    }

    /// Number of restarts that [`Self::supervise`] decided.
    pub fn restarts(&self) -> u32 {
        self.supervisor.restarts()
    }

    /// True if its process exists, as far as is known.
    pub fn is_alive(&self) -> bool {
        self.program.as_ref().is_some_and(|program| program.id().is_some())
    }

    /// The running program.
    pub fn program(&mut self) -> Result<&mut Program> {
        let name = &self.launch.name;
        self.program.as_mut().with_context(|| format!("{name} does not run"))
    }

    /// SIGTERM, and SIGKILL if it has not ended within `limit`.
    pub async fn stop(&mut self, limit: Duration) -> Result<()> {
        self.again = None;
        match self.program.take() {
            Some(program) => program.stop(limit).await,
            None => Ok(()),
        }
    }

    /// SIGKILL.
    pub async fn kill(&mut self) -> Result<()> {
        let name = &self.launch.name;
        let program = self.program.take();
        self.again = None;
        program
            .with_context(|| format!("{name} must run to be killed"))?
            .kill()
            .await?;
        Ok(())
    }

    /// True while the program runs, or waits to be started again.
    pub fn runs(&self) -> bool {
        self.program.is_some()
    }
}

/// Panics in the logs in `dir`, each with the name of its log; without those that are caught on purpose.
pub fn panics(dir: &Path) -> Vec<String> {
    let told = logs(dir).into_iter().flat_map(|path| {
        let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap_or_default()).into_owned();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let lines = text
            .lines()
            .filter(|line| line.contains(PANIC) && !line.contains(CAUGHT));
        lines.map(|line| format!("{name}: {line}")).collect::<Vec<_>>()
    });
    told.collect()
}

/// Every log in `dir`.
fn logs(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir)
        .map(|entries| entries.flatten().collect::<Vec<_>>())
        .unwrap_or_default();
    let mut logs: Vec<PathBuf> = entries.iter().map(std::fs::DirEntry::path).collect();
    logs.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
    logs.sort();
    logs
}

/// The last `count` lines of every log in `dir`, each under its name.
pub fn log_tails(dir: &Path, count: usize) -> String {
    let tails = logs(dir).into_iter().map(|path| {
        let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap_or_default()).into_owned();
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
    use yurt_runtime::Clock;

    use super::super::wait_for::wait_for;
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
        let wait = wait_for(Duration::from_secs(5), "exit", async || match program.must_run() {
            Err(error) if error.is::<PermanentError>() => Ok(error.to_string()),
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
    /// Supervises until the process has a message, or gives its program up.
    async fn supervised(process: &mut ManagedProcess, clock: &Clock) -> Result<String> {
        let told = wait_for(Duration::from_secs(30), "the end is noticed", async || {
            process.supervise(clock.boot())?.context("it runs")
        });
        Ok(told.await?.0)
    }

    #[tokio::test]
    async fn program_is_started_again_after_a_refused_start_and_its_pause() {
        let dir = tempfile::tempdir().expect("a folder");
        let refused = "echo 'p: error: the private key in k does not belong to the certificate in c' >&2; exit 1";
        let mut process = ManagedProcess::new(shell(dir.path(), refused));
        let (clock, hand) = Clock::fake();
        process.start().expect("it starts");
        let told = supervised(&mut process, &clock).await.expect("a refused start");
        assert!(
            told.contains("again in 1 s") && told.contains("the private key"),
            "{told}"
        );
        assert!(!process.is_alive() && process.runs());
        process.supervise(clock.boot()).expect("it waits");
        assert!(!process.is_alive(), "its pause is not over");
        hand.advance(Duration::from_secs(1));
        process.supervise(clock.boot()).expect("it starts again");
        assert_eq!(log_tails(dir.path(), 9).matches("== ").count(), 2);
        let told = supervised(&mut process, &clock).await.expect("refused again");
        assert!(told.contains("again in 2 s"), "{told}");
        process.kill().await.expect("it is gone, which is no error");
        assert!(!process.runs() && process.restarts() == 2);
    }

    #[tokio::test]
    async fn crash_is_told_and_nothing_is_started() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut process = ManagedProcess::new(shell(
            dir.path(),
            "printf 'thread main panic%s at %s:1\\n' ked /redb-4/y.rs ked x.rs; exit 101",
        ));
        let (clock, hand) = Clock::fake();
        process.start().expect("it starts");
        let error = supervised(&mut process, &clock).await.expect_err("a crash");
        assert!(format!("{error:#}").contains("exit status: 101"), "{error:#}");
        hand.advance(Duration::from_secs(3600));
        assert!(process.supervise(clock.boot()).is_err() && process.restarts() == 0);
        assert_eq!(panics(dir.path()), ["shell: thread main panicked at x.rs:1"]);
    }
}
