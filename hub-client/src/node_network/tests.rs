//! Plans of the dummy address and of the NAT rules, played on recorded answers of the system's programs.

use std::collections::{BTreeMap, BTreeSet};

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

type Links = BTreeMap<String, (bool, BTreeSet<String>)>;

fn of<'a>(links: &'a mut Links, name: &str) -> Result<&'a mut (bool, BTreeSet<String>), &'static str> {
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
}

// === impl Machine ===

impl Machine {
    fn new() -> Self {
        let machine = Self::default();
        let loopback = (true, BTreeSet::from(["127.0.0.1/8".to_owned()]));
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
        let tables = self.tables.lock().keys().cloned().collect();
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
                let line =
                    |one: &String| format!("5: {name}    inet {one} scope global {name}\\       valid_lft forever\n");
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
            ["addr", "add", address, "dev", name, ..] => {
                let is_new = of(&mut links, name)?.1.insert((*address).to_owned());
                is_new.then_some(()).ok_or("File exists")?;
            }
            ["addr", "del", address, "dev", name] => {
                let was = of(&mut links, name)?.1.remove(*address);
                was.then_some(()).ok_or("Cannot assign requested address")?;
            }
            other => panic!("unexpected call of ip: {other:?}"),
        }
        Ok(String::new())
    }

    fn iptables(&self, call: &[&str]) -> Result<String, &'static str> {
        let mut rules = self.rules.lock();
        assert_eq!(call[0], "-w", "without the lock another program's change may be lost");
        match &call[1..] {
            ["-S"] => return Ok(rules.join("\n") + "\n"),
            ["-N", chain] => rules.push(format!("-N {chain}")),
            ["-F", chain] => rules.retain(|rule| !rule.starts_with(&format!("-A {chain} "))),
            ["-X", chain] => rules.retain(|rule| *rule != format!("-N {chain}")),
            ["-A", ..] => rules.push(call[1..].join(" ")),
            ["-I", base, "1", "-j", chain] => rules.insert(2, format!("-A {base} -j {chain}")),
            ["-D", base, "-j", chain] => rules.retain(|rule| *rule != format!("-A {base} -j {chain}")),
            other => panic!("unexpected call of iptables: {other:?}"),
        }
        Ok(String::new())
    }

    fn nft(&self, call: &[&str], input: &str) -> Result<String, &'static str> {
        let mut tables = self.tables.lock();
        match call {
            ["list", "table", "ip", "yurthub"] => return tables.get("yurthub").cloned().ok_or("No such file"),
            ["-f", "-"] => {
                tables.insert("yurthub".to_owned(), input.to_owned());
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
        let output = match program {
            "iptables" if self.has_no_iptables => return Err(ProgramError::Missing),
            "ip" => self.ip(&words),
            "iptables" => self.iptables(&words),
            "nft" => self.nft(&words, input),
            other => panic!("unexpected program {other}"),
        };
        if !words.iter().any(|word| matches!(*word, "show" | "-S" | "list")) {
            self.changes.lock().push(format!("{program} {}", call.join(" ")));
        }
        output.map_err(|why| ProgramError::Failed(why.to_owned()))
    }
}

#[test]
fn network_is_made_once_and_removed_without_a_trace() {
    for (has_no_dummy, has_no_iptables) in [(false, false), (false, true), (true, false), (true, true)] {
        let machine = Machine {
            has_no_dummy,
            has_no_iptables,
            ..Machine::new()
        };
        let (before, own) = (machine.state(), desired("169.254.2.1"));
        let place = own.ensure_with(&machine).unwrap();
        assert_eq!(place != AddressInterface::Dummy, has_no_dummy);
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
fn another_address_replaces_the_former_one_and_its_rules() {
    let machine = Machine::new();
    desired("169.254.2.1").ensure_with(&machine).unwrap();
    desired("169.254.2.9").ensure_with(&machine).unwrap();
    let (rules, links, _) = machine.state();
    assert!(
        !links.contains("169.254.2.1/32") && links.contains("169.254.2.9/32"),
        "{links}"
    );
    let own: Vec<&String> = rules.iter().filter(|rule| rule.starts_with("-A YURTHUB")).collect();
    assert_eq!(own.len(), 4);
    assert!(own.iter().all(|rule| rule.contains("169.254.2.9/32")), "{own:?}");
}

#[test]
fn rules_of_others_stay_and_a_lost_jump_returns() {
    let machine = Machine::new();
    let own = desired("169.254.2.1");
    own.ensure_with(&machine).unwrap();
    machine.rules.lock().retain(|rule| rule != "-A INPUT -j YURTHUB");
    machine.take_changes();
    own.ensure_with(&machine).unwrap();
    assert_eq!(machine.take_changes(), ["iptables -w -I INPUT 1 -j YURTHUB"]);
    assert!(machine.rules.lock().iter().any(|rule| rule == "-A OTHER -j DROP"));
}

#[test]
fn kernel_without_dummy_interfaces_gets_the_address_on_loopback() {
    let machine = Machine {
        has_no_dummy: true,
        ..Machine::new()
    };
    let place = desired("169.254.2.1").ensure_with(&machine).unwrap();
    assert!(matches!(place, AddressInterface::Loopback(why) if why.contains("Unknown device type")));
    assert!(machine.state().1.contains("169.254.2.1/32") && machine.state().1.contains("127.0.0.1/8"));
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

/// Runs the real `ip` in a network namespace of its own, which needs root.
#[test]
fn real_programs_make_and_remove_the_address() {
    struct Inside;
    impl Programs for Inside {
        fn run(&self, program: &str, call: &[String], input: &str) -> Result<String, ProgramError> {
            let inside = ["netns", "exec", NAMESPACE, program].map(str::to_owned);
            let call: Vec<String> = inside.into_iter().chain(call.iter().cloned()).collect();
            Installed.run("ip", &call, input)
        }
    }
    const NAMESPACE: &str = "yurthub-test-network";
    let netns = |verb: &str| Installed.run("ip", &["netns", verb, NAMESPACE].map(str::to_owned), "");
    let _ = netns("delete");
    if let Err(error) = netns("add") {
        #[expect(clippy::print_stderr)]
        {
            eprintln!("skipped, needs root and iproute2: {}", error.text("ip"));
        }
        return;
    }
    let own = NodeNetwork {
        accepts: false,
        ..desired("169.254.2.1")
    };
    let (first, second) = (own.ensure_with(&Inside), own.ensure_with(&Inside));
    let holders = [own.interface.as_str(), LOOPBACK].map(|name| link(&Inside, name));
    let has = |link: &Option<Link>| link.as_ref().is_some_and(|link| link.addresses.contains(&own.address));
    let made = holders.iter().filter(|link| has(link)).count();
    let removed = own.cleanup_with(&Inside);
    let left = [own.interface.as_str(), LOOPBACK]
        .map(|name| link(&Inside, name))
        .iter()
        .any(has);
    let _ = netns("delete");
    assert_eq!(first.unwrap(), second.unwrap());
    removed.unwrap();
    assert_eq!((made, left), (1, false));
}
