//! Voids fed members and collections for an administrator, and reports the source of the members.

use std::sync::Arc;

use tracing::{info, warn};
use yurt_apimachinery::Status;
use yurt_pool_protocol::members::COLLECTION;

use crate::app::App;
use crate::authn::User;
use crate::config::Profile;
use crate::feed::members::Basis;

// === impl App ===

impl App {
    /// `DELETE` of the members: voids the members that leaders fed, in the store as well. The flags then determine the
    /// members again. A call that has begun finishes even when its caller disconnects.
    ///
    /// # Errors
    /// Errors of the store.
    pub(crate) async fn void_members(self: &Arc<Self>, user: &User) -> Result<(), Status> {
        self.void(COLLECTION).await?;
        info!(user = user.name, "Members fed by leaders voided");
        self.tell_membership();
        Ok(())
    }

    /// `DELETE` of the fed data of a collection: the leader lists it in the cloud, and feeds it from nothing under a
    /// new generation. Until then the collection is not served. A call that has begun finishes even when its caller
    /// disconnects.
    ///
    /// # Errors
    /// 404 for a collection that does not exist, 400 for the members, which have a path of their own; errors of the
    /// store.
    pub(crate) async fn void_collection(self: &Arc<Self>, user: &User, name: &str) -> Result<(), Status> {
        if name == COLLECTION {
            return Err(Status::bad_request("void the members with DELETE /yurt/v1/members"));
        }
        self.void(name).await?;
        info!(user = user.name, collection = name, "Fed data of the collection voided");
        Ok(())
    }

    /// Voids a collection, and then ends the reports about it. A call that has begun finishes even when its caller
    /// disconnects.
    ///
    /// # Errors
    /// 404 for a collection that does not exist; errors of the store.
    pub(crate) async fn void(self: &Arc<Self>, name: &str) -> Result<(), Status> {
        let (app, name) = (self.clone(), name.to_owned());
        let call = async move {
            let serve = || {
                if let Err(error) = app.serve() {
                    tracing::error!(%error, "Failed to serve the remaining resources");
                }
            };
            let voided = app.feed.void(&name, serve).await;
            let mut reports = app.reports.lock();
            match &voided {
                Ok(()) => reports.end(&name),
                Err(_) => reports.keep(&name, app.feed.required_generation(&name).unwrap_or_default()),
            }
            voided
        };
        let done = self.writes.detached("void a collection", call).await;
        done.map_err(|lost| Status::internal(&lost.to_string()))?
    }

    /// True if no node can be admitted because the members are unknown.
    pub(crate) fn lacks_members(&self) -> bool {
        self.settings.profile == Profile::Pool && self.feed.members().basis() == Basis::Nobody
    }

    /// Logs the source of the members, where an administrator should check it.
    pub(crate) fn tell_membership(&self) {
        if self.settings.profile == Profile::Standalone {
            return;
        }
        match self.feed.members().basis() {
            Basis::Nobody => warn!(
                "Every node is refused because the pool has no members yet; start with --initial-members, or with \
                 --trust-first-leader"
            ),
            Basis::FirstLeader => warn!(
                "Every node with a certificate of the cluster is trusted until the first leader has fed the members \
                 (--trust-first-leader)"
            ),
            Basis::Leader | Basis::InitialAndLeader => info!(
                members = self.feed.members().count(),
                "The members come from a leader; if they are wrong, revoke the certificate of that node and void them with \
                 DELETE /yurt/v1/members"
            ),
            Basis::Initial => {}
        }
    }
}
