//! Entries of a filter's value in ConfigMap `yurt-hub-cfg`, separated by commas.
//!
//! `component` binds all resources and verbs of the filter, `component/resource#verb;verb` exactly these,
//! `-component` removes a default of the filter. A service account may stand in the place of a component to bind.

use yurt_apimachinery::Verb;

use crate::client_name::{COMPONENT_MAX, is_account, is_component};
use crate::filter::Registration;

/// Components of the hub itself, as upstream names them; their data is the source of all views.
const OWN: [&str; 2] = ["yurthub", "leader-yurthub"];

/// Verbs that a filter is bound to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verbs {
    /// Read of one object.
    pub get: bool,
    /// Read of a collection.
    pub list: bool,
    /// Watch of a collection.
    pub watch: bool,
}

/// Readable entry. Names are in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// All resources and verbs.
    Bind(String),
    /// One resource, by its place in the registration, and these verbs.
    BindExactly(String, usize, Verbs),
    /// No resource, although it is a default.
    Remove(String),
}

/// Splits a value into its entries, without spaces around them and without empty ones.
pub(super) fn split(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').map(str::trim).filter(|entry| !entry.is_empty())
}

/// Reads an entry.
///
/// # Errors
/// Reason, with the fix.
pub(super) fn parse(entry: &str, registration: &Registration) -> Result<Entry, String> {
    if let Some(removed) = entry.strip_prefix('-') {
        return Ok(Entry::Remove(name(removed.trim())?));
    }
    let Some((client, scope)) = entry.split_once('/') else {
        return Ok(Entry::Bind(name(entry)?));
    };
    let client = name(client.trim())?;
    let (resource, verbs) = scope
        .split_once('#')
        .ok_or("write component, or component/resource#verb;verb")?;
    let resource = resource.trim().to_lowercase();
    let is_named = |(group, plural): &(&str, &str)| {
        let rest = resource.strip_prefix(plural);
        rest.is_some_and(|rest| rest.is_empty() || rest.strip_prefix('.').is_some_and(|rest| rest == *group))
    };
    let place = registration.resources.iter().position(is_named).ok_or_else(|| {
        let handled: Vec<&str> = registration.resources.iter().map(|(_, plural)| *plural).collect();
        format!("the filter handles only {}", handled.join(", "))
    })?;
    Ok(Entry::BindExactly(client, place, Verbs::parse(verbs)?))
}

/// Name of a component or of a service account, in lower case.
fn name(name: &str) -> Result<String, String> {
    let lower = name.to_lowercase();
    if OWN.contains(&&*lower) {
        return Err("the hub's own requests are never filtered".to_owned());
    }
    if is_component(&lower) || is_account(&lower) {
        return Ok(lower);
    }
    Err(match name {
        "*" => "a wildcard is not supported; name each component".to_owned(),
        _ => format!(
            "{name:?} is no component: write the part of its User-Agent before the first slash, up to {COMPONENT_MAX} \
             letters, digits, and the characters - _ ., or system:serviceaccount:NAMESPACE:NAME"
        ),
    })
}

// === impl Verbs ===

impl Verbs {
    /// All verbs whose responses can be filtered.
    pub const ALL: Self = Verbs {
        get: true,
        list: true,
        watch: true,
    };

    fn parse(text: &str) -> Result<Self, String> {
        let mut verbs = Verbs::default();
        for verb in text.split(';').map(str::trim).filter(|verb| !verb.is_empty()) {
            match verb.to_lowercase().as_str() {
                "get" => verbs.get = true,
                "list" => verbs.list = true,
                "watch" => verbs.watch = true,
                _ => return Err(format!("{verb:?} is not get, list or watch")),
            }
        }
        if verbs == Verbs::default() {
            return Err("no verb; write #list;watch".to_owned());
        }
        Ok(verbs)
    }

    /// True if responses to `verb` are filtered. A get is filtered like a list or a watch: a client has one view of an
    /// object.
    #[must_use]
    pub fn has(self, verb: Verb) -> bool {
        match verb {
            Verb::Get => self != Verbs::default(),
            Verb::List => self.list,
            Verb::Watch => self.watch,
            _ => false,
        }
    }

    /// Names of the verbs whose responses are filtered.
    #[must_use]
    pub fn names(self) -> Vec<&'static str> {
        let verbs = [Verb::Get, Verb::List, Verb::Watch].into_iter();
        verbs.filter(|verb| self.has(*verb)).map(Verb::as_str).collect()
    }

    /// Adds the verbs of `other`.
    pub(super) fn add(&mut self, other: Self) {
        self.get |= other.get;
        self.list |= other.list;
        self.watch |= other.watch;
    }
}
