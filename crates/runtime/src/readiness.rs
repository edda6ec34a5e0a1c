//! Readiness for `/readyz`: the named conditions that must all hold before this process accepts traffic.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// The set of conditions. Cheap to clone; clones share the conditions.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    // Guards only the list: the conditions themselves are atomics.
    checks: Arc<Mutex<Vec<Check>>>,
}

/// One condition; it fails until [`Check::set`] is called with true. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Check {
    name: Arc<str>,
    holds: Arc<AtomicBool>,
}

// === impl Readiness ===

impl Readiness {
    /// No conditions: ready.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a condition that fails at first. The same name returns the same condition.
    pub fn check(&self, name: &str) -> Check {
        let mut checks = self.checks.lock();
        if let Some(known) = checks.iter().find(|check| &*check.name == name) {
            return known.clone();
        }
        let check = Check {
            name: name.into(),
            holds: Arc::new(AtomicBool::new(false)),
        };
        checks.push(check.clone());
        check
    }

    /// True if every condition holds.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.checks.lock().iter().all(Check::holds)
    }

    /// Names of the conditions that do not hold, in the order they were added.
    #[must_use]
    pub fn failing(&self) -> Vec<String> {
        self.checks
            .lock()
            .iter()
            .filter(|check| !check.holds())
            .map(|check| check.name.to_string())
            .collect()
    }

    /// kube-apiserver's answer to `/readyz?verbose`: one line per condition, then the result.
    #[must_use]
    pub fn verbose(&self) -> String {
        let mut text = String::new();
        for check in self.checks.lock().iter() {
            let (mark, verdict) = if check.holds() { ('+', "ok") } else { ('-', "failed") };
            // Writing to a String cannot fail.
            let _ = writeln!(text, "[{mark}]{} {verdict}", check.name);
        }
        text.push_str(if self.is_ready() {
            "readyz check passed\n"
        } else {
            "readyz check failed\n"
        });
        text
    }
}

// === impl Check ===

impl Check {
    /// Sets whether the condition holds from now on.
    pub fn set(&self, holds: bool) {
        self.holds.store(holds, Ordering::Release);
    }

    /// True if the condition holds.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.holds.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_only_when_every_condition_holds() {
        let readiness = Readiness::new();
        let (store, feed) = (readiness.check("store"), readiness.check("feed"));
        store.set(true);
        assert!(!readiness.is_ready());
        assert_eq!(readiness.failing(), ["feed"]);
        assert_eq!(
            readiness.verbose(),
            "[+]store ok\n[-]feed failed\nreadyz check failed\n"
        );
        feed.set(true);
        assert!(readiness.is_ready());
        assert!(readiness.check("feed").holds(), "the same name is the same condition");
    }
}
