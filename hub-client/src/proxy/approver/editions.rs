//! Editions of the bindings between clients and filters: how often the filters of a client changed.
//!
//! A client whose filters changed holds objects as the old filters showed them, under RVs that the source still uses.
//! It gets a view of its own edition, in which every object has a new RV. Pure.

use std::collections::BTreeMap;

use yurt_apimachinery::GroupResource;

/// Maximum number of bindings whose edition is kept. With more, all of them share one edition.
const BINDINGS_MAX: usize = 1024;

/// Editions since the start of the hub; zero for a binding that never changed.
#[derive(Clone, Debug, Default)]
pub(super) struct Editions {
    /// Number of changes so far.
    last: u64,
    /// Edition of all bindings that are not in the map.
    common: u64,
    changed: BTreeMap<(String, GroupResource), u64>,
}

// === impl Editions ===

impl Editions {
    /// The editions after the filters of these components and service accounts for these resources changed.
    pub(super) fn after(&self, bindings: impl IntoIterator<Item = (String, GroupResource)>) -> Self {
        let mut next = self.clone();
        next.last += 1;
        let last = next.last;
        next.changed.extend(bindings.into_iter().map(|binding| (binding, last)));
        if next.changed.len() > BINDINGS_MAX {
            next.changed.clear();
            next.common = last;
        }
        next
    }

    /// Edition of the filters of a component or service account for a resource.
    pub(super) fn of(&self, name: &str, resource: &GroupResource) -> u64 {
        if self.changed.is_empty() {
            return self.common;
        }
        let own = self.changed.get(&(name.to_owned(), resource.clone()));
        own.copied().unwrap_or(self.common)
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
        let editions = editions.after([("kubelet".to_owned(), services.clone())]);
        assert_eq!(editions.of("kubelet", &services), 1);
        assert_eq!(editions.of("coredns", &services), 0);
        let editions = editions.after((0..=BINDINGS_MAX).map(|n| (n.to_string(), services.clone())));
        assert_eq!(editions.of("kubelet", &services), 2);
        assert_eq!(editions.of("coredns", &services), 2);
        assert!(editions.changed.is_empty());
    }
}
