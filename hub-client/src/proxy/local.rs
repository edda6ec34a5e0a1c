//! Decides which replica of this node answers a get, list or watch of pool data, and how it is filtered for the calling
//! component. [`super::serving`] answers.

use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use yurt_apimachinery::{RequestInfo, ResourceKind, ResourceVersion, Status, Verb};
use yurt_runtime::http::Body;
use yurt_storage::{Replica, SharedCollection};

use super::approver::Approved;
use super::authorize::Authorizer;
use super::caller::Caller;
use super::screen::is_impersonating;
use super::serving::{Serving, Source, options};
use super::written::Written;
use crate::config::WorkingMode;
use crate::filter::Chain;
use crate::replicas::derived::Derived;
use crate::replicas::{POOL_SCOPE, PoolData};

/// The component that runs pods; see [`may_read`] for its only collection.
const KUBELET: &str = "kubelet";
const KUBELET_READS: &str = "services";

/// Maximum time for which a read waits for the commit of another generation.
pub(super) const COMMIT_MAX: Duration = Duration::from_secs(3);

/// Server of pool data.
pub struct Local {
    /// The replicas.
    pub data: Arc<PoolData>,
    /// Authorizer of reads.
    pub authorizer: Authorizer,
    /// Filtered views of the replicas.
    pub derived: Derived,
    /// In cloud mode nothing is answered without the cloud.
    pub mode: WorkingMode,
    /// Answers from one collection.
    pub serving: Serving,
    /// Writes that this hub passed on: reads reflect them.
    pub written: Arc<Written>,
}

// === impl Local ===

impl Local {
    /// Returns the response; `None` if the request is not for pool data or has to go to the cloud.
    ///
    /// # Errors
    /// Status to return to the client instead of data.
    pub async fn answer<B>(
        &self,
        request: &Request<B>,
        info: &RequestInfo,
        caller: &Caller,
        approved: &Approved,
    ) -> Result<Option<Response<Body>>, Status> {
        let Approved { chain, edition, .. } = approved;
        let Some(replica) = self
            .data
            .serving(&info.group, &info.resource)
            .filter(|_| info.is_resource && is_object(info))
            // A resource that an operator binds a filter to is not passed on unfiltered.
            .filter(|replica| may_read(caller, replica) || !chain.is_empty())
        else {
            return Ok(None);
        };
        let kind = replica.collection().kind();
        let impersonates = is_impersonating(request.headers());
        if !chain.is_empty() {
            require_filterable(info, kind, chain, impersonates)?;
        }
        // Only the cloud knows the rights of the user that this caller impersonates.
        if info.version != kind.version || info.subresource.is_some() || impersonates {
            return Ok(None);
        }
        // A collection added recently is read at the cloud until the replica is complete. A watch at an RV before the
        // replica's history goes there, too.
        let is_new = !POOL_SCOPE.contains(&replica.name()) && !holds(replica.collection(), request.uri().query(), info);
        // An unfiltered GET by name also goes to the cloud while it answers: the cloud always has the latest state.
        let prefers_cloud = chain.is_empty() && (is_new || info.verb == Verb::Get);
        if self.mode == WorkingMode::Cloud {
            if chain.is_empty() {
                return Ok(None);
            }
            if !self.serving.cloud.borrow().is_up() {
                return Err(Status::service_unavailable(
                    "the cloud does not answer, and --working-mode=cloud",
                    1,
                ));
            }
        }
        if prefers_cloud && self.serving.cloud.borrow().is_up() {
            return Ok(None);
        }
        self.authorizer.check(caller, info).await?;
        if !replica.is_served_within(COMMIT_MAX).await {
            let why = format!("{} is not complete on this node yet, please try again", replica.name());
            return Err(Status::too_many_requests(&why, 1));
        }
        if !chain.is_empty() || *edition != 0 {
            // A caller cannot make further collections of pool data, so their views are few.
            let is_of_tokens = false;
            return self.answer_view(request, info, &replica, approved, is_of_tokens).await;
        }
        let source = Source {
            collection: replica.collection(),
            gone: replica.gone(),
            least: self.least(&replica),
            is_fresh: self.data.is_fresh(replica.name()),
            is_clouds: true,
        };
        self.serving.answer(request, info, source).await
    }

    /// Answers from the view of `replica` through the filters of a request; `is_of_tokens` as in [`Derived::of`].
    ///
    /// # Errors
    /// As [`Derived::of`] and [`Serving::answer`].
    pub(super) async fn answer_view<B>(
        &self,
        request: &Request<B>,
        info: &RequestInfo,
        replica: &Arc<Replica>,
        Approved { chain, edition, .. }: &Approved,
        is_of_tokens: bool,
    ) -> Result<Option<Response<Body>>, Status> {
        let view = self.derived.of(replica, chain, *edition, is_of_tokens).await?;
        let source = Source {
            collection: view.collection(),
            gone: view.ended(),
            // A read of the latest state does not show less than the replica has.
            least: self.least(replica).max(view.source_position()),
            is_fresh: self.data.is_fresh(replica.name()),
            is_clouds: false,
        };
        self.serving.answer(request, info, source).await
    }

    /// Notes the RV of a write in the response, so that this node's reads reflect it.
    pub fn note_write(&self, info: &RequestInfo, response: Response<Body>) -> Response<Body> {
        match self.data.serving(&info.group, &info.resource) {
            Some(replica) => self.written.noting(vec![(replica, None)], info, response),
            None => response,
        }
    }

    fn least(&self, replica: &Replica) -> ResourceVersion {
        // Without the cloud no newer RV can come: waiting would only delay the answer.
        if !self.serving.cloud.borrow().is_up() {
            return ResourceVersion::ZERO;
        }
        let generation = replica.collection().read(|c| c.generation());
        self.written.least(replica.name(), generation)
    }
}

/// True if the caller may read this replica. The node's kubelet acts on everything that it reads. From the replica it
/// gets only services, which become environment variables of containers; everything else comes from the cloud. A pod
/// that names itself kubelet reads as other pods do, so that its reads do not cost the pool's link.
pub(super) fn may_read(caller: &Caller, replica: &Replica) -> bool {
    !caller.is_node_component(KUBELET) || replica.name() == KUBELET_READS
}

/// True if the replica is complete. For a watch its history must also reach back to the requested RV.
fn holds(copy: &SharedCollection, query: Option<&str>, info: &RequestInfo) -> bool {
    let from = (info.verb == Verb::Watch)
        .then(|| options(query, true, copy.kind(), info).ok()?.resource_version)
        .flatten();
    copy.read(|held| {
        let is_before = |from: ResourceVersion| from > ResourceVersion::ZERO && from < held.position();
        held.is_complete() && from.is_none_or(|from| !is_before(from) || held.open(from).is_ok())
    })
}

/// True if the request reads objects: the objects themselves, or their `status`, which returns the whole object.
fn is_object(info: &RequestInfo) -> bool {
    matches!(info.verb, Verb::Get | Verb::List | Verb::Watch)
        && matches!(info.subresource.as_deref(), None | Some("status"))
}

/// Refuses a request that the cloud would answer unfiltered, for a component whose view is filtered.
fn require_filterable(
    info: &RequestInfo,
    kind: &ResourceKind,
    chain: &Chain,
    impersonates: bool,
) -> Result<(), Status> {
    if info.version != kind.version || info.subresource.is_some() {
        return Err(Status::unknown_resource());
    }
    if impersonates {
        let why = format!("its filters {:?} do not support impersonation", chain.names());
        return Err(Status::forbidden_because(
            &info.group_resource(),
            info.name.as_deref().unwrap_or_default(),
            &why,
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use std::net::IpAddr;

    use futures_util::FutureExt as _;
    use futures_util::future::BoxFuture;
    use serde_json::Value;
    use tokio::sync::watch;
    use tokio_util::sync::CancellationToken;
    use yurt_apimachinery::{Object, ResourceVersion};
    use yurt_collection::Collection;
    use yurt_runtime::{Clock, TaskGroup};
    use yurt_storage::OnlyWriter as _;
    use yurt_test_support::TestDir;

    use super::*;
    use crate::filter::context::FilterOptions;
    use crate::filter::{HubAddress, PodTrust};
    use crate::health::CloudReach;
    use crate::proxy::authorize::decision::AccessVerdict;
    use crate::proxy::authorize::review::{NoVerdict, Reviews};
    use crate::proxy::authorize::{FILE, Means};
    use crate::proxy::caller::Credential;
    use crate::replicas::derived::inputs::{LiveInputs, NodeFacts};

    struct Nobody;

    impl Reviews for Nobody {
        fn ask(&self, _: Credential, _: Value) -> BoxFuture<'static, Result<AccessVerdict, NoVerdict>> {
            async { Err(NoVerdict::Unanswered("this test has no reviews".to_owned())) }.boxed()
        }
    }

    /// Pool data of a hub that has just started; `reach` is the state of its cloud.
    fn local(folder: &TestDir, reach: &watch::Sender<CloudReach>) -> Local {
        let (clock, _) = Clock::fake();
        let means = Means {
            reviews: Arc::new(Nobody),
            accounts: Arc::new(|_| None),
            refused: Arc::new(|_| ()),
            reach: reach.subscribe(),
            wake: Arc::default(),
            clock: clock.clone(),
            tasks: TaskGroup::new(),
        };
        let data = Arc::new(PoolData::open(folder.path(), "p", usize::MAX, clock.clone()).unwrap());
        let node = NodeFacts {
            node: "n1".to_owned(),
            pool: tokio::sync::watch::channel(Some(String::new())).1,
            hub: HubAddress {
                host: [169, 254, 2, 1].into(),
                secure_port: 10268,
            },
            trust: watch::channel(PodTrust::Given).1,
            options: FilterOptions::default(),
        };
        Local {
            derived: Derived::new(
                LiveInputs::new(node, data.clone(), watch::Sender::default().subscribe()),
                TaskGroup::new(),
            ),
            mode: WorkingMode::Edge,
            data,
            authorizer: Authorizer::open(means, folder.path().join(FILE)),
            serving: Serving {
                cloud: reach.subscribe(),
                min_request_timeout: Duration::from_secs(1800),
                clock: clock.clone(),
                shutdown: CancellationToken::new(),
            },
            written: Arc::new(Written::new(clock)),
        }
    }

    #[test]
    fn only_the_nodes_kubelet_reads_services_alone() {
        let folder = TestDir::new();
        let data = PoolData::open(folder.path(), "p", usize::MAX, Clock::fake().0).unwrap();
        let may = |name: &str, component: &str, credential: Credential| {
            let origin = crate::proxy::caller::Origin {
                address: IpAddr::from([127, 0, 0, 1]),
                uid: None,
            };
            let caller = Caller {
                component: component.to_owned(),
                credential,
                origin,
            };
            may_read(&caller, &data.replicas().named(name).unwrap())
        };
        let pod = || Credential::Token("t".to_owned());
        assert!(may("services", "kubelet", Credential::Node));
        assert!(!may("endpointslices.discovery.k8s.io", "kubelet", Credential::Node));
        assert!(
            may("endpointslices.discovery.k8s.io", "kubelet", pod()),
            "a name is no identity"
        );
        assert!(may("endpointslices.discovery.k8s.io", "kube-proxy", Credential::Node));
    }

    #[tokio::test(start_paused = true)]
    async fn generation_that_no_commit_knows_is_not_served() {
        let (folder, reach) = (TestDir::new(), watch::Sender::default());
        let local = local(&folder, &reach);
        let services = local.data.replicas().named("services").unwrap();
        let kind = services.collection().kind();
        let web = br#"{"metadata":{"namespace":"shop","name":"web","resourceVersion":"5"}}"#;
        let kubelet = Caller {
            component: "kubelet".to_owned(),
            credential: Credential::Node,
            origin: crate::proxy::caller::Origin {
                address: IpAddr::from([127, 0, 0, 1]),
                uid: None,
            },
        };
        let code = async |path: &str| {
            let request = Request::builder().uri(path).body(()).unwrap();
            let info = RequestInfo::parse("GET", request.uri().path(), request.uri().query()).unwrap();
            match local.answer(&request, &info, &kubelet, &Approved::default()).await {
                Ok(answer) => answer.map(|answer| answer.status().as_u16()),
                Err(status) => Some(status.code()),
            }
        };
        let begin = |generation: u64| {
            let object = Object::parse(web.as_slice().into(), kind).unwrap();
            let began = ResourceVersion(10 + generation);
            let restart = |held: &mut Collection| held.restart(generation, vec![object], began);
            services.collection().update(restart);
        };
        for generation in [0, 7] {
            begin(generation);
            for expected in [429, 200] {
                for path in [
                    "/api/v1/services",
                    "/api/v1/services?watch=1",
                    "/api/v1/namespaces/shop/services/web",
                ] {
                    assert_eq!(code(path).await, Some(expected), "generation {generation}: {path}");
                }
                local.data.replicas().persist(None).await.unwrap();
            }
        }
        begin(8);
        let commit = local.data.replicas().persist(None);
        let (answer, committed) = tokio::join!(code("/api/v1/services"), commit);
        committed.unwrap();
        assert_eq!(answer, Some(200), "a read waits for the commit");
    }
}
