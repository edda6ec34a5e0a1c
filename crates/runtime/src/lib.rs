//! Process kit of the workspace: everything that touches the outside of a program and is common to all programs.
//!
//! It owns tasks, signals, clocks, certificates, and both ends of HTTP, so that the crates above contain decisions
//! only. It is the only crate that may spawn a task or read a clock.
//!
//! In reading order:
//!
//! * [`tasks`] and [`shutdown`]: tasks and their end; [`clock`], [`readiness`], [`memory`], [`parallel`].
//! * [`pki`], [`tls`], [`kubeconfig`], [`jws`]: identities and their keys.
//! * [`http`] (server and client), [`fair_queue`] (fair queueing of requests).
//! * [`admin`] and [`metrics`]: the operator's view.
//! * [`service_manager`]: messages to systemd.
//! * [`flags`], [`files`], [`log`] and [`exit`]: start of a program, and its error message; [`failpoints`] of test
//!   builds.
//!
//! ```no_run
//! use yurt_runtime::{TaskGroup, shutdown};
//! use yurt_runtime::http::{self, server::{Server, handler}};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let tasks = TaskGroup::new();
//! let server = Server::bind("127.0.0.1:10267".parse()?, "--bind-address").await?;
//! let running = server.serve(&tasks, handler(|_request, _peer| async { http::text(::http::StatusCode::OK, "ok") }));
//! tokio::select! {
//!     _ = shutdown::wait_for_signal() => {}
//!     name = tasks.failed() => eprintln!("{name} failed"),
//! }
//! running.shutdown(std::time::Duration::from_secs(5)).await?;
//! # Ok(()) }
//! ```

pub mod admin;
pub mod clock;
pub mod exit;
pub mod failpoints;
pub mod fair_queue;
pub mod files;
pub mod flags;
pub mod http;
pub mod jws;
pub mod kubeconfig;
pub mod log;
pub mod memory;
pub mod metrics;
pub mod parallel;
pub mod pki;
pub mod readiness;
pub mod service_manager;
pub mod shutdown;
pub mod tasks;
pub mod tls;

pub use clock::{Clock, FakeClock, UnixTime};
pub use readiness::Readiness;
pub use tasks::TaskGroup;
