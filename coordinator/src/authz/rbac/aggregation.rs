//! Aggregated ClusterRoles: collects their rules from other roles.
//!
//! In kube-apiserver's control plane a controller writes these rules into the roles; here they are computed whenever
//! the files are read.

use std::collections::{BTreeMap, BTreeSet};

use super::{Key, PolicyRule, Role};

/// Gives every role with an aggregation the rules of the roles it selects, and of those that these select in turn. They
/// are in the order of the roles' names. Its own rules are dropped.
pub(super) fn settle(roles: &mut BTreeMap<Key, Role>) {
    let aggregated = roles.iter().filter(|(_, role)| !role.aggregation.is_empty());
    let settled: Vec<(Key, Vec<PolicyRule>)> = aggregated
        .map(|(key, role)| (key.clone(), lent(roles, key, role)))
        .collect();
    for (key, rules) in settled {
        if let Some(role) = roles.get_mut(&key) {
            role.rules = rules;
        }
    }
}

fn lent(roles: &BTreeMap<Key, Role>, key: &Key, role: &Role) -> Vec<PolicyRule> {
    let mut found = BTreeSet::from([key]);
    let mut open = vec![role];
    while let Some(role) = open.pop() {
        let selected = cluster_wide(roles).filter(|(_, other)| selects(role, other));
        for (key, other) in selected {
            if found.insert(key) {
                open.push(other);
            }
        }
    }
    let mut rules = Vec::new();
    let sources = found.into_iter().filter_map(|key| roles.get(key));
    for role in sources.filter(|role| role.aggregation.is_empty()) {
        for rule in &role.rules {
            if !rules.contains(rule) {
                rules.push(rule.clone());
            }
        }
    }
    rules
}

fn selects(role: &Role, other: &Role) -> bool {
    role.aggregation.iter().any(|selector| selector.matches(&other.labels))
}

fn cluster_wide(roles: &BTreeMap<Key, Role>) -> impl Iterator<Item = (&Key, &Role)> {
    roles.iter().take_while(|((namespace, _), _)| namespace.is_empty())
}
