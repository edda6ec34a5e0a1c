//! ServiceAccounts: their secrets keep only the names.

use serde_json::Value;

use crate::registry::fields::{each, is_set};
use crate::registry::strategy::{MetaPass, Strategy};

/// Rules of `serviceaccounts`.
pub(crate) struct ServiceAccounts;

impl Strategy for ServiceAccounts {
    fn default(&self, object: &mut Value) {
        each(object, &["secrets"]).for_each(|secret| secret.retain(|name, _| name == "name"));
    }

    fn warnings(&self, object: &Value, old: Option<&Value>) -> Vec<String> {
        const SECRETS: &str = "kubernetes.io/enforce-mountable-secrets";
        let is_marked = |account: &Value| is_set(account, &["metadata", "annotations", SECRETS]);
        let is_told = is_marked(object) && !old.is_some_and(is_marked);
        let told = format!(
            "metadata.annotations[{SECRETS}]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted \
             secrets"
        );
        is_told.then_some(told).into_iter().collect()
    }

    fn meta_passes(&self) -> &'static [MetaPass] {
        &[MetaPass::Change, MetaPass::Whole]
    }
}
