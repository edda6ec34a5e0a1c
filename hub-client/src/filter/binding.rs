//! Which filters apply to a request: by component, resource and verb.
//!
//! The table is the filters' own defaults plus what ConfigMap `yurt-hub-cfg` adds; defaults are never taken away.
//! A data key is a filter's name, with or without the prefix `filter_`; both spellings add up. Its value lists
//! agents, separated by commas, each in one of two ways:
//!
//! ```text
//! agent                           all resources and verbs of the filter
//! agent/resource#verb;verb        exactly that
//! ```

use std::collections::{BTreeMap, BTreeSet};

use yurt_apimachinery::Verb;

use super::{Chain, FILTERS, ObjectFilter};

/// The hub's own requests feed the filters; filtering them would make it wait for itself.
const UNFILTERED_COMPONENTS: [&str; 2] = ["yurthub", "leader-yurthub"];

/// Keys of the same ConfigMap that are about something else.
const OTHER_KEYS: [&str; 2] = ["cache_agents", "pool_scope_resources"];

/// The old spelling of a filter's key.
const KEY_PREFIX: &str = "filter_";

/// Verbs whose answers can be filtered. A get is filtered like a list: one client sees one object.
const VERBS: [Verb; 3] = [Verb::Get, Verb::List, Verb::Watch];

/// The table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bindings {
    /// Agent → resource, verb and the filter's place in [`FILTERS`], which is the order of calling.
    entries: BTreeMap<String, BTreeSet<(String, &'static str, usize)>>,
}

// === impl Bindings ===

impl Bindings {
    /// The defaults of all filters.
    pub fn builtin() -> Self {
        let mut bindings = Bindings {
            entries: BTreeMap::new(),
        };
        for (place, filter) in FILTERS.iter().enumerate() {
            for component in filter.default_components() {
                bindings.bind_all(component, place, *filter);
            }
        }
        bindings
    }

    /// The defaults and the data of ConfigMap `yurt-hub-cfg`, with one message for each entry that was not
    /// understood. Such an entry binds nothing; the others are not affected.
    pub fn from_config(data: &BTreeMap<String, String>) -> (Self, Vec<String>) {
        let mut bindings = Self::builtin();
        let mut messages = Vec::new();
        for (key, value) in data {
            let key = key.trim();
            let name = key.strip_prefix(KEY_PREFIX).unwrap_or(key);
            let entries: Vec<_> = value
                .split(',')
                .map(str::trim)
                .filter(|entry| !entry.is_empty())
                .collect();
            if OTHER_KEYS.contains(&key) || entries.is_empty() {
                continue;
            }
            let Some(place) = FILTERS.iter().position(|filter| filter.name() == name) else {
                messages.push(format!("key {key:?}: this hub has no filter {name:?}"));
                continue;
            };
            for entry in entries {
                if let Err(problem) = bindings.bind_entry(entry, place) {
                    messages.push(format!("key {key:?}, entry {entry:?}: {problem}"));
                }
            }
        }
        (bindings, messages)
    }

    /// The filters for a request of `component` (see [`component_of`]), in call order.
    pub fn chain(&self, component: &str, resource: &str, verb: Verb) -> Chain {
        let bound = self.entries.get(component).into_iter().flatten();
        let places: BTreeSet<usize> = bound
            .filter(|(bound_resource, bound_verb, _)| bound_resource == resource && *bound_verb == verb.as_str())
            .map(|(_, _, place)| *place)
            .collect();
        Chain::new(places.into_iter().map(|place| FILTERS[place]).collect())
    }

    fn bind_entry(&mut self, entry: &str, place: usize) -> Result<(), String> {
        let filter = FILTERS[place];
        let Some((agent, rest)) = entry.split_once('/') else {
            self.bind_all(&agent_name(entry)?, place, filter);
            return Ok(());
        };
        let agent = agent_name(agent.trim())?;
        let Some((resource, verbs)) = rest.split_once('#') else {
            return Err("expected agent/resource#verb;verb".to_owned());
        };
        let resource = resource.trim();
        if !filter.resources().contains(&resource) {
            return Err(format!(
                "filter {} is about {}",
                filter.name(),
                filter.resources().join(", ")
            ));
        }
        let verbs: Vec<_> = verbs
            .split(';')
            .map(|verb| parse_verb(verb.trim()))
            .collect::<Result<_, _>>()?;
        for verb in verbs {
            self.bind(&agent, resource, verb, place);
        }
        Ok(())
    }

    fn bind_all(&mut self, agent: &str, place: usize, filter: &dyn ObjectFilter) {
        for resource in filter.resources() {
            for verb in VERBS {
                self.bind(agent, resource, verb, place);
            }
        }
    }

    fn bind(&mut self, agent: &str, resource: &str, verb: Verb, place: usize) {
        let entries = self.entries.entry(agent.to_owned()).or_default();
        entries.insert((resource.to_owned(), verb.as_str(), place));
    }
}

/// The component of a User-Agent: what stands before the first slash, in lower case.
pub fn component_of(user_agent: &str) -> String {
    let (name, _) = user_agent.split_once('/').unwrap_or((user_agent, ""));
    name.trim().to_ascii_lowercase()
}

/// An agent as [`component_of`] would name it.
fn agent_name(text: &str) -> Result<String, String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if text.is_empty() || !text.bytes().all(is_plain) {
        return Err("an agent is a name of letters, digits, '-', '_' and '.'".to_owned());
    }
    let name = text.to_ascii_lowercase();
    if UNFILTERED_COMPONENTS.contains(&name.as_str()) {
        return Err("the hub's own requests are never filtered".to_owned());
    }
    Ok(name)
}

fn parse_verb(text: &str) -> Result<Verb, String> {
    let verb = VERBS.into_iter().find(|verb| verb.as_str() == text);
    verb.ok_or_else(|| format!("verb {text:?} is none of get, list, watch"))
}

#[cfg(test)]
mod tests;
