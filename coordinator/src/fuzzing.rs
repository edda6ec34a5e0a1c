//! Entry points for the fuzz targets and tests of memory: bodies of writes, behind authentication, without a server.

use std::sync::LazyLock;

use bytes::Bytes;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::options::FieldValidation;
use yurt_apimachinery::time::Time;
use yurt_apimachinery::{Status, kind, meta};
use yurt_storage::Cacher;

use crate::config::Profile;
use crate::handlers::reading::{self, Expected};
use crate::registry::prepare::{self, Account, Part};
use crate::registry::{Registry, stored_kinds};
use crate::request::warnings::Warnings;
use crate::standalone;

static REGISTRY: LazyLock<Registry> = LazyLock::new(|| {
    let cacher = Cacher::new(stored_kinds(Profile::Standalone));
    Registry::new(
        Profile::Standalone,
        standalone::strategy_of,
        &cacher,
        &[],
        &CancellationToken::new(),
    )
});

/// Decodes a body as an object of a kind.
///
/// # Errors
/// The code of the refusal.
pub fn decode(api_version: &str, kind: &str, content_type: &str, body: &Bytes) -> Result<Value, u16> {
    let expected = Expected {
        kind,
        api_versions: &[api_version],
    };
    let warnings = Warnings::default();
    let read = reading::read(&expected, Some(content_type), body, FieldValidation::Warn, &warnings);
    read.map_err(|refused| refused.code())
}

/// Applies a JSON body as a create of a built-in kind, then as an update of the result, or of itself where the create
/// failed. Returns the bytes of the longest refusal; 0 for a kind without writes.
pub fn write(group: &str, version: &str, kind: &str, body: &str) -> usize {
    let is_meant = |named: &kind::ResourceKind| named.group == group && named.version == version && named.kind == kind;
    let Some(resource) = REGISTRY.iter().find(|resource| is_meant(resource.kind)) else {
        return 0;
    };
    let (api_version, warnings) = (resource.kind.api_version(), Warnings::default());
    let expected = Expected {
        kind,
        api_versions: &[&api_version],
    };
    let account = Account::Writer {
        manager: "fuzz",
        now: Time::from_unix(1_800_000_000),
    };
    let length = |refused: &Status| refused.to_json().len();
    let body = Bytes::copy_from_slice(body.as_bytes());
    let read = reading::read(&expected, None, &body, FieldValidation::Warn, &warnings);
    let object = match read {
        Ok(object) => object,
        Err(refused) => return length(&refused),
    };
    let namespace = resource.kind.namespaced.then_some("default");
    let now = Time::from_unix(1_800_000_000);
    let created = prepare::created(resource, object.clone(), namespace, now, "uid", account);
    let longest = created.as_ref().err().map_or(0, length);
    let mut old = created.unwrap_or(object);
    meta::set_uid(&mut old, "uid");
    warnings.extend(resource.strategy.warnings(&old, Some(&old)));
    let updated = prepare::updated(resource, &old, old.clone(), Part::Main, account);
    longest.max(updated.err().as_ref().map_or(0, length))
}
