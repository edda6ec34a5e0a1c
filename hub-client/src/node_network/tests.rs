//! Plans of the dummy address and of the NAT rules, played on recorded answers of the system's programs.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::*;

fn desired(address: &str) -> NodeNetwork {
    NodeNetwork {
        interface: "yurthub-dummy0".to_owned(),
        address: address.parse().unwrap(),
        ports: [10261, 10268],
        accepts: true,
    }
}

/// Whether an interface is up, and its addresses with their labels.
type Interface = (bool, BTreeMap<String, String>);
type Links = BTreeMap<String, Interface>;

/// Message of iptables on a kernel without its tables.
const NO_TABLE: &str = "can't initialize iptables table `filter': Table does not exist (do you need to insmod?)";

fn of<'a>(links: &'a mut Links, name: &str) -> Result<&'a mut Interface, &'static str> {
    links.get_mut(name).ok_or("does not exist")
}

/// A machine with interfaces, the filter table of iptables, and nft's tables.
#[derive(Default)]
struct Machine {
    links: Mutex<Links>,
    rules: Mutex<Vec<String>>,
    tables: Mutex<BTreeMap<String, String>>,
    /// Changes so far.
    changes: Mutex<Vec<String>>,
    has_no_dummy: bool,
    has_no_iptables: bool,
    /// True if iptables is installed and the kernel has no table for it.
    has_no_ip_tables: bool,
    /// True if iptables lists its rules, and the kernel refuses those of the hub.
    has_no_matches: bool,
    /// True if the caller may not use iptables.
    is_denied: bool,
    /// True if another program holds the lock of iptables.
    is_locked: bool,
}

// === impl Machine ===

impl Machine {
    fn new() -> Self {
        let machine = Self::default();
        let loopback = (
            true,
            BTreeMap::from(["127.0.0.1/8", "192.0.2.7/32"].map(|address| (address.to_owned(), "lo".to_owned()))),
        );
        machine.links.lock().insert(LOOPBACK.to_owned(), loopback);
        let foreign = [
            "-P INPUT DROP",
            "-P OUTPUT ACCEPT",
            "-N OTHER",
            "-A INPUT -j OTHER",
            "-A OTHER -j DROP",
        ];
        *machine.rules.lock() = foreign.map(str::to_owned).to_vec();
        machine
    }

    fn state(&self) -> (Vec<String>, String, Vec<String>) {
        let tables = self.tables.lock().values().cloned().collect();
        (self.rules.lock().clone(), format!("{:?}", self.links.lock()), tables)
    }

    fn take_changes(&self) -> Vec<String> {
        std::mem::take(&mut *self.changes.lock())
    }

    fn ip(&self, call: &[&str]) -> Result<String, &'static str> {
        let mut links = self.links.lock();
        match call {
            ["-o", "link", "show", "dev", name] => {
                let flags = if of(&mut links, name)?.0 {
                    "NOARP,UP,LOWER_UP"
                } else {
                    "NOARP"
                };
                return Ok(format!("5: {name}: <BROADCAST,{flags}> mtu 1500"));
            }
            ["-o", "addr", "show", "dev", name] => {
                let line = |(one, label): (&String, &String)| {
                    format!("5: {name}    inet {one} scope global {label}\\       valid_lft forever\n")
                };
                return Ok(of(&mut links, name)?.1.iter().map(line).collect());
            }
            ["link", "add", "name", _, "type", "dummy"] if self.has_no_dummy => return Err("Unknown device type."),
            ["link", "add", "name", name, "type", "dummy"] => {
                links.insert((*name).to_owned(), Default::default());
            }
            ["link", "del", "dev", name] => {
                links.remove(*name).ok_or("does not exist")?;
            }
            ["link", "set", "dev", name, "up"] => of(&mut links, name)?.0 = true,
            ["addr", "add", address, "dev", name, options @ ..] => {
                let label = match options {
                    ["label", label] => label,
                    _ => name,
                };
                let former = of(&mut links, name)?
                    .1
                    .insert((*address).to_owned(), (*label).to_owned());
                former.is_none().then_some(()).ok_or("File exists")?;
            }
            ["addr", "del", address, "dev", name] => {
                let was = of(&mut links, name)?.1.remove(*address);
                was.map(drop).ok_or("Cannot assign requested address")?;
            }
            other => panic!("unexpected call of ip: {other:?}"),
        }
        Ok(String::new())
    }

    fn iptables(&self, call: &[&str]) -> Result<String, &'static str> {
        let mut rules = self.rules.lock();
        assert_eq!(call[0], "-w", "without the lock another program's change may be lost");
        assert_eq!(call[1], "5", "a lock that is held must not hold up the hub");
        match &call[2..] {
            ["-A", ..] if self.has_no_matches => return Err("No chain/target/match by that name"),
            ["-S"] => return Ok(rules.join("\n") + "\n"),
            ["-N", chain] => rules.push(format!("-N {chain}")),
            ["-F", chain] => rules.retain(|rule| !rule.starts_with(&format!("-A {chain} "))),
            ["-X", chain] => rules.retain(|rule| *rule != format!("-N {chain}")),
            ["-A", ..] => rules.push(call[2..].join(" ")),
            ["-I", base, "1", "-j", chain] => rules.insert(2, format!("-A {base} -j {chain}")),
            ["-D", base, "-j", chain] => rules.retain(|rule| *rule != format!("-A {base} -j {chain}")),
            other => panic!("unexpected call of iptables: {other:?}"),
        }
        Ok(String::new())
    }

    fn nft(&self, call: &[&str], input: &str) -> Result<String, &'static str> {
        let mut tables = self.tables.lock();
        match call {
            ["-nn", "list", "table", "ip", "yurthub"] => return tables.get("yurthub").cloned().ok_or("No such file"),
            ["-f", "-"] => {
                let table = input
                    .strip_prefix("table ip yurthub\ndelete table ip yurthub\n")
                    .expect("the former table must go in the same transaction");
                // nft prints an empty line between chains.
                tables.insert("yurthub".to_owned(), table.replace("\t}\n\tchain", "\t}\n\n\tchain"));
            }
            ["delete", "table", "ip", "yurthub"] => {
                tables.remove("yurthub").ok_or("No such file")?;
            }
            other => panic!("unexpected call of nft: {other:?}"),
        }
        Ok(String::new())
    }
}

impl Programs for Machine {
    fn run(&self, program: &str, call: &[String], input: &str) -> Result<String, ProgramError> {
        let words: Vec<&str> = call.iter().map(String::as_str).collect();
        let failed = |why: &str| ProgramError::Failed(why.to_owned());
        let output = match program {
            "iptables" if self.has_no_iptables => return Err(ProgramError::Missing),
            "iptables" if self.is_denied => return Err(failed("Permission denied (you must be root)")),
            "iptables" if self.has_no_ip_tables => return Err(ProgramError::NoTables(NO_TABLE.to_owned())),
            "iptables" if self.is_locked => return Err(ProgramError::Busy("the lock is held".to_owned())),
            "ip" => self.ip(&words),
            "iptables" => self.iptables(&words),
            "nft" => self.nft(&words, input),
            other => panic!("unexpected program {other}"),
        };
        if !words.iter().any(|word| matches!(*word, "show" | "-S" | "list")) {
            self.changes.lock().push(format!("{program} {}", call.join(" ")));
        }
        output.map_err(failed)
    }
}

#[test]
fn address_that_cannot_be_restored_is_a_failure_until_it_is() {
    let failures = Failures::new(yurt_runtime::Clock::system());
    tell(&failures, Err(NetworkError("no ip".to_owned())));
    assert_eq!(failures.why(ADDRESS).as_deref(), Some("no ip"));
    let made = Made {
        interface: AddressInterface::Dummy,
        firewall: Err("locked".to_owned()),
    };
    tell(&failures, Ok(made));
    assert_eq!(
        (failures.why(ADDRESS), failures.why(FIREWALL).as_deref()),
        (None, Some("locked"))
    );
}

#[tokio::test(start_paused = true)]
async fn address_that_a_start_could_not_make_is_tried_with_growing_pauses_until_it_is_there() {
    let (begun, attempts, told) = (tokio::time::Instant::now(), Mutex::new(Vec::new()), Mutex::new(0));
    let ensure = || {
        let mut attempts = attempts.lock();
        attempts.push(begun.elapsed().as_secs() / 60);
        let is_last = attempts.len() == 8;
        let made = Made {
            interface: AddressInterface::Dummy,
            firewall: Ok(()),
        };
        std::future::ready(is_last.then_some(made).ok_or(NetworkError("no ip".to_owned())))
    };
    until_made(ensure, |_| *told.lock() += 1).await;
    // Minutes: pauses of 1, 2, 4, 8, 16, 30, 30 and 30.
    assert_eq!((*attempts.lock()).as_slice(), [1, 3, 7, 15, 31, 61, 91, 121]);
    assert_eq!(*told.lock(), 7);
}

#[test]
fn network_is_made_once_and_removed_without_a_trace() {
    for lacks in 0..8 {
        let has_no_dummy = lacks & 1 != 0;
        let machine = Machine {
            has_no_dummy,
            has_no_iptables: lacks & 2 != 0,
            has_no_ip_tables: lacks & 4 != 0,
            ..Machine::new()
        };
        let (before, own) = (machine.state(), desired("169.254.2.1"));
        let interface = own.ensure_with(&machine).unwrap().interface;
        assert_eq!(interface != AddressInterface::Dummy, has_no_dummy);
        machine.take_changes();
        let made = machine.state();
        own.ensure_with(&machine).unwrap();
        let again = machine.take_changes();
        // Only a kernel's missing feature is tried again.
        assert!(
            again.iter().all(|change| has_no_dummy && change.contains("type dummy")),
            "{again:?}"
        );
        assert_eq!(machine.state(), made);
        own.cleanup_with(&machine).unwrap();
        assert_eq!(machine.state(), before);
        machine.take_changes();
        own.cleanup_with(&machine).unwrap();
        assert_eq!(machine.take_changes(), [""; 0], "nothing left to remove");
    }
}

#[test]
fn another_address_or_port_replaces_the_former_one_and_its_rules() {
    let flags = |address, port| NodeNetwork {
        ports: [port, 10268],
        ..desired(address)
    };
    // The address of the second one begins the first one's.
    let each = [
        flags("169.254.2.15", 10261),
        flags("169.254.2.1", 10261),
        flags("169.254.2.1", 10271),
    ];
    for (has_no_dummy, has_no_iptables) in [(false, false), (true, true)] {
        let machine = Machine {
            has_no_dummy,
            has_no_iptables,
            ..Machine::new()
        };
        for own in &each {
            own.ensure_with(&machine).unwrap();
            let fresh = Machine {
                has_no_dummy,
                has_no_iptables,
                ..Machine::new()
            };
            own.ensure_with(&fresh).unwrap();
            assert_eq!(machine.state(), fresh.state(), "{own:?}");
        }
    }
}

#[test]
fn cleanup_finds_a_former_address_on_loopback() {
    let machine = Machine {
        has_no_dummy: true,
        ..Machine::new()
    };
    let before = machine.state();
    desired("169.254.2.15").ensure_with(&machine).unwrap();
    desired("169.254.2.1").cleanup_with(&machine).unwrap();
    assert_eq!(machine.state(), before);
}

#[test]
fn program_that_does_not_end_is_killed() {
    let limit = Duration::from_millis(100);
    let error = Installed::run_within(limit, "sleep", &["3600".to_owned()], "").unwrap_err();
    let text = error.text("sleep");
    assert!(text.contains("sleep 3600: did not end within 100ms"), "{text}");
}

#[test]
fn rules_of_others_stay_and_a_lost_jump_returns() {
    let machine = Machine::new();
    let own = desired("169.254.2.1");
    own.ensure_with(&machine).unwrap();
    machine.rules.lock().retain(|rule| rule != "-A INPUT -j YURTHUB");
    machine.take_changes();
    own.ensure_with(&machine).unwrap();
    assert_eq!(machine.take_changes(), ["iptables -w 5 -I INPUT 1 -j YURTHUB"]);
    assert!(machine.rules.lock().iter().any(|rule| rule == "-A OTHER -j DROP"));
}

#[test]
fn kernel_without_dummy_interfaces_gets_the_address_on_loopback() {
    let machine = Machine {
        has_no_dummy: true,
        ..Machine::new()
    };
    let interface = desired("169.254.2.1").ensure_with(&machine).unwrap().interface;
    assert!(matches!(interface, AddressInterface::Loopback(why) if why.contains("Unknown device type")));
    assert!(machine.state().1.contains("169.254.2.1/32") && machine.state().1.contains("127.0.0.1/8"));
}

#[test]
fn kernel_without_the_tables_of_iptables_gets_the_table_of_nft_and_the_reason_is_shown() {
    let machine = Machine {
        has_no_ip_tables: true,
        ..Machine::new()
    };
    for _ in 0..2 {
        let firewall = desired("169.254.2.1").ensure_with(&machine).unwrap().firewall;
        let why = firewall.unwrap_err();
        assert!(why.contains("can't initialize") && why.contains("nft"), "{why}");
    }
    let (_, _, tables) = machine.state();
    assert_eq!(tables.len(), 1);
    assert!(
        tables[0].contains("ip daddr 169.254.2.1 tcp dport { 10261, 10268 } accept"),
        "{tables:?}"
    );
}

#[test]
fn rules_that_iptables_lists_and_cannot_make_are_made_by_nft() {
    let mut machine = Machine {
        has_no_matches: true,
        ..Machine::new()
    };
    let (before, own) = (machine.state(), desired("169.254.2.1"));
    for _ in 0..2 {
        let why = own.ensure_with(&machine).unwrap().firewall.unwrap_err();
        assert!(why.contains("No chain/target/match") && why.contains("nft"), "{why}");
        assert_eq!(machine.state().2.len(), 1);
    }
    machine.has_no_matches = false;
    assert_eq!(own.ensure_with(&machine).unwrap().firewall, Ok(()));
    assert_eq!(machine.state().2, [""; 0], "one firewall has the rules");
    own.cleanup_with(&machine).unwrap();
    assert_eq!(machine.state(), before);
}

#[test]
fn rules_are_in_one_firewall_after_iptables_works_again() {
    let mut machine = Machine::new();
    let own = desired("169.254.2.1");
    own.ensure_with(&machine).unwrap();
    let before = machine.state();
    machine.has_no_ip_tables = true;
    own.ensure_with(&machine).unwrap();
    assert_ne!(machine.state(), before);
    machine.has_no_ip_tables = false;
    assert_eq!(own.ensure_with(&machine).unwrap().firewall, Ok(()));
    assert_eq!(machine.state(), before);
}

#[test]
fn lock_that_another_program_holds_moves_no_rules() {
    let mut machine = Machine::new();
    machine.is_locked = true;
    let own = desired("169.254.2.1");
    let why = own.ensure_with(&machine).unwrap().firewall.unwrap_err();
    assert!(why.contains("lock"), "{why}");
    assert_eq!(machine.state().2, [""; 0]);
    machine.is_locked = false;
    assert_eq!(own.ensure_with(&machine).unwrap().firewall, Ok(()));
}

/// Messages of iptables, legacy and of nft.
#[test]
fn messages_of_iptables_tell_a_held_lock_and_missing_tables_from_other_failures() {
    let held = "Another app is currently holding the xtables lock. Stopped waiting after 5s.";
    let init = "iptables v1.8.9 (legacy): can't initialize iptables table 'filter'";
    let generation = "iptables v1.8.9 (nf_tables): Could not fetch rule set generation id";
    for (code, why, expected) in [
        (4, held.to_owned(), "busy"),
        (1, held.to_owned(), "failed"),
        (
            4,
            "Fatal: can't open lock file /run/xtables.lock: Read-only file system".to_owned(),
            "failed",
        ),
        (
            3,
            format!("{init}: Table does not exist (do you need to insmod?)"),
            "no tables",
        ),
        (
            3,
            format!("{init}: iptables who? (do you need to insmod?)"),
            "no tables",
        ),
        (3, format!("{init}: Permission denied (you must be root)"), "failed"),
        (
            1,
            "iptables: Failed to initialize nft: Protocol not supported".to_owned(),
            "no tables",
        ),
        (4, format!("{generation}: Invalid argument"), "no tables"),
        (
            4,
            format!("{generation}: Permission denied (you must be root)"),
            "failed",
        ),
    ] {
        let call = ["-c".to_owned(), format!("echo \"{why}\" >&2; exit {code}")];
        let error = Installed.run("sh", &call, "").unwrap_err();
        let kind = match &error {
            ProgramError::Missing => "missing",
            ProgramError::Busy(_) => "busy",
            ProgramError::NoTables(_) => "no tables",
            ProgramError::Failed(_) => "failed",
        };
        assert_eq!(kind, expected, "{error:?}");
        assert!(error.text("sh").ends_with(&why), "{error:?}");
    }
}

#[test]
fn cleanup_names_a_list_that_fails_and_removes_the_rest() {
    let machine = Machine {
        is_denied: true,
        ..Machine::new()
    };
    let own = desired("169.254.2.1");
    own.ensure_with(&machine).unwrap();
    let error = own.cleanup_with(&machine).unwrap_err().to_string();
    assert!(error.contains("Permission denied"), "{error}");
    assert_eq!(machine.state(), Machine::new().state());
}

#[test]
fn firewall_is_touched_only_on_request() {
    let machine = Machine::new();
    let own = NodeNetwork {
        accepts: false,
        ..desired("169.254.2.1")
    };
    own.ensure_with(&machine).unwrap();
    assert!(machine.take_changes().iter().all(|change| change.starts_with("ip ")));
}

#[test]
fn machine_without_programs_gets_the_alternative() {
    struct Bare;
    impl Programs for Bare {
        fn run(&self, _: &str, _: &[String], _: &str) -> Result<String, ProgramError> {
            Err(ProgramError::Missing)
        }
    }
    let error = desired("169.254.2.1").ensure_with(&Bare).unwrap_err().to_string();
    let parts = ["ip is not installed", "--enable-dummy-if=false", "--bind-proxy-address"];
    assert!(parts.iter().all(|part| error.contains(part)), "{error}");
}

#[test]
fn addresses_of_others_are_refused() {
    for (address, is_ours) in [
        ("169.254.2.1", true),
        ("169.254.255.9", true),
        ("fd00::2:1", true),
        ("169.254.31.5", false),
        ("169.254.1.1", false),
        ("10.0.0.1", false),
    ] {
        assert_eq!(check_address(address.parse().unwrap()).is_ok(), is_ours, "{address}");
    }
}

/// The real programs in a network namespace, which needs root. They find no program `lacks`.
struct Inside {
    namespace: &'static str,
    lacks: &'static str,
    /// Changes so far.
    changes: Mutex<Vec<String>>,
}

// === impl Inside ===

impl Inside {
    /// `None`, with a line about it, if a namespace cannot be made or `needed` is not installed.
    fn new(namespace: &'static str, needed: &str, lacks: &'static str) -> Option<Self> {
        let inside = Self {
            namespace,
            lacks,
            changes: Mutex::default(),
        };
        let _ = inside.netns("delete");
        let installed = Installed.run(needed, &["--version".to_owned()], "");
        let made = match installed {
            Err(ProgramError::Missing) => Err(ProgramError::Missing.text(needed)),
            _ => inside.netns("add"),
        };
        if let Err(why) = &made {
            #[expect(clippy::print_stderr)]
            {
                eprintln!("SKIPPED, needs root, iproute2 and {needed}: {why}");
            }
        }
        made.ok().map(|()| inside)
    }

    fn netns(&self, verb: &str) -> Result<(), String> {
        let made = Installed.run("ip", &["netns", verb, self.namespace].map(str::to_owned), "");
        made.map(drop).map_err(|error| error.text("ip"))
    }

    /// Changes since the last call, without those that a kernel without dummy interfaces refuses each time.
    fn take_changes(&self) -> Vec<String> {
        let mut changes = std::mem::take(&mut *self.changes.lock());
        changes.retain(|change| !change.ends_with("type dummy"));
        changes
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = self.netns("delete");
    }
}

impl Programs for Inside {
    fn run(&self, program: &str, call: &[String], input: &str) -> Result<String, ProgramError> {
        // In the namespace, `ip` fails where the program is missing.
        let installed = Installed.run(program, &["--version".to_owned()], "");
        if program == self.lacks || matches!(installed, Err(ProgramError::Missing)) {
            return Err(ProgramError::Missing);
        }
        if !call.iter().any(|word| matches!(word.as_str(), "show" | "-S" | "list")) {
            self.changes.lock().push(format!("{program} {}", call.join(" ")));
        }
        let inside = ["netns", "exec", self.namespace, program].map(str::to_owned);
        let call: Vec<String> = inside.into_iter().chain(call.iter().cloned()).collect();
        Installed.run("ip", &call, input)
    }
}

#[test]
fn real_programs_make_and_remove_the_address() {
    let Some(inside) = Inside::new("yurthub-test-network", "ip", "") else {
        return;
    };
    let own = NodeNetwork {
        accepts: false,
        ..desired("169.254.2.1")
    };
    let holders = || {
        let links = [own.interface.as_str(), LOOPBACK].map(|name| link(&inside, name).unwrap_or_default());
        links
            .iter()
            .filter(|link| link.addresses.contains(&own.address))
            .count()
    };
    let (first, second) = (own.ensure_with(&inside).unwrap(), own.ensure_with(&inside).unwrap());
    assert_eq!((first, holders()), (second, 1));
    own.cleanup_with(&inside).unwrap();
    assert_eq!(holders(), 0);
}

#[test]
fn real_firewalls_have_the_rules_of_the_present_flags_until_the_cleanup() {
    let firewalls = [
        ("yurthub-test-iptables", "iptables", "nft", ["-w", "-S"].as_slice()),
        ("yurthub-test-nft", "nft", "iptables", &["list", "ruleset"]),
    ];
    for (namespace, firewall, lacks, list) in firewalls {
        let Some(inside) = Inside::new(namespace, firewall, lacks) else {
            continue;
        };
        let list: Call = list.iter().map(|word| (*word).to_owned()).collect();
        let listed = || {
            inside
                .run(firewall, &list, "")
                .map_err(|error| error.text(firewall))
                .unwrap()
        };
        let before = listed();
        for (address, port, gone) in [
            ("169.254.2.15", 10261, ""),
            ("169.254.2.1", 10261, "169.254.2.15"),
            ("169.254.2.1", 10271, "10261"),
        ] {
            let own = NodeNetwork {
                ports: [port, 10268],
                ..desired(address)
            };
            own.ensure_with(&inside).unwrap();
            let rules = listed();
            let has = |part: &str| rules.contains(part);
            assert!(
                has(address) && has(&port.to_string()) && has("10268"),
                "{firewall}: {rules}"
            );
            assert!(gone.is_empty() || !has(gone), "{firewall}: {rules}");
            inside.take_changes();
            own.ensure_with(&inside).unwrap();
            assert_eq!(inside.take_changes(), [""; 0], "{firewall}: {rules}");
        }
        desired("169.254.2.1").cleanup_with(&inside).unwrap();
        assert_eq!(listed(), before, "{firewall}");
    }
}
