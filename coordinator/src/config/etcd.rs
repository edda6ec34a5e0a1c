//! The flags of the etcd store. Names and defaults are kube-apiserver's, except for the prefix and the largest request,
//! which is etcd's own.

use std::path::{Path, PathBuf};

use clap::Args;
use yurt_apimachinery::Space;
use yurt_runtime::flags::GoDuration;
use yurt_runtime::tls::{ClientTls, PemIdentity, PemSource};
use yurt_storage::etcd3;

/// File below the data folder with the mark of etcd's revisions, see [`etcd3::Config::mark`].
const MARK_FILE: &str = "etcd-mark";

/// Connection to etcd, and limits of its use.
#[derive(Clone, Debug, Args)]
pub struct EtcdFlags {
    /// etcd servers to use as store, as a comma-separated list of URLs; several coordinators may share them. They need
    /// version 3.4.31, 3.5.13, 3.6 or later. Default: none; the embedded store below --data-dir is used.
    #[arg(long, value_name = "URLS", value_delimiter = ',')]
    pub etcd_servers: Vec<String>,

    /// PEM file with the authorities of the etcd servers' certificates; needed for https.
    #[arg(long, value_name = "FILE", requires = "etcd_servers")]
    pub etcd_cafile: Option<PathBuf>,

    /// PEM file with the certificate to present to etcd.
    #[arg(long, value_name = "FILE", requires_all = ["etcd_keyfile", "etcd_servers"])]
    pub etcd_certfile: Option<PathBuf>,

    /// PEM file with the key of --etcd-certfile.
    #[arg(long, value_name = "FILE", requires_all = ["etcd_certfile", "etcd_servers"])]
    pub etcd_keyfile: Option<PathBuf>,

    /// Prefix of every key in etcd. Coordinators with the same prefix are one server. It must differ from that of any
    /// kube-apiserver.
    #[arg(
        long,
        value_name = "PATH",
        default_value = "/yurt-coordinator",
        requires = "etcd_servers"
    )]
    pub etcd_prefix: String,

    /// Age from which history in etcd is compacted; 0s disables compaction by the coordinator.
    #[arg(long, value_name = "DURATION", default_value = "5m", requires = "etcd_servers")]
    pub etcd_compaction_interval: GoDuration,

    /// Largest request that etcd accepts, in bytes. Set it to --max-request-bytes of etcd, which etcd does not report.
    /// An object of pool data that does not fit is refused with its name.
    #[arg(long, value_name = "BYTES", default_value_t = etcd3::MAX_REQUEST_BYTES, requires = "etcd_servers")]
    pub etcd_max_request_bytes: usize,
}

// === impl EtcdFlags ===

impl EtcdFlags {
    /// True if etcd is the store.
    #[must_use]
    pub fn is_used(&self) -> bool {
        !self.etcd_servers.is_empty()
    }

    /// Rejects `https` without the authorities of the servers' certificates.
    pub(super) fn check(&self) -> Result<(), String> {
        let is_https = |server: &&String| {
            server
                .get(..6)
                .is_some_and(|scheme| scheme.eq_ignore_ascii_case("https:"))
        };
        let https = self.etcd_servers.iter().find(is_https);
        match https.filter(|_| self.etcd_cafile.is_none()) {
            Some(server) => Err(format!(
                "--etcd-cafile: {server} of --etcd-servers needs the PEM file with the authorities of its certificate"
            )),
            None => Ok(()),
        }
    }

    /// Configuration of the store; `space` tags its RVs, `data_dir` keeps its mark.
    #[must_use]
    pub fn store(&self, space: Space, data_dir: &Path) -> etcd3::Config {
        let identity = self.etcd_certfile.as_ref().zip(self.etcd_keyfile.as_ref());
        let tls = self.etcd_cafile.as_ref().map(|ca| ClientTls {
            ca: PemSource::File(ca.clone()),
            identity: identity.map(|(cert, key)| PemIdentity::files(cert, key)),
        });
        let interval = self.etcd_compaction_interval.0;
        etcd3::Config {
            servers: self.etcd_servers.clone(),
            tls,
            prefix: self.etcd_prefix.clone(),
            space,
            compaction_interval: (!interval.is_zero()).then_some(interval),
            mark: Some(data_dir.join(MARK_FILE)),
            max_request_bytes: self.etcd_max_request_bytes,
        }
    }
}
