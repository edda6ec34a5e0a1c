//! Options that several commands share, and the amount of load.

use std::path::PathBuf;

use anyhow::Result;
use yurt_workspace::programs::{self, Profile};

/// Arguments of both benchmarks.
#[derive(clap::Args)]
pub(super) struct Common {
    /// Leave kube-apiserver out: no ratios, less time, no Go
    #[arg(long, alias = "skip-peer")]
    pub(super) skip_baseline: bool,
    #[command(flatten)]
    pub(super) programs: Programs,
    /// Write the table, as Markdown, between the markers of this file too; with groups, its other rows stay
    #[arg(long, value_name = "FILE")]
    pub(super) update: Option<PathBuf>,
}

/// Source of the measured programs.
#[derive(clap::Args)]
pub(super) struct Programs {
    /// Use the programs in this folder instead of building them
    #[arg(long, value_name = "DIR")]
    pub(super) bin_dir: Option<PathBuf>,
}

/// Amount of load.
#[derive(Clone, Copy)]
pub(super) struct Scale {
    pub(super) divisor: usize,
}

impl Scale {
    /// `full`, or a tenth of it.
    pub(super) fn of(self, full: usize) -> usize {
        (full / self.divisor).max(1)
    }
}

// === impl Common, Programs ===

impl Common {
    /// Builds whatever takes part; the folder of our programs.
    pub(super) fn build(&self) -> Result<PathBuf> {
        if !self.skip_baseline {
            programs::build_kubernetes()?;
        }
        self.programs.build()
    }
}

impl Programs {
    /// The folder they are in, built unless they are given.
    pub(super) fn build(&self) -> Result<PathBuf> {
        match &self.bin_dir {
            Some(dir) => Ok(dir.clone()),
            None => programs::build(Profile::Release),
        }
    }
}
