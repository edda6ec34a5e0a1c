//! `/version`: the Kubernetes version that this server emulates.

use serde_json::{Value, json};

/// Emulated minor version.
pub(super) const MINOR: &str = "36";
/// Emulated version, as `kubectl version` parses it.
pub(super) const GIT_VERSION: &str = concat!("v1.36.3+yurt.", env!("CARGO_PKG_VERSION"));

/// The document.
pub(super) fn document() -> Value {
    json!({
        "major": "1",
        "minor": MINOR,
        "emulationMajor": "1",
        "emulationMinor": MINOR,
        "gitVersion": GIT_VERSION,
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none (rust)",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, architecture()),
    })
}

/// Go's name of this architecture.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
