//! Steps of each fault. Pure.

mod sequences;

use std::time::Duration;

use yurt_testbed::identities::Issue;
use yurt_testbed::link::Mode;

use super::{Act, Fault, FaultTarget, Step, Topology};
use sequences::{
    authority_rotated, during, expired, flapping, in_turn, issued, later, moved, rebooted, relays, repeated, step,
    without_disk,
};

/// 50 kbit/s.
const SLOW: Mode = Mode::Slow(6_250);
const LATE: Mode = Mode::Late(Duration::from_millis(150));
/// Time after which every program uses replaced files: it checks them every ten seconds.
const RELOADED: Duration = Duration::from_secs(11);
/// Duration of a cut that only makes all peers reconnect.
const BLINK: Duration = Duration::from_millis(100);
/// Time between the return of a link or a program and the next step, during which its peers catch up.
const CATCHING_UP: Duration = Duration::from_millis(150);

const DEAD: [Act; 2] = [Act::Kill, Act::Start];
const GONE: [Act; 2] = [Act::Stop, Act::Start];
const STILL: [Act; 2] = [Act::Pause, Act::Continue];
const POOR: [Act; 2] = [Act::FewFiles, Act::ManyFiles];
const CUT: [Act; 2] = [Act::Link(Mode::Cut), Act::Link(Mode::Pass)];
const BAD: [Act; 2] = [Act::Bad, Act::Good];
const EIO: [Act; 2] = [Act::Eio, Act::Good];
const COORDINATOR_DISK: (FaultTarget, FaultTarget) = (FaultTarget::CoordinatorDisk, FaultTarget::Coordinator(0));
const AN_HOUR_LATE: [Act; 2] = [Act::Skew(-3600), Act::Skew(0)];
const AN_HOUR_EARLY: [Act; 2] = [Act::Skew(3600), Act::Skew(0)];
/// A reboot shifts the apparent time since boot by less than so many days.
const UPTIMES: usize = 10;
/// After the coordinator lost its disk, hubs feed it within this time; the disk stalls at a random moment of it.
const FED_AGAIN: Duration = Duration::from_secs(4);
/// Time a disk stalls before it fails.
const STALLED: Duration = Duration::from_millis(1500);
/// Steps that keep other faults away.
const NOTHING: [Act; 2] = [Act::Good, Act::Good];

/// Parameters of a fault: its target and duration.
struct Strike {
    hubs: usize,
    any: usize,
    leader: Option<usize>,
    follower: Option<usize>,
    coordinators: usize,
    coordinator: usize,
    fed: Option<usize>,
    members: usize,
    member: usize,
    member_leader: Option<usize>,
    days: u32,
    /// Random moment below [`FED_AGAIN`].
    moment: Duration,
    lasts: Duration,
}

// === impl Fault ===

impl Fault {
    /// All steps of the fault, until it ends after `lasts`; `None` if there is no target.
    pub(in super::super) fn steps(self, topology: &Topology, lasts: Duration) -> Option<Vec<Step>> {
        let any = topology.pick % topology.hubs;
        let others = |leader| (0..topology.hubs).filter(move |hub| *hub != leader);
        let strike = Strike {
            hubs: topology.hubs,
            any,
            leader: topology.leader,
            follower: topology
                .leader
                .and_then(|leader| others(leader).nth(any % (topology.hubs - 1))),
            coordinators: topology.coordinators,
            coordinator: topology.pick % topology.coordinators,
            fed: topology.fed,
            members: topology.members,
            member: topology.pick.checked_rem(topology.members).unwrap_or(0),
            member_leader: topology.member_leader,
            days: u32::try_from(topology.pick % UPTIMES).unwrap_or(0),
            moment: FED_AGAIN / 16 * u32::try_from(topology.pick / UPTIMES % 16).unwrap_or(0),
            lasts,
        };
        strike.of_programs(self)
    }
}

// === impl Strike ===

impl Strike {
    /// Programs that are killed, stopped or paused; `None` for other faults.
    fn of_programs(&self, fault: Fault) -> Option<Vec<Step>> {
        Some(match fault {
            Fault::LeaderKilled => self.one(FaultTarget::Hub(self.leader?), DEAD),
            Fault::FollowerKilled => self.one(FaultTarget::Hub(self.follower?), DEAD),
            Fault::LeaderStopped => self.one(FaultTarget::Hub(self.leader?), GONE),
            Fault::FollowerStopped => self.one(FaultTarget::Hub(self.follower?), GONE),
            Fault::LeaderPaused => self.one(FaultTarget::Hub(self.leader?), STILL),
            Fault::FollowerPaused => self.one(FaultTarget::Hub(self.follower?), STILL),
            Fault::AllHubsKilled => self.each(DEAD, self.all().map(FaultTarget::Hub)),
            Fault::HubDiskLost => self.without_cache(Act::LoseDisk),
            Fault::HubCacheDamaged => self.without_cache(Act::DamageDisk),
            Fault::HubChangesPool => moved(FaultTarget::Hub(self.any), self.lasts),
            Fault::HubWithoutFiles => self.one(FaultTarget::Hub(self.any), POOR),
            Fault::CoordinatorKilled => self.one(FaultTarget::Coordinator(self.coordinator), DEAD),
            Fault::CoordinatorStopped => self.one(FaultTarget::Coordinator(self.coordinator), GONE),
            Fault::CoordinatorPaused => self.one(FaultTarget::Coordinator(self.coordinator), STILL),
            Fault::CoordinatorCrashLoop => repeated(FaultTarget::Coordinator(self.coordinator), DEAD, self.lasts),
            Fault::CoordinatorWithoutFiles => self.one(FaultTarget::Coordinator(self.coordinator), POOR),
            Fault::CoordinatorDiskLost => {
                without_disk(FaultTarget::Coordinator(self.coordinator), Act::LoseDisk, self.lasts)
            }
            Fault::PoolKilled => self.each(DEAD, self.pool()),
            Fault::CloudStopped => self.one(FaultTarget::Cloud, GONE),
            Fault::CloudPaused => self.one(FaultTarget::Cloud, STILL),
            Fault::HubsRestartInTurn => in_turn(self.all().map(FaultTarget::Hub), GONE, Duration::ZERO, self.lasts),
            Fault::AllHubsPaused => self.each(STILL, self.all().map(FaultTarget::Hub)),
            Fault::PoolPaused => self.each(STILL, self.pool()),
            Fault::CloudWithoutFiles => self.one(FaultTarget::Cloud, POOR),
            Fault::CoordinatorStoppedInCatchUp => {
                let mut steps = self.links(Mode::Blackhole, self.all().map(FaultTarget::PoolLink));
                steps.extend(later(
                    self.lasts + CATCHING_UP,
                    self.each(GONE, self.every_coordinator()),
                ));
                steps
            }
            Fault::HubKilledInCatchUp => {
                let mut steps = self.links(
                    Mode::Cut,
                    [FaultTarget::CloudLink(self.any), FaultTarget::PoolLink(self.any)],
                );
                steps.extend(later(
                    self.lasts + CATCHING_UP,
                    self.one(FaultTarget::Hub(self.any), DEAD),
                ));
                steps
            }
            Fault::LeaderKilledInCatchUp => {
                let leader = FaultTarget::Hub(self.leader?);
                let mut steps = self.each(DEAD, self.every_coordinator());
                steps.extend(later(self.lasts + CATCHING_UP, self.one(leader, DEAD)));
                steps
            }
            _ => return self.of_links(fault),
        })
    }

    /// Links; `None` for other faults.
    fn of_links(&self, fault: Fault) -> Option<Vec<Step>> {
        Some(match fault {
            Fault::CloudLinkCut => self.link(FaultTarget::CloudLink(self.any), Mode::Cut),
            Fault::CloudLinkSilent => self.link(FaultTarget::CloudLink(self.any), Mode::Blackhole),
            Fault::CloudRequestsVanish => self.link(FaultTarget::CloudLink(self.any), Mode::RequestsVanish),
            Fault::CloudAnswersVanish => self.link(FaultTarget::CloudLink(self.any), Mode::AnswersVanish),
            Fault::CloudLinkSlow => self.link(FaultTarget::CloudLink(self.any), SLOW),
            Fault::CloudLinkLate => self.link(FaultTarget::CloudLink(self.any), LATE),
            Fault::CloudLinkFlaps => flapping(FaultTarget::CloudLink(self.any), self.lasts),
            Fault::CloudLinkDamaged => self.link(FaultTarget::CloudLink(self.any), Mode::Damaged),
            Fault::AllCloudLinksCut => self.links(Mode::Cut, self.all().map(FaultTarget::CloudLink)),
            Fault::AllCloudLinksSilent => self.links(Mode::Blackhole, self.all().map(FaultTarget::CloudLink)),
            Fault::PoolLinkCut => self.link(FaultTarget::PoolLink(self.any), Mode::Cut),
            Fault::PoolLinkSilent => self.link(FaultTarget::PoolLink(self.any), Mode::Blackhole),
            Fault::PoolRequestsVanish => self.link(FaultTarget::PoolLink(self.any), Mode::RequestsVanish),
            Fault::PoolAnswersVanish => self.link(FaultTarget::PoolLink(self.any), Mode::AnswersVanish),
            Fault::PoolLinkSlow => self.link(FaultTarget::PoolLink(self.any), SLOW),
            Fault::PoolLinkLate => self.link(FaultTarget::PoolLink(self.any), LATE),
            Fault::PoolLinkFlaps => flapping(FaultTarget::PoolLink(self.any), self.lasts),
            Fault::PoolLinkDamaged => self.link(FaultTarget::PoolLink(self.any), Mode::Damaged),
            Fault::AllPoolLinksSilent => self.links(Mode::Blackhole, self.all().map(FaultTarget::PoolLink)),
            Fault::HubIsolated => self.links(
                Mode::Blackhole,
                [FaultTarget::CloudLink(self.any), FaultTarget::PoolLink(self.any)],
            ),
            Fault::LeaderLosesCoordinator => self.link(FaultTarget::PoolLink(self.leader?), Mode::Blackhole),
            Fault::LeaderLosesCloud => self.link(FaultTarget::CloudLink(self.leader?), Mode::Cut),
            _ => return self.of_the_rest(fault),
        })
    }

    /// Disks, certificates, the relay, the scope, readers and writers.
    fn of_the_rest(&self, fault: Fault) -> Option<Vec<Step>> {
        Some(match fault {
            Fault::HubDiskFull => self.on_disks(BAD, [self.any], []),
            Fault::CoordinatorDiskFull => self.on_disks(BAD, [], [COORDINATOR_DISK]),
            Fault::AllDisksFull => self.on_disks(BAD, self.all(), [COORDINATOR_DISK]),
            Fault::HubDiskEio => self.on_disks(EIO, [self.any], []),
            Fault::CoordinatorDiskEio => self.on_disks(EIO, [], [COORDINATOR_DISK]),
            Fault::AllDisksEio => self.on_disks(EIO, self.all(), [COORDINATOR_DISK]),
            Fault::FeedCallDropped => self.feed_call_dropped(),
            Fault::HubCertificateRotated => vec![issued(FaultTarget::HubCertificate(self.any), Issue::Usual)],
            Fault::CoordinatorCertificateRotated => vec![issued(FaultTarget::CoordinatorCertificate, Issue::Usual)],
            Fault::AuthorityRotated => authority_rotated(self.hubs),
            Fault::HubCertificateExpired => expired(FaultTarget::HubCertificate(self.any), self.lasts),
            Fault::CoordinatorCertificateExpired => {
                let mut steps = expired(FaultTarget::CoordinatorCertificate, self.lasts);
                let blink = during(FaultTarget::PoolLink(self.any), CUT, BLINK);
                steps.extend(later(RELOADED, blink));
                steps
            }
            Fault::RelaysKilled => relays(self.hubs, self.any, &FaultTarget::Hub, DEAD),
            Fault::RelaysPaused => relays(self.hubs, self.any, &FaultTarget::Hub, STILL),
            Fault::RelaysLoseCloud => relays(self.hubs, self.any, &FaultTarget::CloudLink, CUT),
            Fault::ScopeChanged => self.one(FaultTarget::Scope, BAD),
            Fault::ReadersStill => self.one(FaultTarget::Readers(self.any), BAD),
            Fault::HugeObject => self.one(FaultTarget::Traffic, BAD),
            Fault::HostileMember | Fault::HostilePod | Fault::Stranger => {
                self.one(FaultTarget::Actor(fault.actor()?), BAD)
            }
            _ => return self.of_etcd(fault).or_else(|| self.of_clocks(fault)),
        })
    }

    /// Several coordinators, and the etcd that they share.
    fn of_etcd(&self, fault: Fault) -> Option<Vec<Step>> {
        if self.members == 0 {
            return None;
        }
        Some(match fault {
            Fault::EtcdMemberKilled => self.one(FaultTarget::EtcdMember(self.member), DEAD),
            Fault::EtcdMemberPaused => self.one(FaultTarget::EtcdMember(self.member), STILL),
            Fault::EtcdLeaderKilled => self.one(FaultTarget::EtcdMember(self.member_leader?), DEAD),
            Fault::EtcdLeaderPaused => self.one(FaultTarget::EtcdMember(self.member_leader?), STILL),
            Fault::EtcdQuorumKilled => {
                let others = (0..self.members).filter(|member| *member != self.member);
                self.each(DEAD, others.map(FaultTarget::EtcdMember))
            }
            Fault::EtcdCompacted => {
                let forgets = during(FaultTarget::EtcdHistory, BAD, Duration::ZERO);
                let mut steps = self.one(FaultTarget::Coordinator(self.coordinator), STILL);
                steps.extend(later(self.lasts.mul_f32(0.9), forgets));
                steps
            }
            Fault::FedCoordinatorKilled => self.one(FaultTarget::Coordinator(self.fed?), DEAD),
            Fault::FedCoordinatorPaused => self.one(FaultTarget::Coordinator(self.fed?), STILL),
            _ => return None,
        })
    }

    /// Wall clocks, and the time since boot.
    fn of_clocks(&self, fault: Fault) -> Option<Vec<Step>> {
        let coordinator = FaultTarget::Coordinator(self.coordinator);
        let clock = FaultTarget::CoordinatorClock(self.coordinator);
        Some(match fault {
            Fault::HubClockLate => self.one(FaultTarget::HubClock(self.any), AN_HOUR_LATE),
            Fault::HubClockEarly => self.one(FaultTarget::HubClock(self.any), AN_HOUR_EARLY),
            Fault::CoordinatorClockLate => self.one(clock, AN_HOUR_LATE),
            Fault::CoordinatorClockEarly => self.one(clock, AN_HOUR_EARLY),
            Fault::CoordinatorRestartedLate => {
                let mut steps = during(coordinator, DEAD, BLINK);
                steps.extend(self.one(clock, AN_HOUR_LATE));
                steps
            }
            Fault::AllClocksWrong => {
                let hubs = self.all().map(FaultTarget::HubClock);
                let clocks = hubs.chain((0..self.coordinators).map(FaultTarget::CoordinatorClock));
                let acts = [AN_HOUR_LATE, AN_HOUR_EARLY].into_iter().cycle();
                let wrong = clocks.zip(acts).flat_map(|(clock, acts)| self.one(clock, acts));
                wrong.collect()
            }
            Fault::HubRebooted => rebooted(FaultTarget::Hub(self.any), self.days, self.lasts),
            Fault::CoordinatorRebooted => rebooted(coordinator, self.days, self.lasts),
            _ => return self.of_packets(fault),
        })
    }

    /// Packets below TCP.
    fn of_packets(&self, fault: Fault) -> Option<Vec<Step>> {
        let mode = match fault {
            Fault::LinksLossy => Mode::Lossy,
            Fault::LinksReordered => Mode::Reordered,
            Fault::LinksDoubled => Mode::Doubled,
            Fault::LinksJittery => Mode::Jittery,
            Fault::LinksRadio | Fault::AllLinksRadio => Mode::Radio,
            // One kind is handled elsewhere; a test walks through all others.
            _ => return None,
        };
        let hubs = match fault {
            Fault::AllLinksRadio => self.all(),
            _ => self.any..self.any + 1,
        };
        Some(self.links(
            mode,
            hubs.flat_map(|hub| [FaultTarget::CloudLink(hub), FaultTarget::PoolLink(hub)]),
        ))
    }

    fn every_coordinator(&self) -> impl Iterator<Item = FaultTarget> + use<> {
        (0..self.coordinators).map(FaultTarget::Coordinator)
    }

    /// Its programs.
    fn pool(&self) -> impl Iterator<Item = FaultTarget> + use<> {
        self.all().map(FaultTarget::Hub).chain(self.every_coordinator())
    }

    fn all(&self) -> std::ops::Range<usize> {
        0..self.hubs
    }

    fn one(&self, target: FaultTarget, acts: [Act; 2]) -> Vec<Step> {
        during(target, acts, self.lasts)
    }

    fn each(&self, acts: [Act; 2], targets: impl IntoIterator<Item = FaultTarget>) -> Vec<Step> {
        let steps = targets.into_iter().flat_map(|target| self.one(target, acts));
        steps.collect()
    }

    /// The disks of these hubs and others have a fault, and their programs keep running: none can be started there.
    fn on_disks(
        &self,
        acts: [Act; 2],
        hubs: impl IntoIterator<Item = usize>,
        others: impl IntoIterator<Item = (FaultTarget, FaultTarget)>,
    ) -> Vec<Step> {
        let hubs = hubs
            .into_iter()
            .map(|hub| (FaultTarget::HubDisk(hub), FaultTarget::Hub(hub)));
        let both = |(disk, program)| [self.one(disk, acts), self.one(program, NOTHING)];
        hubs.chain(others).flat_map(both).flatten().collect()
    }

    /// A hub without a cache does not start with certificates that can never work.
    fn without_cache(&self, loss: Act) -> Vec<Step> {
        let certificates = [
            FaultTarget::HubCertificate(self.any),
            FaultTarget::CoordinatorCertificate,
        ];
        let mut steps = without_disk(FaultTarget::Hub(self.any), loss, self.lasts);
        steps.extend(self.each(NOTHING, certificates));
        steps
    }

    /// The coordinator has lost its data, so hubs send everything again, in one commit. During it the disk stalls; the
    /// caller hangs up and repeats the call; then the disk fails for a while.
    fn feed_call_dropped(&self) -> Vec<Step> {
        let coordinator = FaultTarget::Coordinator(0);
        let stalls = CATCHING_UP + self.moment;
        let mut steps = without_disk(coordinator, Act::LoseDisk, BLINK);
        let disk = |after, act| step(after, FaultTarget::CoordinatorDisk, act);
        steps.extend([
            disk(stalls, Act::Stall),
            disk(stalls + STALLED, Act::Eio),
            disk(stalls + STALLED + self.lasts, Act::Good),
            step(stalls + STALLED + self.lasts, coordinator, Act::Good),
        ]);
        let links = self.all().map(FaultTarget::PoolLink);
        steps.extend(links.flat_map(|link| later(stalls + STALLED / 2, during(link, CUT, BLINK))));
        steps
    }

    fn link(&self, target: FaultTarget, mode: Mode) -> Vec<Step> {
        self.links(mode, [target])
    }

    fn links(&self, mode: Mode, targets: impl IntoIterator<Item = FaultTarget>) -> Vec<Step> {
        self.each([Act::Link(mode), Act::Link(Mode::Pass)], targets)
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::super::Need;
    use super::*;

    const TOPOLOGY: Topology = Topology {
        hubs: 3,
        leader: None,
        coordinators: 2,
        fed: Some(1),
        members: 3,
        member_leader: Some(2),
        pick: 0,
    };

    /// Every fault undoes all its effects.
    #[test]
    fn every_fault_ends_with_everything_running_and_passing() {
        let topology = Topology {
            leader: Some(1),
            pick: 4,
            ..TOPOLOGY
        };
        for fault in Fault::value_variants().iter().filter(|fault| !fault.is_last()) {
            let steps = fault
                .steps(&topology, Duration::from_secs(5))
                .expect("there is a leader");
            for Step { target, .. } in &steps {
                let of_target = steps.iter().filter(|step| step.target == *target);
                let last = of_target.max_by_key(|step| step.after).map(|step| step.act);
                assert!(
                    last.is_some_and(Act::is_good),
                    "{fault:?} leaves {target:?} with {last:?}"
                );
            }
        }
    }

    /// No program receives a certificate of a CA that was not trusted long enough before.
    #[test]
    fn authority_is_trusted_around_its_certificates() {
        let steps = authority_rotated(3);
        let when = |act| steps.iter().filter(move |step| step.act == act).map(|step| step.after);
        let first = when(Act::Issue(Issue::Next)).min().expect("certificates");
        let last = when(Act::Issue(Issue::Usual)).max().expect("certificates");
        assert_eq!(when(Act::Issue(Issue::Next)).count(), 4);
        assert!(when(Act::Bad).all(|trusted| trusted + RELOADED <= first));
        assert!(when(Act::Good).all(|gone| gone >= last + RELOADED));
    }

    #[test]
    fn relays_suffer_in_turn_while_the_hub_is_cut_off() {
        let steps = relays(3, 1, &FaultTarget::Hub, [Act::Kill, Act::Start]);
        let killed: Vec<FaultTarget> = steps
            .iter()
            .filter(|step| step.act == Act::Kill)
            .map(|step| step.target)
            .collect();
        assert_eq!(killed, [FaultTarget::Hub(0), FaultTarget::Hub(2)]);
        let back = steps
            .iter()
            .find(|step| step.act == Act::Link(Mode::Pass))
            .expect("an end");
        assert!(steps.iter().all(|step| step.after <= back.after));
    }

    #[test]
    fn faults_of_a_leader_need_one() {
        let steps = |fault: Fault, topology: &Topology| fault.steps(topology, Duration::from_secs(1));
        assert_eq!(steps(Fault::LeaderKilled, &TOPOLOGY), None);
        assert!(steps(Fault::CloudLinkCut, &TOPOLOGY).is_some());
        let without = Topology { members: 0, ..TOPOLOGY };
        for fault in Fault::value_variants()
            .iter()
            .filter(|fault| fault.need() == Some(Need::Etcd))
        {
            assert_eq!(steps(*fault, &without), None, "{fault}");
        }
    }
}
