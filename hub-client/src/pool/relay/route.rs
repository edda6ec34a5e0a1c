//! Peers of a cut-off hub: selection, order and timeout per try. Pure.
//!
//! Each node ranks its peers by a hash of both names. So the nodes of a cut-off branch spread over the peers, and a
//! node returns to the same one. Peers whose lease is no longer renewed come last. Each try gets half of the time left,
//! the last one all of it. So one peer that drops packets does not cost the beat.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use http::Uri;
use http::uri::Authority;
use yurt_pool_protocol::heartbeat::UnixMicros;

/// Maximum number of peers considered, best first.
pub const PEERS_MAX: usize = 16;
/// Number of members whose leases one search reads. It is bounded because every hub of a fully cut-off pool reads them.
pub const SAMPLE: usize = PEERS_MAX;
/// Maximum number of cloud servers read from a peer's lease.
pub const SERVERS_MAX: usize = 8;
/// Maximum number of peers tried within one beat.
pub const TRIES_MAX: u32 = 3;
/// Minimum time of a try; with less time left no try starts.
const TRY_MIN: Duration = Duration::from_millis(100);
/// Age in microseconds, relative to a newer lease of the pool, from which a lease counts as silent: its node may be
/// gone.
const SILENT: i64 = 60_000_000;
const HTTPS_PORT: u16 = 443;

/// Server as written in `CONNECT`. Compared literally, ignoring ASCII case; never resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectTarget {
    /// Host in lower case; an IPv6 address in brackets.
    host: String,
    port: u16,
}

/// Node of the pool as its lease describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Name of the node.
    pub name: String,
    /// Address at which its hub accepts tunnels.
    pub address: SocketAddr,
    /// Targets that its tunnels may have.
    pub servers: Vec<ConnectTarget>,
    /// renewTime of its last beat, by its own clock.
    pub renewed: Option<UnixMicros>,
}

/// Route to the cloud through one peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Name of the relaying node.
    pub peer: String,
    /// Address of the relaying node's hub.
    pub address: SocketAddr,
    /// Target to request.
    pub target: ConnectTarget,
    /// Index of the own cloud server whose name the certificate at the far end must match.
    pub server: usize,
}

/// Remaining tries of one beat and their timeouts.
#[derive(Clone, Copy, Debug)]
pub struct Tries {
    left: u32,
}

// === impl ConnectTarget ===

impl ConnectTarget {
    /// Parses `host:port`. `None` for anything else, such as a user, a path or a missing port.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text.contains('@') {
            return None;
        }
        let authority: Authority = text.parse().ok()?;
        let port = authority.port()?;
        let is_number = port.as_str().bytes().all(|byte| byte.is_ascii_digit());
        Self::new(authority.host(), port.as_u16()).filter(|_| is_number)
    }

    /// Returns the server of an https URL.
    #[must_use]
    pub fn of(uri: &Uri) -> Option<Self> {
        Self::new(uri.host()?, uri.port_u16().unwrap_or(HTTPS_PORT))
    }

    fn new(host: &str, port: u16) -> Option<Self> {
        let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_host = match address {
            Some(address) => address.parse::<Ipv6Addr>().is_ok(),
            // [`Authority`] accepts brackets in the middle, and ends its host there.
            None => !host.is_empty() && !host.contains(['[', ']', ':']),
        };
        (is_host && port != 0).then(|| Self {
            host: host.to_ascii_lowercase(),
            port,
        })
    }

    /// Returns host and port to connect to, without brackets.
    #[must_use]
    pub fn to_dial(&self) -> (&str, u16) {
        (self.host.trim_start_matches('[').trim_end_matches(']'), self.port)
    }

    /// Parses the value of [`super::SERVERS_ANNOTATION`]; skips invalid targets.
    #[must_use]
    pub fn list(text: &str) -> Vec<Self> {
        text.split(',')
            .take(SERVERS_MAX)
            .filter_map(|one| Self::parse(one.trim()))
            .collect()
    }
}

impl fmt::Display for ConnectTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Metadata services of clouds outside the link-local range: they give credentials to any client that reaches them.
const METADATA_SERVICES: [IpAddr; 5] = [
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
];

/// True if a hub may be dialled at this address, which comes from another node's lease. Loopback is this node itself,
/// unless all nodes of the pool are on loopback (a test, a demo).
#[must_use]
pub fn may_dial(address: SocketAddr, all_on_loopback: bool) -> bool {
    let ip = address.ip().to_canonical();
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    let is_metadata = METADATA_SERVICES.contains(&ip);
    let harmless = !ip.is_unspecified() && !ip.is_multicast() && !link_local && !is_metadata && address.port() != 0;
    harmless && (all_on_loopback || !ip.is_loopback())
}

/// Returns the routes of `node`, whose own cloud servers are `own`, best first; at most [`PEERS_MAX`] peers.
///
/// A peer that connects to one of our own servers gets that one as its target, another peer the first of its own: an
/// apiserver has many addresses. Neighbours in the order have different targets where there is a choice.
#[must_use]
pub fn routes(node: &str, own: &[ConnectTarget], peers: &[Peer]) -> Vec<Route> {
    let newest = newest_of_groups(peers);
    let mut ranked: Vec<_> = peers.iter().filter(|peer| peer.name != node).collect();
    ranked.sort_by_cached_key(|peer| (group(peer, &newest), spread(node, &peer.name), &peer.name));
    let ways = ranked.into_iter().take(PEERS_MAX).enumerate();
    ways.filter_map(|(rank, peer)| {
        let shared: Vec<usize> = (0..own.len())
            .filter(|index| peer.servers.contains(&own[*index]))
            .collect();
        let (server, target) = match shared.as_slice() {
            [] => (0, peer.servers.get(rank % peer.servers.len().max(1))?),
            shared => {
                let server = shared[rank % shared.len()];
                (server, &own[server])
            }
        };
        Some(Route {
            peer: peer.name.clone(),
            address: peer.address,
            target: target.clone(),
            server,
        })
    })
    .collect()
}

/// Returns the members whose leases `node` reads in its `round`th search. The members of the first round are fixed per
/// node, as in [`routes`]; each further round continues behind the previous one.
#[must_use]
pub fn sample(node: &str, members: &BTreeSet<String>, round: usize) -> Vec<String> {
    let mut others: Vec<&String> = members.iter().filter(|name| *name != node).collect();
    others.sort_by_cached_key(|name| (spread(node, name), *name));
    let begin = round.wrapping_mul(SAMPLE).checked_rem(others.len()).unwrap_or(0);
    let in_turn = others.iter().cycle().skip(begin).take(others.len().min(SAMPLE));
    in_turn.map(|name| (*name).clone()).collect()
}

/// Returns the newest renewal of each group of peers, the newest group first. A group has the renewals that are at most
/// [`SILENT`] older than its newest one. A wrong time is thus a group of its own, and changes no order of the others.
fn newest_of_groups(peers: &[Peer]) -> Vec<UnixMicros> {
    let mut times: Vec<UnixMicros> = peers.iter().filter_map(|peer| peer.renewed).collect();
    times.sort_unstable_by(|a, b| b.cmp(a));
    let mut newest: Vec<UnixMicros> = Vec::new();
    for time in times {
        if newest.last().is_none_or(|last| is_silent(time, *last)) {
            newest.push(time);
        }
    }
    newest
}

/// Returns the group of `peer`; the last one for a peer that never renewed its lease.
fn group(peer: &Peer, newest: &[UnixMicros]) -> usize {
    let groups_before = |renewed| newest.iter().filter(|newest| is_silent(renewed, **newest)).count();
    peer.renewed.map_or(usize::MAX, groups_before)
}

fn is_silent(renewed: UnixMicros, newest: UnixMicros) -> bool {
    newest.0.saturating_sub(renewed.0) > SILENT
}

fn spread(node: &str, peer: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (node, peer).hash(&mut hasher);
    hasher.finish()
}

// === impl Tries ===

impl Tries {
    /// Creates the tries of a beat that knows `ways` routes.
    #[must_use]
    pub fn new(ways: usize) -> Self {
        Self {
            left: u32::try_from(ways).unwrap_or(u32::MAX).min(TRIES_MAX),
        }
    }

    /// Returns the timeout of the next try when `remaining` is left of the beat; `None` to give up.
    pub fn next(&mut self, remaining: Duration) -> Option<Duration> {
        self.left = self.left.checked_sub(1)?;
        let time = if self.left == 0 { remaining } else { remaining / 2 };
        (time >= TRY_MIN).then_some(time)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn target(text: &str) -> ConnectTarget {
        ConnectTarget::parse(text).expect("a target")
    }

    fn peer(name: &str, servers: &str) -> Peer {
        Peer {
            name: name.to_owned(),
            address: "10.0.0.9:10269".parse().expect("an address"),
            servers: ConnectTarget::list(servers),
            renewed: Some(UnixMicros(1_000_000_000)),
        }
    }

    fn names(routes: &[Route]) -> Vec<&str> {
        routes.iter().map(|route| route.peer.as_str()).collect()
    }

    #[test]
    fn target_is_host_and_port_and_nothing_else() {
        assert_eq!(target("Cloud.Example:6443"), target("cloud.example:6443"));
        assert_eq!(target("[fd00::1]:6443").to_dial(), ("fd00::1", 6443));
        for text in [
            "",
            ":",
            "cloud",
            "cloud:",
            "cloud:0",
            ":443",
            "a@cloud:443",
            "cloud:99999",
            "cloud:443/x",
            "https://cloud:443",
            "cloud:443 ",
            "cl oud:443",
            "1[fd00::1]:6443",
            "[cloud]:443",
            "cloud:+443",
            "/",
            "*",
        ] {
            assert_eq!(ConnectTarget::parse(text), None, "{text:?}");
        }
        assert_ne!(target("cloud.:443"), target("cloud:443"));
        assert_eq!(
            ConnectTarget::of(&Uri::from_static("https://cloud")),
            Some(target("cloud:443"))
        );
        assert_eq!(ConnectTarget::list("a:1, b:2,,c,d:4").len(), 3);
        assert_eq!(ConnectTarget::list(&"a:1,".repeat(100)).len(), SERVERS_MAX);
    }

    #[test]
    fn addresses_that_no_other_node_has_are_not_dialled() {
        let may = |text: &str, loopback| may_dial(text.parse().expect("an address"), loopback);
        assert!(may("10.0.0.1:10269", false) && may("[2001:db8::1]:10269", false));
        for text in ["127.0.0.1:10269", "[::1]:10269", "[::ffff:127.0.0.1]:10269"] {
            assert!(!may(text, false) && may(text, true), "{text}");
        }
        for text in [
            "0.0.0.0:1",
            "[::]:1",
            "169.254.169.254:80",
            "[fe80::1]:1",
            "224.0.0.1:1",
            "255.255.255.255:1",
            "10.0.0.1:0",
            "[::ffff:169.254.169.254]:80",
            "100.100.100.200:80",
            "192.0.0.192:80",
            "[fd00:ec2::254]:80",
            "168.63.129.16:80",
            "[fd20:ce::254]:80",
        ] {
            assert!(!may(text, true), "{text}");
        }
    }

    #[test]
    fn nodes_spread_over_their_peers_and_stay_with_theirs() {
        let own = [target("c:1")];
        let peers: Vec<_> = (0..10).map(|index| peer(&format!("p{index}"), "c:1")).collect();
        let mut firsts = BTreeMap::<String, u32>::new();
        for index in 0..1_000 {
            let node = format!("n{index}");
            let order = routes(&node, &own, &peers);
            assert_eq!(order.len(), 10);
            let mut shuffled = peers.clone();
            shuffled.reverse();
            assert_eq!(
                order,
                routes(&node, &own, &shuffled),
                "the order of the list does not matter"
            );
            *firsts.entry(order[0].peer.clone()).or_default() += 1;
        }
        assert!(firsts.values().all(|count| (50..200).contains(count)), "{firsts:?}");
    }

    #[test]
    fn search_reads_few_leases_and_others_each_round() {
        let members: BTreeSet<String> = (0..1_000).map(|index| format!("n{index}")).collect();
        let mut seen = BTreeSet::new();
        for round in 0..1_000_usize.div_ceil(SAMPLE) {
            let sample = sample("n7", &members, round);
            assert_eq!(sample.len(), SAMPLE, "for any size of the pool");
            seen.extend(sample);
        }
        assert_eq!(seen.len(), 999, "all others, and not this node");
        assert_ne!(
            sample("n7", &members, 0),
            sample("n8", &members, 0),
            "hubs spread over the pool"
        );
        assert_eq!(sample("n7", &members, 0), sample("n7", &members, 0));
        let few = ["n1", "n2"].map(str::to_owned).into();
        assert_eq!(
            (sample("n1", &few, 5), sample("n1", &BTreeSet::new(), 5)),
            (vec!["n2".to_owned()], Vec::new())
        );
    }

    #[test]
    fn silent_peers_come_last_and_this_node_not_at_all() {
        let own = [target("c:1")];
        let silent = Peer {
            renewed: Some(UnixMicros(1_000_000_000 - SILENT - 1)),
            ..peer("silent", "c:1")
        };
        let never = Peer {
            renewed: None,
            ..peer("never", "c:1")
        };
        let peers = [silent, peer("me", "c:1"), never, peer("alive", "c:1")];
        let order = routes("me", &own, &peers);
        assert_eq!((names(&order)[0], order.len()), ("alive", 3));
        let many: Vec<_> = (0..100).map(|index| peer(&format!("p{index}"), "c:1")).collect();
        assert_eq!(routes("me", &own, &many).len(), PEERS_MAX);
    }

    /// A clock that is wrong, or a member that lies.
    #[test]
    fn wrong_time_of_one_peer_makes_no_other_one_silent() {
        let own = [target("c:1")];
        let at = |name: &str, renewed: i64| Peer {
            renewed: Some(UnixMicros(renewed)),
            ..peer(name, "c:1")
        };
        let now = 1_000_000_000_000;
        let honest = [
            at("alive", now),
            at("late", now - SILENT),
            at("dead", now - SILENT - 1),
            at("long dead", now - 3 * SILENT),
        ];
        for wrong in [i64::MAX / 2, i64::MAX, now + 3_600_000_000, i64::MIN] {
            let peers = [honest.as_slice(), &[at("wrong", wrong)]].concat();
            let order = routes("me", &own, &peers);
            let mut others: Vec<_> = names(&order).into_iter().filter(|name| *name != "wrong").collect();
            others[..2].sort_unstable();
            assert_eq!(others, ["alive", "late", "dead", "long dead"], "{wrong}");
        }
    }

    #[test]
    fn own_servers_are_preferred_and_alternated() {
        let own = [target("a:1"), target("b:1")];
        let one = routes("me", &own, &[peer("p", "x:1,b:1")]);
        assert_eq!((&one[0].target, one[0].server), (&target("b:1"), 1));
        let two = routes("me", &own, &[peer("p", "a:1,b:1"), peer("q", "b:1,a:1")]);
        assert_eq!(
            (two[0].server, two[1].server),
            (0, 1),
            "one dead server must not cost all tries"
        );
        let foreign = routes("me", &own, &[peer("p", "x:1,y:1")]);
        assert_eq!((&foreign[0].target, foreign[0].server), (&target("x:1"), 0));
        assert_eq!(routes("me", &own, &[peer("p", "")]), []);
    }

    #[test]
    fn tries_are_few_and_the_last_one_gets_what_is_left() {
        let mut tries = Tries::new(9);
        assert_eq!(tries.next(Duration::from_secs(4)), Some(Duration::from_secs(2)));
        assert_eq!(tries.next(Duration::from_secs(2)), Some(Duration::from_secs(1)));
        assert_eq!(tries.next(Duration::from_secs(1)), Some(Duration::from_secs(1)));
        assert_eq!(tries.next(Duration::from_secs(1)), None);
        let mut tries = Tries::new(1);
        assert_eq!(tries.next(Duration::from_secs(4)), Some(Duration::from_secs(4)));
        assert_eq!(tries.next(Duration::from_secs(4)), None);
        assert_eq!(Tries::new(0).next(Duration::from_secs(4)), None);
        assert_eq!(Tries::new(3).next(Duration::from_millis(1)), None, "too late to begin");
    }
}
