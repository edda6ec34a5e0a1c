//! The log behind `-v`: lines on stderr. Lines of a start that may still fail are held back until it has succeeded.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::prelude::*;

/// Maximum memory of held lines in bytes; lines above it are lost.
const HELD_MAX: usize = 64 << 10;

/// Sends logs to stderr, one line per event. `verbosity` is Kubernetes' `-v`: below 4 is info, 4 and 5 are debug, from
/// 6 on everything, libraries included. The variable RUST_LOG (`target=level,...`) overrides it. A second call does
/// nothing.
pub fn init(verbosity: u8) {
    install(verbosity, io::stderr);
}

/// As [`init`], but lines wait for [`HeldLines::release`]. So a start that fails prints only one line, its error.
pub fn init_held(verbosity: u8) -> HeldLines {
    let held = HeldLines(Arc::new(Mutex::new(Some(Vec::new()))));
    install(verbosity, held.clone());
    held
}

/// Lines not yet written, up to 64 KiB.
#[derive(Clone)]
pub struct HeldLines(Arc<Mutex<Option<Vec<u8>>>>);

fn install(verbosity: u8, writer: impl for<'a> MakeWriter<'a> + Send + Sync + 'static) {
    let filter = std::env::var("RUST_LOG")
        .ok()
        .and_then(|spec| spec.parse().ok())
        .unwrap_or(targets(verbosity));
    let lines = tracing_subscriber::fmt::layer()
        .compact()
        .with_writer(writer)
        .with_filter(filter);
    // Fails if a test has already installed one, which is then the right one.
    let _ = tracing_subscriber::registry().with(lines).try_init();
}

fn targets(verbosity: u8) -> Targets {
    let (ours, libraries) = match verbosity {
        0..=3 => (LevelFilter::INFO, LevelFilter::WARN),
        4..=5 => (LevelFilter::DEBUG, LevelFilter::INFO),
        _ => (LevelFilter::TRACE, LevelFilter::DEBUG),
    };
    // Targets are module paths: the prefix covers all crates of the workspace and both programs.
    Targets::new().with_default(libraries).with_target("yurt", ours)
}

// === impl HeldLines ===

impl HeldLines {
    /// Writes the held lines; from here on lines go straight to stderr.
    pub fn release(&self) {
        // A failure to write the log does not stop the process.
        let _ = io::stderr().write_all(&self.take());
    }

    fn take(&self) -> Vec<u8> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
            .unwrap_or_default()
    }
}

impl Write for HeldLines {
    /// The formatter writes an event with one call, its end of line included.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match held.as_mut() {
            None => return io::stderr().write(line),
            Some(lines) if lines.len() + line.len() <= HELD_MAX => lines.extend_from_slice(line),
            Some(_) => {}
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for HeldLines {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_held_whole_and_within_their_bound() {
        let held = HeldLines(Arc::new(Mutex::new(Some(Vec::new()))));
        let line = [b'x'; 1000];
        for _ in 0..100 {
            held.make_writer().write_all(&line).unwrap();
        }
        assert_eq!(held.take().len(), 65 * line.len());
        held.make_writer().write_all(b"to stderr\n").unwrap();
        assert!(held.take().is_empty(), "nothing is held after the release");
    }

    #[test]
    fn verbosity_opens_our_targets_before_the_libraries() {
        let wants = |v, target, level| targets(v).would_enable(target, &level);
        assert!(wants(2, "yurt_storage::cacher", tracing::Level::INFO));
        assert!(wants(2, "yurthub", tracing::Level::INFO) && !wants(2, "h2", tracing::Level::INFO));
        assert!(wants(4, "yurt_runtime", tracing::Level::DEBUG) && !wants(4, "h2", tracing::Level::DEBUG));
    }
}
