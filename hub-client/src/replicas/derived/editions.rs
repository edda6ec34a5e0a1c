//! Editions of the bindings between components and filters: how often the filters of a component changed.
//!
//! A client whose filters changed holds objects as the old filters showed them, under RVs that the source still uses. It
//! gets a view of its own edition, in which every object has a new RV.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use yurt_apimachinery::GroupResource;

/// Maximum number of bindings whose edition is kept. With more, all of them share one edition.
const BINDINGS_MAX: usize = 1024;

/// Editions since the start of the hub; zero for a binding that never changed.
#[derive(Debug, Default)]
pub struct Editions(Mutex<EditionState>);

#[derive(Debug, Default)]
struct EditionState {
    /// Number of changes so far.
    last: u64,
    /// Edition of all bindings that are not in the map.
    common: u64,
    changed: BTreeMap<(String, GroupResource), u64>,
}

// === impl Editions ===

impl Editions {
    /// Records that the filters of these components for these resources changed. Call it before any request sees the
    /// new filters, and end the open watches of these components after that.
    pub fn changed(&self, bindings: impl IntoIterator<Item = (String, GroupResource)>) {
        let mut state = self.0.lock();
        state.last += 1;
        let last = state.last;
        state
            .changed
            .extend(bindings.into_iter().map(|binding| (binding, last)));
        if state.changed.len() > BINDINGS_MAX {
            state.changed.clear();
            state.common = last;
        }
    }

    /// Edition of the filters of `component` for a resource.
    #[must_use]
    pub fn of(&self, component: &str, resource: &GroupResource) -> u64 {
        let state = self.0.lock();
        let own = state.changed.get(&(component.to_owned(), resource.clone()));
        own.copied().unwrap_or(state.common)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn editions_of_many_bindings_become_one() {
        let editions = Editions::default();
        let services = GroupResource::new("", "services");
        assert_eq!(editions.of("kubelet", &services), 0);
        editions.changed([("kubelet".to_owned(), services.clone())]);
        assert_eq!(editions.of("kubelet", &services), 1);
        assert_eq!(editions.of("coredns", &services), 0);
        editions.changed((0..=BINDINGS_MAX).map(|n| (n.to_string(), services.clone())));
        assert_eq!(editions.of("kubelet", &services), 2);
        assert_eq!(editions.of("coredns", &services), 2);
        assert!(editions.0.lock().changed.is_empty());
    }
}
