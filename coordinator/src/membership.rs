//! Lets an administrator void what leaders fed of the membership, and reports its state.

use std::sync::Arc;

use tracing::{info, warn};
use yurt_apimachinery::Status;

use crate::app::App;
use crate::authn::User;
use crate::config::Profile;
use crate::feed::members::{Basis, COLLECTION};

// === impl App ===

impl App {
    /// `DELETE` of the members: what leaders told of them is forgotten, in the store as well. Who belongs to the pool is then
    /// said by the flags again. A call that was begun finishes even when its caller hangs up.
    ///
    /// # Errors
    /// Errors of the store.
    pub(crate) async fn void_members(self: &Arc<Self>, user: &User) -> Result<(), Status> {
        self.void(COLLECTION).await?;
        info!(user = user.name, "What leaders told of the members is void");
        self.tell_membership();
        Ok(())
    }

    /// `DELETE` of what was fed of a collection: the leader lists it in the cloud, and feeds it from nothing under a new generation.
    /// Until then nobody is served it. A call that was begun finishes even when its caller hangs up.
    ///
    /// # Errors
    /// 404 for a collection that is not there, 400 for the members, which have a path of their own; what the store says.
    pub(crate) async fn void_collection(self: &Arc<Self>, user: &User, name: &str) -> Result<(), Status> {
        if name == COLLECTION {
            return Err(Status::bad_request("void the members with DELETE /yurt/v1/members"));
        }
        self.void(name).await?;
        info!(
            user = user.name,
            collection = name,
            "What leaders fed of the collection is void"
        );
        Ok(())
    }

    async fn void(self: &Arc<Self>, name: &str) -> Result<(), Status> {
        let (app, name) = (self.clone(), name.to_owned());
        let call = async move {
            let serve = || {
                if let Err(error) = app.serve() {
                    tracing::error!(%error, "What is left cannot be served any more");
                }
            };
            app.feed.void(&name, serve).await
        };
        let done = self.writes.detached("void a collection", call).await;
        done.map_err(|lost| Status::internal(&lost.to_string()))?
    }

    /// Whether no node at all can be let in: nobody has said who belongs to the pool.
    pub(crate) fn lacks_members(&self) -> bool {
        self.settings.profile == Profile::Pool && self.feed.members().basis() == Basis::Nobody
    }

    /// Says in the log whom the coordinator believes, where that is worth a thought.
    pub(crate) fn tell_membership(&self) {
        if self.settings.profile == Profile::Standalone {
            return;
        }
        match self.feed.members().basis() {
            Basis::Nobody => warn!(
                "Every node is refused: nobody has said who belongs to the pool; start with --initial-members, or with \
                 --trust-first-leader"
            ),
            Basis::FirstLeader => warn!(
                "Every node with a certificate of the cluster is trusted until the first leader has told the members \
                 (--trust-first-leader)"
            ),
            Basis::Leader | Basis::InitialAndLeader => info!(
                members = self.feed.members().count(),
                "A leader has told the members; if they are wrong, take the certificate of that node away and void them with \
                 DELETE /yurt/v1/members"
            ),
            Basis::Initial => {}
        }
    }
}
