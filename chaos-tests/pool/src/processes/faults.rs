//! The faults of a run with real processes: the catalogue, and their targets. Pure; [`fault_steps`] has the steps of
//! each, and its end.

mod fault_steps;

use std::time::Duration;

use clap::ValueEnum;
use yurt_testbed::identities::Issue;
use yurt_testbed::link::Mode;

use super::hostile::Actor;

/// One kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Fault {
    /// SIGKILL to the leading hub
    LeaderKilled,
    /// SIGKILL to a hub that follows
    FollowerKilled,
    /// SIGTERM to the leading hub
    LeaderStopped,
    /// SIGTERM to a hub that follows
    FollowerStopped,
    /// SIGSTOP to the leading hub, for longer than its lease at times
    LeaderPaused,
    /// SIGSTOP to a hub that follows
    FollowerPaused,
    /// SIGKILL to every hub simultaneously
    AllHubsKilled,
    /// SIGKILL to a hub, with the loss of its disk
    HubDiskLost,
    /// SIGKILL to a hub, whose cache is damaged when it starts again
    HubCacheDamaged,
    /// A hub moves to another pool, and comes back
    HubChangesPool,
    /// A hub cannot open another file or socket
    HubWithoutFiles,
    /// SIGKILL to the coordinator
    CoordinatorKilled,
    /// SIGTERM to the coordinator
    CoordinatorStopped,
    /// SIGSTOP to the coordinator
    CoordinatorPaused,
    /// SIGKILL to the coordinator, again as soon as it is back
    CoordinatorCrashLoop,
    /// The coordinator cannot open another file or socket
    CoordinatorWithoutFiles,
    /// SIGKILL to the coordinator, with the loss of its disk
    CoordinatorDiskLost,
    /// SIGKILL to coordinator and hubs: a power failure
    PoolKilled,
    /// SIGTERM to the cloud's server
    CloudStopped,
    /// SIGSTOP to the cloud's server
    CloudPaused,
    /// A hub's link to the cloud refuses connections
    CloudLinkCut,
    /// A hub's link to the cloud is silent
    CloudLinkSilent,
    /// Requests of a hub to the cloud do not arrive
    CloudRequestsVanish,
    /// Answers of the cloud to a hub do not arrive
    CloudAnswersVanish,
    /// A hub's link to the cloud carries 50 kbit/s
    CloudLinkSlow,
    /// A hub's link to the cloud has a latency of 150 ms
    CloudLinkLate,
    /// A hub's link to the cloud goes down and up
    CloudLinkFlaps,
    /// Bytes from the cloud are damaged on their way to a hub
    CloudLinkDamaged,
    /// All links to the cloud refuse connections
    AllCloudLinksCut,
    /// All links to the cloud are silent
    AllCloudLinksSilent,
    /// A hub's link to the coordinator refuses connections
    PoolLinkCut,
    /// A hub's link to the coordinator is silent
    PoolLinkSilent,
    /// Requests of a hub to the coordinator do not arrive
    PoolRequestsVanish,
    /// Answers of the coordinator to a hub do not arrive
    PoolAnswersVanish,
    /// A hub's link to the coordinator carries 50 kbit/s
    PoolLinkSlow,
    /// A hub's link to the coordinator has a latency of 150 ms
    PoolLinkLate,
    /// A hub's link to the coordinator goes down and up
    PoolLinkFlaps,
    /// Bytes from the coordinator are damaged on their way to a hub
    PoolLinkDamaged,
    /// All links to the coordinator are silent
    AllPoolLinksSilent,
    /// A hub reaches neither cloud nor coordinator
    HubIsolated,
    /// The leading hub keeps its cloud and loses the coordinator
    LeaderLosesCoordinator,
    /// The leading hub keeps the coordinator and loses its cloud
    LeaderLosesCloud,
    /// SIGTERM to one hub after the other, as an upgrade does
    HubsRestartInTurn,
    /// SIGSTOP to every hub simultaneously
    AllHubsPaused,
    /// SIGSTOP to coordinator and hubs
    PoolPaused,
    /// The cloud's server cannot open another file or socket
    CloudWithoutFiles,
    /// SIGTERM to the coordinator as all hubs connect to it again
    CoordinatorStoppedInCatchUp,
    /// SIGKILL to a hub as it connects to cloud and coordinator again
    HubKilledInCatchUp,
    /// SIGKILL to the leading hub as it feeds a coordinator that was killed
    LeaderKilledInCatchUp,
    /// The disk of a hub is full
    HubDiskFull,
    /// The disk of the coordinator is full
    CoordinatorDiskFull,
    /// The disks of hubs and coordinator are full
    AllDisksFull,
    /// Every read, write and sync of a hub's disk fails
    HubDiskEio,
    /// Every read, write and sync of the coordinator's disk fails
    CoordinatorDiskEio,
    /// Every read, write and sync of all disks fails
    AllDisksEio,
    /// The coordinator's disk stalls, its hubs hang up during their calls, then the disk fails
    FeedCallDropped,
    /// A hub's client certificates are replaced
    HubCertificateRotated,
    /// The coordinator's serving certificate is replaced
    CoordinatorCertificateRotated,
    /// Another CA is trusted, issues all certificates of the pool, and is removed again
    AuthorityRotated,
    /// A hub's client certificates have expired
    HubCertificateExpired,
    /// The coordinator's serving certificate has expired, and a hub has to connect again
    CoordinatorCertificateExpired,
    /// A hub is cut off from the cloud, and the hubs that may relay for it are killed in turn
    RelaysKilled,
    /// A hub is cut off from the cloud, and the hubs that may relay for it are paused in turn
    RelaysPaused,
    /// A hub is cut off from the cloud, then the others are in turn
    RelaysLoseCloud,
    /// One more resource is shared, and then removed (ConfigMap yurt-hub-cfg)
    ScopeChanged,
    /// The clients behind a hub do not read their watches
    ReadersStill,
    /// An object of hundreds of kilobytes is created, changes all the time, and is deleted
    HugeObject,
    /// The cloud is restored from a backup, once, after everything else of a run (only by name)
    CloudRolledBack,
    /// A member leads by the rules and feeds forged Services, once, after everything else of a run (only by name)
    ForgingLeader,
    /// SIGKILL to a member of the coordinators' etcd (--etcd)
    EtcdMemberKilled,
    /// SIGSTOP to a member of etcd (--etcd)
    EtcdMemberPaused,
    /// SIGKILL to the member of etcd that leads (--etcd)
    EtcdLeaderKilled,
    /// SIGSTOP to the member of etcd that leads (--etcd)
    EtcdLeaderPaused,
    /// SIGKILL to all members of etcd but one (--etcd)
    EtcdQuorumKilled,
    /// A coordinator is paused while etcd compacts its history (--etcd)
    EtcdCompacted,
    /// SIGKILL to the coordinator that the leading hub feeds; the other one runs (--etcd)
    FedCoordinatorKilled,
    /// SIGSTOP to the coordinator that the leading hub feeds; the other one runs (--etcd)
    FedCoordinatorPaused,
    /// A hub's wall clock is an hour behind
    HubClockLate,
    /// A hub's wall clock is an hour ahead
    HubClockEarly,
    /// The coordinator's wall clock is an hour behind
    CoordinatorClockLate,
    /// The coordinator's wall clock is an hour ahead
    CoordinatorClockEarly,
    /// SIGKILL to the coordinator, whose wall clock is an hour behind when it is back
    CoordinatorRestartedLate,
    /// The wall clocks of coordinators and hubs diverge, an hour each way
    AllClocksWrong,
    /// SIGKILL to a hub, whose time since boot has changed when it is back
    HubRebooted,
    /// SIGKILL to the coordinator, whose time since boot has changed when it is back
    CoordinatorRebooted,
    /// A hub's links lose one packet in five (--links)
    LinksLossy,
    /// Packets are reordered on a hub's links (--links)
    LinksReordered,
    /// Packets arrive twice on a hub's links (--links)
    LinksDoubled,
    /// Packets take 50 to 350 ms on a hub's links (--links)
    LinksJittery,
    /// Packets are lost, late, doubled, reordered and damaged on a hub's links (--links)
    LinksRadio,
    /// The same on all links (--links)
    AllLinksRadio,
    /// A member with a stolen certificate attacks coordinator, election and feed
    HostileMember,
    /// A pod without any right sends invented tokens and large requests to a hub, and poses as the kubelet
    HostilePod,
    /// Hundreds of connections without a certificate at the coordinator
    Stranger,
}

/// Requirement of a fault on its pool, beyond those that every pool meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Two coordinators over an etcd.
    Etcd,
    /// Links that carry packets.
    Packets,
    /// A cloud that is a program of ours: its data is one folder, and it serves NodePools without a definition.
    OurCloud,
}

/// A program or a link that a fault affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultTarget {
    Hub(usize),
    Coordinator(usize),
    EtcdMember(usize),
    HubClock(usize),
    CoordinatorClock(usize),
    EtcdHistory,
    Cloud,
    /// Link of this hub to the cloud.
    CloudLink(usize),
    /// Link of this hub to the coordinator.
    PoolLink(usize),
    HubDisk(usize),
    /// Disk of the first coordinator.
    CoordinatorDisk,
    /// Client certificates of this hub.
    HubCertificate(usize),
    /// Serving certificate of the first coordinator.
    CoordinatorCertificate,
    /// The file with the CAs that all programs trust.
    Authorities,
    /// The list of shared resources in the cloud's ConfigMap.
    Scope,
    /// Writes at the cloud.
    Traffic,
    /// The clients behind this hub.
    Readers(usize),
    Actor(Actor),
}

/// One step at a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// Starts the fault of the target: full disks, the next CA trusted too, more resources shared, a huge object,
    /// clients that do not read, compacted history, an attacking actor.
    Bad,
    /// Disks fail with EIO.
    Eio,
    /// Disks do not answer.
    Stall,
    /// Ends the fault. No effect on a program.
    Good,
    /// A new certificate.
    Issue(Issue),
    Kill,
    Stop,
    Start,
    /// Removes the data on its disk; only while it does not run.
    LoseDisk,
    /// Damages bytes of its store; only while it does not run.
    DamageDisk,
    /// It belongs to another pool from its next start on (true), or to this one again.
    Move(bool),
    Pause,
    Continue,
    FewFiles,
    ManyFiles,
    Link(Mode),
    /// The wall clock is wrong by so many seconds.
    Skew(i64),
    /// From its next start on, the machine seems to have been up for so many days more.
    Reboot(u32),
}

/// An act, and its time after the start of the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) after: Duration,
    pub(super) target: FaultTarget,
    pub(super) act: Act,
}

/// Targets that a fault may choose from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Topology {
    pub(super) hubs: usize,
    /// The hub that leads, if one reports it.
    pub(super) leader: Option<usize>,
    pub(super) coordinators: usize,
    /// The coordinator with the latest connection of the leading hub.
    pub(super) fed: Option<usize>,
    /// Members of the coordinators' etcd; 0 when there is none.
    pub(super) members: usize,
    /// The member that leads.
    pub(super) member_leader: Option<usize>,
    /// A random number.
    pub(super) pick: usize,
}

// === impl Fault ===

impl Fault {
    /// True if it is injected once, alone, after all others.
    pub(super) fn is_last(self) -> bool {
        matches!(self, Self::CloudRolledBack | Self::ForgingLeader)
    }

    /// The actor that attacks.
    pub(super) fn actor(self) -> Option<Actor> {
        match self {
            Self::HostileMember => Some(Actor::Member),
            Self::HostilePod => Some(Actor::Pod),
            Self::Stranger => Some(Actor::Stranger),
            _ => None,
        }
    }

    /// Requirement that not every pool meets.
    pub(super) fn need(self) -> Option<Need> {
        match self {
            Self::EtcdMemberKilled
            | Self::EtcdMemberPaused
            | Self::EtcdLeaderKilled
            | Self::EtcdLeaderPaused
            | Self::EtcdQuorumKilled
            | Self::EtcdCompacted
            | Self::FedCoordinatorKilled
            | Self::FedCoordinatorPaused => Some(Need::Etcd),
            Self::LinksLossy
            | Self::LinksReordered
            | Self::LinksDoubled
            | Self::LinksJittery
            | Self::LinksRadio
            | Self::AllLinksRadio => Some(Need::Packets),
            Self::CloudRolledBack | Self::ScopeChanged | Self::HubChangesPool => Some(Need::OurCloud),
            _ => None,
        }
    }
}

// === impl Act ===

impl Act {
    /// The hub whose clients may have to list again after this, because the data it needs to resume them is gone.
    pub(super) fn may_relist(self, target: FaultTarget) -> Option<usize> {
        match (self, target) {
            (Self::LoseDisk | Self::DamageDisk, FaultTarget::Hub(hub)) => Some(hub),
            _ => None,
        }
    }

    /// True if the target has no fault after it.
    #[cfg(test)]
    pub(super) fn is_good(self) -> bool {
        let good = [Self::Good, Self::Start, Self::Continue, Self::ManyFiles];
        good.contains(&self) || [Self::Issue(Issue::Usual), Self::Link(Mode::Pass), Self::Skew(0)].contains(&self)
    }
}
