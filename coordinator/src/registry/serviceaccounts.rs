//! ServiceAccounts: of their secrets only the names are kept.

use serde_json::Value;

use super::fields::each;
use super::strategy::{MetaPass, Strategy};

/// Rules of `serviceaccounts`.
pub(crate) struct ServiceAccounts;

impl Strategy for ServiceAccounts {
    fn default(&self, object: &mut Value) {
        each(object, &["secrets"]).for_each(|secret| secret.retain(|name, _| name == "name"));
    }

    fn meta_passes(&self) -> &'static [MetaPass] {
        &[MetaPass::Change, MetaPass::Whole]
    }
}
