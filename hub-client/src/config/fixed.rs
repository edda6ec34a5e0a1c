//! Flags of upstream's YurtHub that have a single supported value here. They are accepted, so that existing manifests
//! work, and absent from `--help`.

use clap::Args;
use yurt_pool_protocol::names::{ELECTION_LEASE, ELECTION_NAMESPACE};

use super::{FlagError, bad};

/// The flags as given on the command line.
#[derive(Clone, Debug, Args)]
pub(super) struct FixedFlags {
    #[arg(long, hide = true, default_value = RESOURCE_LOCK)]
    leader_elect_resource_lock: String,
    #[arg(long, hide = true, default_value = ELECTION_LEASE)]
    leader_elect_resource_name: String,
    #[arg(long, hide = true, default_value = ELECTION_NAMESPACE)]
    leader_elect_resource_namespace: String,
}

/// Resource of the election lock.
const RESOURCE_LOCK: &str = "leases";

// === impl FixedFlags ===

impl FixedFlags {
    /// # Errors
    /// [`FlagError`] for the first flag with another value.
    pub(super) fn check(&self) -> Result<(), FlagError> {
        let flags = [
            (
                "leader-elect-resource-lock",
                &self.leader_elect_resource_lock,
                RESOURCE_LOCK,
            ),
            (
                "leader-elect-resource-name",
                &self.leader_elect_resource_name,
                ELECTION_LEASE,
            ),
            (
                "leader-elect-resource-namespace",
                &self.leader_elect_resource_namespace,
                ELECTION_NAMESPACE,
            ),
        ];
        for (flag, given, supported) in flags {
            if given != supported {
                return Err(bad(
                    flag,
                    format!("{given:?} is not supported; omit the flag or use {supported}"),
                ));
            }
        }
        Ok(())
    }
}
