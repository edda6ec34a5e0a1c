//! Flags of the data filters, by upstream's names.

use clap::{ArgAction, Args, ValueEnum};
use yurt_runtime::flags::parse_go_bool;

use super::{FlagError, WorkingMode, bad};
use crate::filter::FILTERS;
use crate::filter::binding::{self, Switches};
use crate::filter::context::{DiscardCloudService, FilterOptions};

/// The flags as given on the command line.
#[derive(Clone, Debug, Args)]
pub(crate) struct FilterFlags {
    /// Filter what local components read, as yurthub filters list shows. If false, they see all objects as the cloud
    /// has them.
    #[arg(long, default_value = "true", value_parser = parse_go_bool, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set)]
    enable_resource_filter: bool,
    /// Names of filters that do not run on this node, separated by commas; * alone disables all. ConfigMap yurt-hub-cfg
    /// cannot enable them.
    #[arg(long, value_delimiter = ',', default_value = "", hide_default_value = true)]
    disabled_resource_filters: Vec<String>,
    /// LoadBalancer Services that filter discardcloudservice hides. opt-out: all but those with annotation
    /// openyurt.io/skip-discard=true. opt-in: only those with annotation svc.openyurt.io/discard=true.
    #[arg(long, value_enum, default_value = "opt-out")]
    discard_cloud_service: Discard,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Discard {
    OptOut,
    OptIn,
}

/// Settings of the data filters.
#[derive(Clone, Debug, Default)]
pub struct FilterSettings {
    /// Filters that do not run.
    pub switches: Switches,
    /// Choices within the filters.
    pub options: FilterOptions,
}

// === impl FilterFlags ===

impl FilterFlags {
    /// # Errors
    /// [`FlagError`] for a name that is no filter.
    pub(crate) fn check(&self, mode: WorkingMode) -> Result<FilterSettings, FlagError> {
        let names = self.disabled_resource_filters.iter().map(|name| name.trim());
        let names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
        let disabled = binding::disabled(&names, &FILTERS).map_err(|why| bad("disabled-resource-filters", why))?;
        Ok(FilterSettings {
            switches: Switches {
                all_off: !self.enable_resource_filter,
                disabled,
                in_cloud: mode == WorkingMode::Cloud,
            },
            options: FilterOptions {
                discard_cloud_service: match self.discard_cloud_service {
                    Discard::OptOut => DiscardCloudService::OptOut,
                    Discard::OptIn => DiscardCloudService::OptIn,
                },
            },
        })
    }
}
