//! Commands that make the node's network as desired, computed from what programs report about it. Pure.

use std::net::IpAddr;

use super::NodeNetwork;

/// Chain of iptables that belongs to the hub.
const CHAIN: &str = "YURTHUB";
/// Built-in chains that jump to it.
const BASES: [&str; 2] = ["INPUT", "OUTPUT"];
/// Table of nftables that belongs to the hub.
const TABLE: &str = "yurthub";
/// Loopback, for kernels without dummy interfaces.
pub(super) const LOOPBACK: &str = "lo";
/// Label of the hub's address there. The kernel keeps one for each IPv4 address.
const LABEL: &str = "lo:yurthub";

/// Arguments of one call.
pub(super) type Call = Vec<String>;

/// An interface as reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) is_up: bool,
    pub(super) addresses: Vec<IpAddr>,
    /// Those with the hub's label.
    pub(super) labelled: Vec<IpAddr>,
}

// === impl Link ===

impl Link {
    /// Reads `ip -o link show dev X` and `ip -o addr show dev X`.
    pub(super) fn parse(link: &str, addresses: &str) -> Self {
        let flags = link.split_once('<').and_then(|(_, rest)| rest.split_once('>'));
        let flags = flags.map_or("", |(flags, _)| flags);
        let address = |line: &str| {
            let mut words = line
                .split_whitespace()
                .skip_while(|word| !matches!(*word, "inet" | "inet6"));
            words.nth(1)?.split('/').next()?.parse().ok()
        };
        let is_labelled = |line: &&str| line.split([' ', '\\']).any(|word| word == LABEL);
        Self {
            is_up: flags.split(',').any(|flag| flag == "UP"),
            addresses: addresses.lines().filter_map(address).collect(),
            labelled: addresses.lines().filter(is_labelled).filter_map(address).collect(),
        }
    }
}

fn call(words: &[&str]) -> Call {
    words.iter().map(|word| (*word).to_owned()).collect()
}

impl NodeNetwork {
    fn prefix(&self) -> String {
        host_prefix(&self.address)
    }

    /// True for an address that the hub's interface must not have. Link-local addresses of IPv6 are the kernel's.
    fn is_stale(&self, address: &IpAddr) -> bool {
        let is_kernels = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
        *address != self.address && !is_kernels
    }

    fn add_address(&self, interface: &str) -> Call {
        let mut words = call(&["addr", "add", &self.prefix(), "dev", interface]);
        if self.address.is_ipv6() {
            // Duplicate detection would delay the bind, and the address is never on a wire.
            words.push("nodad".to_owned());
        }
        words
    }

    /// Calls of `ip` that give the hub's own interface the address; none if it has it.
    pub(super) fn link_changes(&self, present: Option<&Link>) -> Vec<Call> {
        let name = self.interface.as_str();
        let Some(present) = present else {
            let add = call(&["link", "add", "name", name, "type", "dummy"]);
            return vec![add, self.add_address(name), call(&["link", "set", "dev", name, "up"])];
        };
        let stale = present.addresses.iter().filter(|address| self.is_stale(address));
        let mut calls: Vec<Call> = stale.map(|address| remove_address(address, name)).collect();
        if !present.addresses.contains(&self.address) {
            calls.push(self.add_address(name));
        }
        if !present.is_up {
            calls.push(call(&["link", "set", "dev", name, "up"]));
        }
        calls
    }

    /// The same on loopback, where the hub's former addresses are those with its label.
    pub(super) fn loopback_changes(&self, present: &Link) -> Vec<Call> {
        let stale = present.labelled.iter().filter(|address| self.is_stale(address));
        let mut calls: Vec<Call> = stale.map(|address| remove_address(address, LOOPBACK)).collect();
        if !present.addresses.contains(&self.address) {
            let mut add = self.add_address(LOOPBACK);
            if self.address.is_ipv4() {
                add.extend(call(&["label", LABEL]));
            }
            calls.push(add);
        }
        calls
    }

    /// Calls of `ip` that remove what the others made.
    pub(super) fn link_removal(&self, own: Option<&Link>, loopback: &Link) -> Vec<Call> {
        let mut calls = Vec::new();
        if own.is_some() {
            calls.push(call(&["link", "del", "dev", &self.interface]));
        }
        let is_own = |address: &&IpAddr| **address == self.address || loopback.labelled.contains(address);
        let own = loopback.addresses.iter().filter(is_own);
        calls.extend(
            own.filter(|address| !address.is_loopback())
                .map(|address| remove_address(address, LOOPBACK)),
        );
        calls
    }

    /// Program of the address family.
    pub(super) fn iptables(&self) -> &'static str {
        if self.address.is_ipv4() {
            "iptables"
        } else {
            "ip6tables"
        }
    }

    /// Rules of the chain, as `iptables -S` prints them.
    fn rules(&self) -> Vec<String> {
        let address = self.prefix();
        let both = self.ports.iter().flat_map(|port| {
            [
                format!("-A {CHAIN} -d {address} -p tcp -m tcp --dport {port} -j ACCEPT"),
                format!("-A {CHAIN} -s {address} -p tcp -m tcp --sport {port} -j ACCEPT"),
            ]
        });
        both.collect()
    }

    /// Calls of iptables that make the chain and the two jumps to it. `present` is the output of `iptables -S`.
    pub(super) fn iptables_changes(&self, present: &str) -> Vec<Call> {
        let has = |line: &str| present.lines().any(|known| known.trim_end() == line);
        let rule = |text: &str| call(&text.split(' ').collect::<Vec<_>>());
        let mut calls = Vec::new();
        let own: Vec<&str> = present
            .lines()
            .map(str::trim_end)
            .filter(|line| line.starts_with(&rule_prefix()))
            .collect();
        if !has(&format!("-N {CHAIN}")) {
            calls.push(call(&["-N", CHAIN]));
        }
        if own != self.rules() {
            if !own.is_empty() {
                calls.push(call(&["-F", CHAIN]));
            }
            calls.extend(self.rules().iter().map(|text| rule(text)));
        }
        for base in BASES.into_iter().filter(|base| !has(&format!("-A {base} -j {CHAIN}"))) {
            calls.push(call(&["-I", base, "1", "-j", CHAIN]));
        }
        calls
    }

    /// Calls of iptables that remove the chain and the jumps.
    pub(super) fn iptables_removal(&self, present: &str) -> Vec<Call> {
        let has = |line: &str| present.lines().any(|known| known.trim_end() == line);
        let jumps = BASES.into_iter().filter(|base| has(&format!("-A {base} -j {CHAIN}")));
        let mut calls: Vec<Call> = jumps.map(|base| call(&["-D", base, "-j", CHAIN])).collect();
        if has(&format!("-N {CHAIN}")) {
            calls.extend([call(&["-F", CHAIN]), call(&["-X", CHAIN])]);
        }
        calls
    }

    fn family(&self) -> &'static str {
        if self.address.is_ipv4() { "ip" } else { "ip6" }
    }

    /// Call of nft that prints the hub's table, with numbers instead of names.
    pub(super) fn nft_list(&self) -> Call {
        call(&["-nn", "list", "table", self.family(), TABLE])
    }

    /// True if the hub's table as printed is the desired one.
    pub(super) fn is_nft_table(&self, present: &str) -> bool {
        let lines = |text: &str| -> Vec<String> {
            let lines = text.lines().map(|line| line.trim().to_owned());
            lines.filter(|line| !line.is_empty()).collect()
        };
        lines(present) == lines(&self.nft_table())
    }

    /// Script of nft that makes the table, replacing an older one in the same transaction.
    pub(super) fn nft_script(&self) -> String {
        let (family, table) = (self.family(), self.nft_table());
        format!("table {family} {TABLE}\ndelete table {family} {TABLE}\n{table}")
    }

    /// The table as nft prints it, but for empty lines. In a set, the numbers are in order.
    fn nft_table(&self) -> String {
        let (family, address) = (self.family(), self.address);
        let mut ports = self.ports;
        ports.sort_unstable();
        let ports = ports.map(|port| port.to_string()).join(", ");
        format!(
            "table {family} {TABLE} {{\n\
             \tchain input {{\n\t\ttype filter hook input priority -10; policy accept;\n\
             \t\t{family} daddr {address} tcp dport {{ {ports} }} accept\n\t}}\n\
             \tchain output {{\n\t\ttype filter hook output priority -10; policy accept;\n\
             \t\t{family} saddr {address} tcp sport {{ {ports} }} accept\n\t}}\n}}\n"
        )
    }

    /// Call of nft that removes the table.
    pub(super) fn nft_removal(&self) -> Call {
        call(&["delete", "table", self.family(), TABLE])
    }
}

fn rule_prefix() -> String {
    format!("-A {CHAIN} ")
}

fn remove_address(address: &IpAddr, interface: &str) -> Call {
    call(&["addr", "del", &host_prefix(address), "dev", interface])
}

fn host_prefix(address: &IpAddr) -> String {
    format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 })
}
