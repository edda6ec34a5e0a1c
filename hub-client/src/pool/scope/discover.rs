//! Looks up a listed resource and checks that it can be copied. Its names and scope come from the cloud's discovery. A
//! list of one object proves the right to read it and gives the name of its lists.

use std::time::Duration;

use http::{Method, StatusCode};
use serde_json::Value;
use yurt_apimachinery::kind::find_kind;
use yurt_apimachinery::{GroupVersionResource, ResourceVersion, Status};
use yurt_pool_protocol::pool_scope::SharedResource;
use yurt_runtime::http::client::HttpClient;

/// Maximum wait for one answer, on a slow link.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Returns the description of the resource `asked`.
///
/// # Errors
/// Reason why it cannot be copied, for the operator.
pub(super) async fn resource(client: &HttpClient, asked: &GroupVersionResource) -> Result<SharedResource, String> {
    let mut found = match find_kind(&asked.group, &asked.resource) {
        Some(kind) => SharedResource::of(kind),
        None => discovered(&get(client, &group_path(asked)).await?, asked)?,
    };
    let listed = get(client, &format!("{}/{}?limit=1", group_path(asked), asked.resource)).await?;
    let version = listed["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    if !ResourceVersion::parse(version).is_ok_and(|version| version > ResourceVersion::ZERO) {
        return Err(format!(
            "its lists have resourceVersion {version:?}, which is not a number"
        ));
    }
    if let Some(kind) = listed["kind"].as_str() {
        kind.clone_into(&mut found.list_kind);
    }
    found.check()?;
    Ok(found)
}

/// Path of the discovery document of a resource's group and version.
pub(crate) fn group_path(asked: &GroupVersionResource) -> String {
    let (group, version) = (&asked.group, &asked.version);
    if group.is_empty() {
        format!("/api/{version}")
    } else {
        format!("/apis/{group}/{version}")
    }
}

async fn get(client: &HttpClient, path: &str) -> Result<Value, String> {
    let answer = client.request_json(Method::GET, path, None, TIMEOUT).await;
    let (status, _, body) = answer.map_err(|error| error.to_string())?;
    if status != StatusCode::OK {
        let said = Status::from_json(&body).map(|status| status.message().to_owned());
        return Err(format!("GET {path}: {}", said.unwrap_or_else(|| status.to_string())));
    }
    serde_json::from_slice(&body).map_err(|error| format!("GET {path}: {error}"))
}

/// Finds the resource in a discovery document.
///
/// # Errors
/// Reason why it cannot be copied.
pub(crate) fn discovered(document: &Value, asked: &GroupVersionResource) -> Result<SharedResource, String> {
    let resources = document["resources"].as_array().into_iter().flatten();
    let resource = resources
        .into_iter()
        .find(|one| one["name"] == *asked.resource)
        .ok_or_else(|| format!("the cloud serves no {} in {}", asked.resource, group_path(asked)))?;
    let can = |verb: &str| {
        let mut verbs = resource["verbs"].as_array().into_iter().flatten();
        verbs.any(|one| one == verb)
    };
    if !can("list") || !can("watch") {
        return Err("it cannot be listed and watched".to_owned());
    }
    let text = |field: &str| resource[field].as_str().unwrap_or_default().to_owned();
    let kind = text("kind");
    Ok(SharedResource {
        group: asked.group.clone(),
        version: asked.version.clone(),
        resource: asked.resource.clone(),
        singular: text("singularName"),
        list_kind: format!("{kind}List"),
        kind,
        namespaced: resource["namespaced"] == true,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_and_scope_come_from_discovery() {
        let asked = GroupVersionResource::new("example.com", "v1", "widgets");
        let document = json!({ "resources": [
            { "name": "widgets/status", "kind": "Widget", "namespaced": true, "verbs": ["get"] },
            { "name": "gears", "kind": "Gear", "namespaced": false, "verbs": ["get", "list"] },
            { "name": "widgets", "singularName": "widget", "kind": "Widget", "namespaced": true, "verbs": ["list", "watch"] },
        ]});
        let found = discovered(&document, &asked).expect("widgets");
        assert_eq!(
            (found.kind.as_str(), found.singular.as_str(), found.namespaced),
            ("Widget", "widget", true)
        );
        let gears = GroupVersionResource::new("example.com", "v1", "gears");
        assert!(discovered(&document, &gears).is_err_and(|why| why.contains("cannot be listed")));
        let nuts = GroupVersionResource::new("example.com", "v1", "nuts");
        let why = discovered(&document, &nuts).expect_err("there are no nuts");
        assert_eq!(why, "the cloud serves no nuts in /apis/example.com/v1");
        assert!(discovered(&json!("nonsense"), &asked).is_err());
    }
}
