//! Starts following, choosing the source of, and storing the replicas.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use yurt_pool_protocol::cloud_fallback::Wanted;
use yurt_pool_protocol::election::rank;
use yurt_pool_protocol::members;
use yurt_storage::{Replica, serve};

use super::Wiring;
use crate::pool::election::driver::ElectionView;
use crate::pool::scope::ScopeSender;
use crate::pool::scope::agreed::ScopeFollower;
use crate::pool::source_controller::SourceController;
use crate::replicas::follower::Follower;
use crate::replicas::{PoolData, ahead};

/// Interval between commits of changed replicas; a crash costs only another fetch of the data since then.
const PERSIST_EVERY: Duration = Duration::from_secs(5);

// === impl Wiring ===

impl Wiring {
    /// Starts following, controller and storing the replicas.
    pub(crate) fn start_replicas(&self) {
        let wanted = watch::Sender::new(Wanted::default());
        self.start_scope();
        let following = self
            .data
            .clone()
            .each_replica(self.tasks.token(), self.follow(wanted.subscribe()));
        self.tasks.spawn_critical("follow-replicas", following);
        // Without a coordinator there is no status to compare, and the task would end at the hub's start.
        if self.upstreams.coordinator.is_some() {
            let leaving = ahead::compare(
                self.data.clone(),
                self.coordinator.0.subscribe(),
                wanted.subscribe(),
                self.clock.clone(),
                self.tasks.token(),
            );
            self.tasks.spawn_critical("leave-copies-ahead", leaving);
        }
        let controller = SourceController {
            election: self.election.subscribe(),
            cloud: self.cloud.0.subscribe(),
            coordinator: self
                .upstreams
                .coordinator
                .as_ref()
                .map(|_| self.coordinator.0.subscribe()),
            members: self.member_count.subscribe(),
            history: self.data.history().clone(),
            clock: self.clock.clone(),
        };
        self.tasks
            .spawn_critical("steer-replicas", controller.run(wanted, self.tasks.token()));
        self.start_verifying();
        self.tasks
            .spawn_critical("persist-replicas", persist(self.data.clone(), self.tasks.token()));
        self.tasks
            .spawn_critical("release-encodings", serve::release_encodings(self.tasks.token()));
        let ranking = report_members(
            self.data.clone(),
            self.config.node.clone(),
            self.member_count.clone(),
            self.rank.clone(),
            self.election.subscribe(),
            self.tasks.token(),
        );
        self.tasks.spawn_critical("rank-members", ranking);
    }

    /// Follows a replica until it is gone.
    fn follow(&self, wanted: watch::Receiver<Wanted>) -> impl FnMut(Arc<Replica>) + Send + use<> {
        let (data, upstreams, tasks) = (self.data.clone(), self.upstreams.clone(), self.tasks.clone());
        let (pool, clock) = (self.config.pool_name().to_owned(), self.clock.clone());
        let reach = self.cloud.0.subscribe();
        move |replica| {
            // Without a pool there is no membership to follow.
            if replica.name() == members::COLLECTION && pool.is_empty() {
                return;
            }
            let gone = replica.gone().clone();
            let follower = Follower {
                replica,
                data: data.clone(),
                upstreams: upstreams.clone(),
                wanted: wanted.clone(),
                reach: reach.clone(),
                pool: pool.clone(),
                tasks: tasks.clone(),
                clock: clock.clone(),
            };
            tasks.spawn("follow-replica", async move {
                gone.run_until_cancelled(follower.run()).await;
            });
        }
    }

    /// Starts reading the additional shared resources from coordinator and cloud, or from the one that is available.
    fn start_scope(&self) {
        let token = self.tasks.token();
        if self.upstreams.coordinator.is_some() {
            let follower = ScopeFollower {
                config: self.hub_config.1.subscribe(),
                coordinator: self.coordinator.0.subscribe(),
                data: self.data.clone(),
            };
            self.tasks.spawn_critical("follow-scope", follower.run(token));
            return;
        }
        let teller = ScopeSender {
            cloud: self.upstreams.cloud.clone(),
            config: self.hub_config.1.subscribe(),
            data: self.data.clone(),
            coordinator: None,
        };
        self.tasks.spawn_critical("follow-scope", teller.run(token));
    }
}

async fn persist(data: Arc<PoolData>, token: CancellationToken) {
    while token
        .run_until_cancelled(tokio::time::sleep(PERSIST_EVERY))
        .await
        .is_some()
    {
        data.persist_due().await;
    }
}

/// Sends the election this node's rank among the members, and the controller their number.
async fn report_members(
    data: Arc<PoolData>,
    node: String,
    count: watch::Sender<u32>,
    rank: watch::Sender<u32>,
    mut election: watch::Receiver<ElectionView>,
    token: CancellationToken,
) {
    let Some(members) = data.replicas().named(members::COLLECTION) else {
        return;
    };
    let mut changes = members.collection().subscribe();
    let mut last_leader = String::new();
    loop {
        // A free lease does not change the last leader.
        let leader = election.borrow_and_update().leader.clone();
        if !leader.is_empty() {
            last_leader = leader;
        }
        let names = members.collection().read(|c| members::names(c.objects()));
        let place = rank::place(&names, &node, &last_leader);
        count.send_replace(u32::try_from(names.len().max(1)).unwrap_or(u32::MAX));
        rank.send_if_modified(|rank| std::mem::replace(rank, place) != place);
        let leads_another = async {
            // Without an election there is never a leader.
            if election.changed().await.is_err() {
                std::future::pending().await
            }
        };
        let changed = async {
            tokio::select! {
                changed = changes.changed() => changed,
                () = leads_another => Ok(()),
            }
        };
        match token.run_until_cancelled(changed).await {
            Some(Ok(())) => {}
            _ => return,
        }
    }
}
