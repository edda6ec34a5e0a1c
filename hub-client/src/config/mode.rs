//! Working mode: a hub of an edge node keeps serving without the cloud, one of a cloud node only passes on and filters.

use super::{FlagError, bad};

/// Working mode, by upstream's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkingMode {
    /// Serves from this node's data while the cloud is away.
    #[default]
    Edge,
    /// Serves nothing without the cloud, and has no coordinator.
    Cloud,
}

// === impl WorkingMode ===

impl WorkingMode {
    /// Reads the flag.
    ///
    /// # Errors
    /// [`FlagError`] for another mode, and for cloud mode with a coordinator.
    pub(crate) fn parse(text: &str, has_coordinator: bool) -> Result<Self, FlagError> {
        match text {
            "edge" => Ok(Self::Edge),
            "cloud" if has_coordinator => {
                let problem = "cloud has no coordinator; omit --enable-coordinator, or use edge";
                Err(bad("working-mode", problem))
            }
            "cloud" => Ok(Self::Cloud),
            "local" => Err(bad(
                "working-mode",
                "local is not supported: it proxies nothing and only writes iptables rules for a tenant's kube-apiservers, as \
                 kube-proxy does for a Service of the host cluster; use edge or cloud",
            )),
            other => Err(bad("working-mode", format!("{other:?} must be edge or cloud"))),
        }
    }
}
