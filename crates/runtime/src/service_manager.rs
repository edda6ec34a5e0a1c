//! Messages to the service manager that started the program (systemd's `sd_notify` protocol: datagrams to the socket in
//! `NOTIFY_SOCKET`). Without that variable nothing is sent.

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use crate::tasks::TaskGroup;

/// Connection to the service manager.
#[derive(Debug, Default)]
pub struct ServiceManager {
    socket: Option<UnixDatagram>,
    watchdog: Option<Duration>,
}

/// State that the service manager acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceState<'a> {
    /// The service accepts requests.
    Ready,
    /// The service is shutting down.
    Stopping,
    /// The service is alive.
    Watchdog,
    /// One line for `systemctl status`.
    Status(&'a str),
}

// === impl ServiceState ===

impl ServiceState<'_> {
    /// The text of the message.
    fn message(self) -> String {
        match self {
            ServiceState::Ready => "READY=1\nSTATUS=Serving".to_owned(),
            ServiceState::Stopping => "STOPPING=1\nSTATUS=Stopping".to_owned(),
            ServiceState::Watchdog => "WATCHDOG=1".to_owned(),
            // A line end would begin another variable.
            ServiceState::Status(text) => format!("STATUS={}", text.replace(['\n', '\r'], " ")),
        }
    }
}

// === impl ServiceManager ===

impl ServiceManager {
    /// Connects to the socket of the environment, if there is one.
    ///
    /// # Errors
    /// The socket cannot be used; the message names the variable.
    pub fn from_env() -> io::Result<Self> {
        Self::from_variables(|name| std::env::var(name).ok(), std::process::id())
    }

    /// As [`Self::from_env`], with these variables and this process id.
    fn from_variables(variable: impl Fn(&str) -> Option<String>, own: u32) -> io::Result<Self> {
        let Some(path) = variable("NOTIFY_SOCKET").filter(|path| !path.is_empty()) else {
            return Ok(Self::default());
        };
        let connect = || {
            let address = match path.strip_prefix('@') {
                Some(name) => SocketAddr::from_abstract_name(name)?,
                None => SocketAddr::from_pathname(&path)?,
            };
            let socket = UnixDatagram::unbound()?;
            socket.connect_addr(&address)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        let socket =
            connect().map_err(|error: io::Error| io::Error::other(format!("NOTIFY_SOCKET={path}: {error}")))?;
        let is_for_us = variable("WATCHDOG_PID").is_none_or(|pid| pid.parse() == Ok(own));
        let interval = variable("WATCHDOG_USEC").and_then(|micros| micros.parse().ok());
        Ok(Self {
            socket: Some(socket),
            watchdog: interval
                .filter(|micros| is_for_us && *micros > 0)
                .map(Duration::from_micros),
        })
    }

    /// Sends the state. A failure is logged only: the service works without its manager.
    pub fn notify(&self, state: ServiceState<'_>) {
        let Some(socket) = &self.socket else { return };
        if let Err(error) = socket.send(state.message().as_bytes()) {
            tracing::debug!(%error, ?state, "Failed to notify the service manager");
        }
    }

    /// Sends a sign of life twice per watchdog interval, from a task: a process whose tasks do not run is restarted.
    pub fn watch(self: &std::sync::Arc<Self>, tasks: &TaskGroup) {
        let Some(interval) = self.watchdog else { return };
        let (manager, stop) = (self.clone(), tasks.token());
        tasks.spawn_critical("notify-watchdog", async move {
            loop {
                manager.notify(ServiceState::Watchdog);
                if stop
                    .run_until_cancelled(tokio::time::sleep(interval / 2))
                    .await
                    .is_none()
                {
                    return;
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 256];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    /// A manager's socket, and the variables that it gives to process 7.
    fn manager(folder: &std::path::Path, watchdog: &str, pid: &str) -> (UnixDatagram, io::Result<ServiceManager>) {
        let path = folder.join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let of = |name: &str| match name {
            "NOTIFY_SOCKET" => Some(path.display().to_string()),
            "WATCHDOG_USEC" => Some(watchdog.to_owned()),
            "WATCHDOG_PID" => Some(pid.to_owned()),
            _ => None,
        };
        let manager = ServiceManager::from_variables(of, 7);
        (socket, manager)
    }

    #[test]
    fn states_reach_the_socket_of_the_manager() {
        let folder = tempfile::tempdir().unwrap();
        let (socket, manager) = manager(folder.path(), "", "7");
        let manager = manager.unwrap();
        manager.notify(ServiceState::Status("two\nlines"));
        manager.notify(ServiceState::Ready);
        manager.notify(ServiceState::Stopping);
        assert_eq!(received(&socket), "STATUS=two lines");
        assert!(received(&socket).starts_with("READY=1\n"));
        assert!(received(&socket).starts_with("STOPPING=1\n"));
        drop(socket);
        manager.notify(ServiceState::Ready);
    }

    #[tokio::test(start_paused = true)]
    async fn watchdog_is_fed_twice_per_interval_if_it_is_for_this_process() {
        let folder = tempfile::tempdir().unwrap();
        let (socket, manager) = manager(folder.path(), "30000000", "7");
        socket.set_nonblocking(true).unwrap();
        let tasks = TaskGroup::new();
        Arc::new(manager.unwrap()).watch(&tasks);
        tokio::time::sleep(Duration::from_secs(61)).await;
        let mut count = 0;
        while socket.recv(&mut [0; 64]).is_ok() {
            count += 1;
        }
        assert_eq!(count, 5, "at 0, 15, 30, 45 and 60 s");
        tasks.shutdown(Duration::from_secs(1)).await.unwrap();
    }

    #[test]
    fn watchdog_of_another_process_and_a_missing_manager_are_no_concern() {
        let folder = tempfile::tempdir().unwrap();
        let (_socket, manager) = manager(folder.path(), "30000000", "8");
        assert_eq!(manager.unwrap().watchdog, None);
        let none = ServiceManager::from_variables(|_| None, 7).unwrap();
        none.notify(ServiceState::Ready);
        let gone = |name: &str| (name == "NOTIFY_SOCKET").then(|| "/nowhere/notify".to_owned());
        let error = ServiceManager::from_variables(gone, 7).unwrap_err().to_string();
        assert!(error.contains("NOTIFY_SOCKET=/nowhere/notify"), "{error}");
    }
}
