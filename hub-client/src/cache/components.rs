//! Components whose lists and watches are cached: a built-in set, and those that key `cache_agents` of ConfigMap
//! `yurt-hub-cfg` adds, without those that it excludes. It may name service accounts like components. Pure.

use std::collections::BTreeSet;

use http::HeaderMap;

use crate::client_name::{ACCOUNT_PREFIX, COMPONENT_MAX, is_account, is_component};

/// Key of the ConfigMap: names separated by commas, `*` for all components, `-name` to exclude one.
pub const CONFIG_KEY: &str = "cache_agents";
/// Header with which a client asks for its reads to be cached, as in OpenYurt; it is not passed on to the cloud.
pub const EDGE_CACHE: &str = "edge-cache";
/// Maximum number of names that the ConfigMap has; later ones are reported and ignored.
const NAMES_MAX: usize = 256;
/// Components that are cacheable unless the ConfigMap excludes them, as in OpenYurt.
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
/// Tools of people. Their selections are seldom read again; `*` does not include them, and their own names do not
/// either.
const NEVER: [&str; 5] = ["kubectl", "k9s", "helm", "curl", "wget"];

/// The cacheable components.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Components {
    added: BTreeSet<String>,
    excluded: BTreeSet<String>,
    all: bool,
    problems: Vec<String>,
}

// === impl Components ===

impl Components {
    /// Reads the value of [`CONFIG_KEY`]; `None` and an empty text add nothing. Entries that are not usable cost no
    /// other entry.
    #[must_use]
    pub fn parse(text: Option<&str>) -> Self {
        let (mut read, mut more) = (Self::default(), 0_usize);
        let entries = text.unwrap_or_default().split(',').map(str::trim);
        for entry in entries.filter(|entry| !entry.is_empty()) {
            let (name, is_excluded) = match entry.strip_prefix('-') {
                Some(name) => (name.trim(), true),
                None => (entry, false),
            };
            let why = match entry {
                "*" => {
                    read.all = true;
                    continue;
                }
                _ if NEVER.contains(&name) => Some("it is never cached"),
                _ if !is_name(name) => Some(
                    "a name has at most 63 characters of a-z, 0-9, '-', '_' and '.', or is \
                     system:serviceaccount:NAMESPACE:NAME",
                ),
                _ if read.added.len() + read.excluded.len() == NAMES_MAX => Some("256 names at most"),
                _ => None,
            };
            let names = if is_excluded {
                &mut read.excluded
            } else {
                &mut read.added
            };
            match why {
                Some(_) if read.problems.len() >= PROBLEMS_MAX => more += 1,
                Some(why) => read
                    .problems
                    .push(format!("{CONFIG_KEY} {:?}: {why}", shortened(entry))),
                None => drop(names.insert(name.to_owned())),
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
            && !self.excludes(component)
            && !NEVER.contains(&component)
            && (self.all || BUILT_IN.contains(&component) || self.added.contains(component))
    }

    /// True if `component` reads no data of the cache, also without the cloud.
    #[must_use]
    pub fn excludes(&self, component: &str) -> bool {
        self.excluded.contains(component)
    }

    /// True if the built-in set or the ConfigMap names `component`: one of at most 264.
    #[must_use]
    pub fn names(&self, component: &str) -> bool {
        BUILT_IN.contains(&component) || self.added.contains(component) || self.excluded.contains(component)
    }

    /// True if the ConfigMap names a service account.
    #[must_use]
    pub fn names_accounts(&self) -> bool {
        let mut names = self.added.iter().chain(&self.excluded);
        names.any(|name| name.starts_with(ACCOUNT_PREFIX))
    }

    /// Entries that are not used, each with its reason.
    #[must_use]
    pub fn problems(&self) -> &[String] {
        &self.problems
    }
}

/// True for the name of a component, and for the user name of a service account.
fn is_name(name: &str) -> bool {
    is_component(name) || is_account(name)
}

/// True if a client asks for its reads to be cached.
#[must_use]
pub fn is_asked_for(headers: &HeaderMap) -> bool {
    let asked = headers.get(EDGE_CACHE);
    asked.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"true"))
}

/// The beginning of a text, for a message.
fn shortened(text: &str) -> String {
    text.chars().take(COMPONENT_MAX + 1).collect()
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
        let accounts = [
            "system:serviceaccount:a",
            "system:serviceaccount::b",
            "system:serviceaccount:a:b:c",
        ];
        for never in ["kubectl", "", "..", "a/b", "-x", &"a".repeat(64)]
            .into_iter()
            .chain(accounts)
        {
            assert!(!all.has(never), "{never:?}");
        }
    }

    #[test]
    fn excluded_name_is_not_cached_wherever_it_stands() {
        for text in [
            "*,-calico-ipam",
            "-calico-ipam,*,calico-ipam",
            "- calico-ipam,calico_node",
        ] {
            let read = Components::parse(Some(text));
            assert!(read.excludes("calico-ipam") && !read.has("calico-ipam"), "{text}");
            assert!(read.has("calico_node"), "{text}");
            assert!(read.has("kubelet") && !read.excludes("kubelet"), "{text}");
            assert_eq!(read.problems(), [""; 0], "{text}");
        }
        assert!(!Components::parse(Some("-coredns")).has("coredns"));
        let account = "system:serviceaccount:kube-system:calico-node";
        assert!(Components::parse(Some(account)).has(account));
        let excluded = Components::parse(Some(&format!("*,-{account}")));
        assert!(excluded.excludes(account) && excluded.names_accounts());
        assert!(!Components::parse(Some("*,-calico-ipam")).names_accounts());
        assert_eq!(Components::parse(Some("-,--x,-*")).problems().len(), 3);
    }

    #[test]
    fn entry_that_is_no_name_is_reported_and_costs_no_other() {
        let read = Components::parse(Some("../etc,kubectl,Flannel,ok"));
        assert!(read.has("ok") && !read.has("../etc") && !read.has("kubectl"));
        assert_eq!(read.problems().len(), 3, "{:?}", read.problems());
        let many: Vec<_> = (0..300).map(|n| format!("a{n}")).collect();
        assert_eq!(
            Components::parse(Some(&many.join(","))).problems().len(),
            300 - NAMES_MAX
        );
    }

    #[test]
    fn unusable_entries_take_bounded_memory() {
        let components = Components::parse(Some(&"A,".repeat(100_000)));
        assert_eq!(components.problems().len(), PROBLEMS_MAX + 1);
        assert!(components.problems()[PROBLEMS_MAX].contains("99900 more"));
    }
}
