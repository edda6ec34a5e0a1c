//! Binds filters to requests by component, resource and verb. A service account that an entry names is bound like a
//! component.
//!
//! The [`Table`] consists of the filters' own defaults and of the entries of ConfigMap `yurt-hub-cfg` ([`entry`]). A
//! key is the name of a filter, an older name, or `filter_` with either. Each entry is applied, or it is a [`Fault`].

pub mod entry;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use yurt_apimachinery::{GroupResource, RequestInfo, Verb};

use super::chain::Counts;
use super::{Chain, Registration};
use crate::client_name::ACCOUNT_PREFIX;
use entry::{Entry, Verbs};

/// Verbs whose responses can be filtered.
pub const VERBS: [Verb; 3] = [Verb::Get, Verb::List, Verb::Watch];
/// Optional prefix of a filter's name as a key.
const KEY_PREFIX: &str = "filter_";
/// Keys of the ConfigMap that other parts of the hub read.
const OTHER_KEYS: [&str; 2] = ["cache_agents", yurt_pool_protocol::pool_scope::CONFIG_KEY];
/// Maximum number of entries that are applied.
const ENTRIES_MAX: usize = 1000;
/// Maximum number of faults that are kept; the others are counted.
const FAULTS_MAX: usize = 100;
/// Maximum characters of an entry in a fault.
const QUOTE_MAX: usize = 100;

/// Choices of the administrator of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Switches {
    /// True if no filter runs on this node.
    pub all_off: bool,
    /// Names of the filters that do not run on this node.
    pub disabled: BTreeSet<&'static str>,
    /// True on a node in the cloud, where filters for edge nodes do not run.
    pub in_cloud: bool,
}

/// Origin of a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Default of the filter.
    Default,
    /// Entry of the ConfigMap.
    ConfigMap,
}

/// Binding of one component or service account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Origin.
    pub origin: Origin,
    /// Verbs of each resource of the filter, in its order.
    pub verbs: Vec<Verbs>,
}

/// One filter and the components that it is bound to.
#[derive(Clone)]
pub struct Row {
    /// The filter.
    pub registration: &'static Registration,
    /// Reason why the filter does not run on this node; `None` if it runs.
    pub off: Option<&'static str>,
    /// Bindings by component or service account.
    pub bound: BTreeMap<String, Binding>,
    /// Counts of the filter's verdicts since the start of the process.
    pub counts: Arc<Counts>,
}

/// Entry that is not applied.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Fault {
    /// Key of the ConfigMap.
    pub key: String,
    /// The entry; empty if the key is at fault.
    pub entry: String,
    /// Reason, with the fix.
    pub reason: String,
}

/// All filters of this node with their bindings, in call order.
#[derive(Clone)]
pub struct Table {
    rows: Vec<Row>,
    /// Service accounts that an entry binds to any filter.
    accounts: BTreeSet<String>,
    faults: Vec<Fault>,
    /// Number of faults beyond `faults`.
    more_faults: usize,
}

/// Returns the names of the filters that are switched off by `names`: all of them for a single `*`.
///
/// # Errors
/// Reason, with the fix.
pub fn disabled(names: &[&str], registrations: &[Registration]) -> Result<BTreeSet<&'static str>, String> {
    let all = registrations.iter().map(|one| one.filter.name());
    if names == ["*"] {
        return Ok(all.collect());
    }
    let find = |name: &&str| {
        let found = registrations.iter().find(|one| one.is_named(name));
        let known = || all.clone().collect::<Vec<_>>().join(", ");
        found
            .map(|one| one.filter.name())
            .ok_or_else(|| format!("{name:?} is no filter; use * alone, or of: {}", known()))
    };
    names.iter().map(find).collect()
}

// === impl Table ===

impl Table {
    /// Creates the table without a ConfigMap.
    #[must_use]
    pub fn new(registrations: &'static [Registration], switches: &Switches) -> Self {
        let find = |name| registrations.iter().find(|one| one.is_named(name));
        let why_off = |one: &Registration| {
            let required = one.requires.and_then(find);
            switches.why_off(one).or_else(|| switches.why_off(required?))
        };
        let row = |registration: &'static Registration| Row {
            registration,
            off: why_off(registration),
            bound: registration.defaults(),
            counts: Arc::default(),
        };
        Self {
            rows: registrations.iter().map(row).collect(),
            accounts: BTreeSet::new(),
            faults: Vec::new(),
            more_faults: 0,
        }
    }

    /// Creates the table of the same filters with this data of the ConfigMap. Counts continue.
    #[must_use]
    pub fn with(&self, data: &BTreeMap<String, String>) -> Self {
        let reset = |row: &Row| Row {
            bound: row.registration.defaults(),
            ..row.clone()
        };
        let mut table = Table {
            rows: self.rows.iter().map(reset).collect(),
            accounts: BTreeSet::new(),
            faults: Vec::new(),
            more_faults: 0,
        };
        let mut entries: Vec<Vec<(&str, &str)>> = vec![Vec::new(); table.rows.len()];
        let mut count = 0;
        for (key, value) in data {
            let name = key.trim();
            let name = name.strip_prefix(KEY_PREFIX).unwrap_or(name);
            let place = table.rows.iter().position(|row| row.registration.is_named(name));
            match place {
                Some(place) => {
                    let room = ENTRIES_MAX - count;
                    let before = entries[place].len();
                    entries[place].extend(entry::split(value).take(room).map(|entry| (key.as_str(), entry)));
                    count += entries[place].len() - before;
                    if entry::split(value).nth(room).is_some() {
                        let reason = format!("more than {ENTRIES_MAX} entries in all; the others are not applied");
                        table.fault(key, "", reason);
                    }
                }
                None if OTHER_KEYS.contains(&key.as_str()) => {}
                None => table.fault(key, "", "no filter or setting of the hub has this name".to_owned()),
            }
        }
        for (place, entries) in entries.into_iter().enumerate() {
            for (key, entry, reason) in table.rows[place].apply(&entries) {
                table.fault(key, entry, reason);
            }
        }
        table.unbind_without_required();
        let bound = table.rows.iter().flat_map(|row| row.bound.keys());
        let accounts = bound.filter(|name| name.starts_with(ACCOUNT_PREFIX));
        table.accounts = accounts.cloned().collect();
        table
    }

    /// Service accounts that an entry binds to any filter. A caller with a token of one is known by it to all filters.
    #[must_use]
    pub fn accounts(&self) -> &BTreeSet<String> {
        &self.accounts
    }

    /// True if a configuration can bind a filter that concerns the objects of this request.
    #[must_use]
    pub fn is_filterable(&self, info: &RequestInfo) -> bool {
        let (namespace, name) = (info.namespace.as_deref(), info.name.as_deref());
        let mut running = self.rows.iter().filter(|row| row.off.is_none());
        running.any(|row| {
            row.place(&info.group, &info.resource).is_some() && row.registration.filter.concerns(namespace, name)
        })
    }

    /// Returns the filters for a request of `component` (lower case), or of a service account that an entry binds, in
    /// call order.
    #[must_use]
    pub fn chain(&self, component: &str, group: &str, resource: &str, verb: Verb) -> Chain {
        let bound = self.rows.iter().filter(|row| {
            let place = row.place(group, resource).filter(|_| row.off.is_none());
            let binding = place.and_then(|place| Some(row.bound.get(component)?.verbs[place]));
            binding.is_some_and(|verbs| verbs.has(verb))
        });
        let counted = bound.map(|row| (row.registration.filter, row.counts.clone()));
        Chain::counted(counted.collect())
    }

    /// Returns the component and the resource of each request whose filters differ between the tables. A service
    /// account that only one of them binds is returned with all resources: its callers are known by another name in the
    /// other.
    #[must_use]
    pub fn changes(&self, other: &Table) -> BTreeSet<(String, GroupResource)> {
        let rows = || self.rows.iter().chain(&other.rows);
        let components: BTreeSet<&String> = rows().flat_map(|row| row.bound.keys()).collect();
        let resources: BTreeSet<_> = rows().flat_map(|row| row.registration.resources).collect();
        let mut changed = BTreeSet::new();
        for (component, (group, resource)) in components
            .into_iter()
            .flat_map(|component| resources.iter().map(move |resource| (component, **resource)))
        {
            let names = |table: &Table| VERBS.map(|verb| table.chain(component, group, resource, verb).names());
            if names(self) != names(other) {
                changed.insert((component.clone(), GroupResource::new(group, resource)));
            }
        }
        for account in self.accounts.symmetric_difference(&other.accounts) {
            let of_account =
                |(group, resource): &&(&str, &str)| (account.clone(), GroupResource::new(*group, *resource));
            changed.extend(resources.iter().map(of_account));
        }
        changed
    }

    /// Filters in call order.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Entries that are not applied, at most 100.
    #[must_use]
    pub fn faults(&self) -> &[Fault] {
        &self.faults
    }

    /// Number of entries that are not applied.
    #[must_use]
    pub fn fault_count(&self) -> usize {
        self.faults.len() + self.more_faults
    }

    /// Removes the bindings of components that the required filter is not bound to, for lists and watches. An entry
    /// that binds one is a fault.
    fn unbind_without_required(&mut self) {
        for place in 0..self.rows.len() {
            let registration = self.rows[place].registration;
            let Some(required) = registration.requires else {
                continue;
            };
            let is_whole = |binding: &Binding| binding.verbs.iter().all(|verbs| verbs.list && verbs.watch);
            let required_rows = self.rows.iter().filter(|row| row.registration.is_named(required));
            let bound = required_rows.flat_map(|row| &row.bound);
            let served: BTreeSet<String> = bound
                .filter(|(_, binding)| is_whole(binding))
                .map(|(component, _)| component.clone())
                .collect();
            let (kept, removed): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut self.rows[place].bound)
                .into_iter()
                .partition(|(component, _)| served.contains(component));
            self.rows[place].bound = kept;
            for (component, binding) in removed {
                if binding.origin == Origin::ConfigMap {
                    let reason = format!("bind {required} to the same component, too");
                    self.fault(registration.filter.name(), &component, reason);
                }
            }
        }
    }

    fn fault(&mut self, key: &str, entry: &str, reason: String) {
        if self.faults.len() >= FAULTS_MAX {
            self.more_faults += 1;
            return;
        }
        self.faults.push(Fault {
            key: key.chars().take(QUOTE_MAX).collect(),
            entry: entry.chars().take(QUOTE_MAX).collect(),
            reason: reason.chars().take(3 * QUOTE_MAX).collect(),
        });
    }
}

// === impl Row ===

impl Row {
    fn place(&self, group: &str, resource: &str) -> Option<usize> {
        let mut resources = self.registration.resources.iter();
        resources.position(|(own, plural)| *own == group && *plural == resource)
    }

    /// Applies entries of all keys of this filter. Removals come first, so that exact entries can narrow a default.
    /// Returns key, entry and reason of those that are not applied.
    fn apply<'a>(&mut self, entries: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str, String)> {
        let mut faults = Vec::new();
        let mut readable = Vec::new();
        for (key, text) in entries {
            match entry::parse(text, self.registration) {
                Ok(entry) => readable.push((*key, *text, entry)),
                Err(reason) => faults.push((*key, *text, reason)),
            }
        }
        let whole: BTreeSet<String> = readable.iter().filter_map(|(.., entry)| entry.bound_whole()).collect();
        let defaults = self.registration.defaults();
        for (key, text, entry) in &readable {
            let Entry::Remove(component) = entry else { continue };
            if !defaults.contains_key(component) {
                faults.push((*key, *text, "the component is no default of this filter".to_owned()));
            } else if whole.contains(component) {
                faults.push((*key, *text, "another entry binds the same component".to_owned()));
            } else {
                self.bound.remove(component);
            }
        }
        for (.., entry) in readable {
            match entry {
                Entry::Remove(_) => {}
                Entry::Bind(component) => {
                    let verbs = self.binding(component);
                    verbs.iter_mut().for_each(|verbs| *verbs = Verbs::ALL);
                }
                Entry::BindExactly(component, place, added) => self.binding(component)[place].add(added),
            }
        }
        faults
    }

    /// The verbs of a component, none if it is not bound yet.
    fn binding(&mut self, component: String) -> &mut [Verbs] {
        let none = || Binding {
            origin: Origin::ConfigMap,
            verbs: vec![Verbs::default(); self.registration.resources.len()],
        };
        &mut self.bound.entry(component).or_insert_with(none).verbs
    }
}

// === impl Entry ===

impl Entry {
    fn bound_whole(&self) -> Option<String> {
        match self {
            Entry::Bind(component) => Some(component.clone()),
            Entry::BindExactly(..) | Entry::Remove(_) => None,
        }
    }
}

// === impl Origin ===

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Origin::Default => "default",
            Origin::ConfigMap => "ConfigMap",
        })
    }
}

// === impl Registration ===

impl Registration {
    /// Bindings without a ConfigMap.
    fn defaults(&self) -> BTreeMap<String, Binding> {
        let components = self.components.iter().filter(|_| !self.is_off);
        let binding = Binding {
            origin: Origin::Default,
            verbs: vec![Verbs::ALL; self.resources.len()],
        };
        components
            .map(|component| ((*component).to_owned(), binding.clone()))
            .collect()
    }
}

// === impl Switches ===

impl Switches {
    fn why_off(&self, registration: &Registration) -> Option<&'static str> {
        if self.all_off {
            Some("--enable-resource-filter=false")
        } else if self.disabled.contains(registration.filter.name()) {
            Some("--disabled-resource-filters")
        } else if self.in_cloud && registration.is_edge_only {
            Some("--working-mode=cloud")
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests;
