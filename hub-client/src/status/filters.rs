//! Filters of the hub in `/debug/filters`: the table in effect with its counters, and the entries that are not applied.

use serde_json::{Map, Value, json};
use yurt_apimachinery::GroupResource;

use crate::filter::binding::{Binding, Row};
use crate::proxy::approver::Approval;

/// Returns the state of the filters, in call order, `spec.hostNetwork` of the NodePool as far as known, and whether
/// pods trust the hub's certificate.
pub(crate) fn describe(approval: &Approval, host_network: Option<bool>, is_trusted: bool) -> Value {
    let table = &approval.table;
    json!({
        "synced": approval.waits_for.is_none(),
        "waitsFor": approval.waits_for,
        "hostNetwork": host_network,
        "podsTrustHub": is_trusted,
        "filters": table.rows().iter().map(filter).collect::<Vec<_>>(),
        "configErrors": table.faults(),
        "configErrorCount": table.fault_count(),
    })
}

/// Returns the text of an Event about the entries that are not applied; `None` if all are.
pub(super) fn faults_in_words(approval: &Approval) -> Option<String> {
    let table = &approval.table;
    let first = table.faults().first()?;
    let more = match table.fault_count() - 1 {
        0 => String::new(),
        more => format!("; and {more} more, see /debug/filters of the hub"),
    };
    let entry = if first.entry.is_empty() {
        format!("key {:?}", first.key)
    } else {
        format!("entry {:?} of key {:?}", first.entry, first.key)
    };
    Some(format!(
        "ConfigMap yurt-hub-cfg: {entry} is not applied: {}{more}",
        first.reason
    ))
}

fn filter(row: &Row) -> Value {
    let counts: Map<String, Value> = row
        .counts
        .each()
        .map(|(name, count)| (name.to_owned(), count.into()))
        .into_iter()
        .collect();
    json!({
        "name": row.registration.filter.name(),
        "runs": row.off.is_none(),
        "offBecause": row.off,
        "resources": row.registration.resources.iter().map(name).collect::<Vec<_>>(),
        "bindings": row.bound.iter().map(|(component, binding)| bound(row, component, binding)).collect::<Vec<_>>(),
        "objects": counts,
    })
}

/// Describes the binding of one component: its origin, and its verbs if they are not all.
fn bound(row: &Row, component: &str, binding: &Binding) -> Value {
    let resources = row.registration.resources.iter().zip(&binding.verbs);
    let verbs: Map<String, Value> = resources
        .map(|(resource, verbs)| (name(resource), verbs.names().into()))
        .collect();
    json!({ "component": component, "origin": binding.origin.to_string(), "verbs": verbs })
}

fn name((group, plural): &(&str, &str)) -> String {
    GroupResource::new(*group, *plural).to_string()
}
