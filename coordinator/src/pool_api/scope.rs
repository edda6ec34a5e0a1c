//! Applies changes of the shared resources to the other parts: one resource has one authority.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use yurt_apimachinery::Status;
use yurt_pool_protocol::pool_scope::SharedResource;

use crate::app::App;
use crate::authn::User;
use crate::config::Profile;
use crate::feed::FeedError;
use crate::registry::Authority;

// === impl App ===

impl App {
    /// `POST scope` of the feed: the leader sends the resources that the pool shares in addition to those every pool
    /// does. The answer names the rejected ones with reasons. A call that has begun finishes even when its leader
    /// disconnects: a collection is added or removed as a whole. One call runs at a time.
    ///
    /// # Errors
    /// [`FeedError`]; nothing has changed then.
    pub(crate) async fn take_scope(self: &Arc<Self>, user: &User, body: Bytes) -> Result<Value, FeedError> {
        let turn = self.feed.scope().turn().await;
        let (app, user) = (self.clone(), user.clone());
        let call = async move {
            let _turn = turn;
            app.take_scope_in_turn(&user, &body).await
        };
        let taken = self.writes.detached("feed of the scope", call).await;
        taken.map_err(|lost| Status::internal(&lost.to_string()))?
    }

    async fn take_scope_in_turn(&self, user: &User, body: &[u8]) -> Result<Value, FeedError> {
        if self.settings.profile == Profile::Standalone {
            return Err(Status::failure(404, "NotFound", "a standalone server shares no resources with a pool").into());
        }
        let told = self
            .feed
            .take_scope(user, body, |resource| self.may_share(resource))
            .await?;
        // The controller repeats and logs what fails.
        drop(self.follow_scope().await);
        self.feed.forget(&told.gone).await;
        Ok(json!({ "refused": told.refused }))
    }

    /// Serves exactly the resources that are shared now.
    ///
    /// # Errors
    /// Reason for which one could not begin or end; a repetition continues with it.
    pub(crate) async fn follow_scope(&self) -> Result<(), String> {
        let serve = || {
            if let Err(error) = self.serve() {
                tracing::error!(%error, "Failed to serve changed pool-scope resources");
            }
        };
        self.feed.follow_scope(self.custom.kinds(), serve).await
    }

    fn may_share(&self, resource: &SharedResource) -> Result<(), String> {
        let served = self.served();
        match served.registry.find(&resource.group, &resource.resource) {
            Some(held) if matches!(held.authority, Authority::Own(_)) => {
                Err("belongs to the coordinator itself, built in or by --custom-resources-path".to_owned())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
