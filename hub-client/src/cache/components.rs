//! Components whose lists and watches are cached: a built-in set, and those that key `cache_agents` of ConfigMap
//! `yurt-hub-cfg` adds. Pure.

use std::collections::BTreeSet;

/// Key of the ConfigMap: names separated by commas, or `*` for all components.
pub const CONFIG_KEY: &str = "cache_agents";
/// Maximum length of a name, bytes.
const NAME_MAX: usize = 63;
/// Maximum number of names that the ConfigMap adds; later ones are reported and ignored.
const ADDED_MAX: usize = 256;
/// Components that are always cacheable, as in OpenYurt.
const BUILT_IN: [&str; 8] = [
    "kubelet",
    "kube-proxy",
    "flanneld",
    "coredns",
    "raven-agent-ds",
    "yurttunnel-agent",
    "yurthub",
    "leader-yurthub",
];
/// Maximum number of unusable entries that are kept with their reasons; the others are counted.
const PROBLEMS_MAX: usize = 100;
/// Tools of people. Their selections are seldom read again; `*` does not include them, and their own names do not either.
const NEVER: [&str; 5] = ["kubectl", "k9s", "helm", "curl", "wget"];

/// The cacheable components.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Components {
    added: BTreeSet<String>,
    all: bool,
    problems: Vec<String>,
}

// === impl Components ===

impl Components {
    /// Reads the value of [`CONFIG_KEY`]; `None` and an empty text add nothing. Entries that are not usable cost no other
    /// entry.
    #[must_use]
    pub fn parse(text: Option<&str>) -> Self {
        let (mut read, mut more) = (Self::default(), 0_usize);
        let names = text.unwrap_or_default().split(',').map(str::trim);
        for name in names.filter(|name| !name.is_empty()) {
            let why = match name {
                "*" => {
                    read.all = true;
                    continue;
                }
                name if NEVER.contains(&name) => Some("it is never cached"),
                name if !is_name(name) => Some("a name has at most 63 characters of a-z, 0-9, '-' and '.'"),
                _ if read.added.len() == ADDED_MAX => Some("256 names at most"),
                _ => None,
            };
            match why {
                Some(_) if read.problems.len() >= PROBLEMS_MAX => more += 1,
                Some(why) => read.problems.push(format!("{CONFIG_KEY} {:?}: {why}", shortened(name))),
                None => drop(read.added.insert(name.to_owned())),
            }
        }
        if more > 0 {
            read.problems
                .push(format!("{CONFIG_KEY}: {more} more entries are not used"));
        }
        read
    }

    /// True if the lists and watches of `component` are cached.
    #[must_use]
    pub fn has(&self, component: &str) -> bool {
        is_name(component)
            && !NEVER.contains(&component)
            && (self.all || BUILT_IN.contains(&component) || self.added.contains(component))
    }

    /// Entries that are not used, each with its reason.
    #[must_use]
    pub fn problems(&self) -> &[String] {
        &self.problems
    }
}

fn is_name(name: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    let is_outer = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    name.len() <= NAME_MAX
        && name.bytes().all(is_inner)
        && is_outer(name.bytes().next())
        && is_outer(name.bytes().last())
}

/// The beginning of a text, for a message.
fn shortened(text: &str) -> String {
    text.chars().take(NAME_MAX + 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_configmap_are_added_to_the_built_in_ones() {
        let none = Components::parse(None);
        assert!(none.has("kubelet") && none.has("coredns") && !none.has("calico-node"));
        let some = Components::parse(Some(" calico-node , ,edge.agent"));
        assert!(some.has("kubelet") && some.has("calico-node") && some.has("edge.agent") && !some.has("other"));
        assert!(some.problems().is_empty());
    }

    #[test]
    fn star_is_everybody_but_tools_of_people_and_clients_without_a_name() {
        let all = Components::parse(Some("*"));
        assert!(all.has("anything"));
        for never in ["kubectl", "", "..", "a/b", "-x", &"a".repeat(64)] {
            assert!(!all.has(never), "{never:?}");
        }
    }

    #[test]
    fn entry_that_is_no_name_is_reported_and_costs_no_other() {
        let read = Components::parse(Some("../etc,kubectl,Flannel,ok"));
        assert!(read.has("ok") && !read.has("../etc") && !read.has("kubectl"));
        assert_eq!(read.problems().len(), 3, "{:?}", read.problems());
        let many: Vec<_> = (0..300).map(|n| format!("a{n}")).collect();
        assert_eq!(
            Components::parse(Some(&many.join(","))).problems().len(),
            300 - ADDED_MAX
        );
    }

    #[test]
    fn unusable_entries_take_bounded_memory() {
        let components = Components::parse(Some(&"A,".repeat(100_000)));
        assert_eq!(components.problems().len(), PROBLEMS_MAX + 1);
        assert!(components.problems()[PROBLEMS_MAX].contains("99900 more"));
    }
}
