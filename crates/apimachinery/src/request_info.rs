//! Attributes of a request: its verb, and the resource its path names.
//!
//! The rules are kube-apiserver's `RequestInfoFactory`: authorization, routing and the hub's proxy all decide on this
//! one parse of the path.

use crate::gvr::{GroupResource, GroupVersionResource};
use crate::query::{Query, escapes_are_valid};
use crate::status::{Denial, Status};
use crate::text::go_quote;
use crate::verb::Verb;

/// A request, read from its method and URL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestInfo {
    /// True if the path names a resource, false for `/healthz`, `/apis` and the like.
    pub is_resource: bool,
    /// The decoded path.
    pub path: String,
    /// Operation of the request.
    pub verb: Verb,
    /// `api` or `apis`; empty for other paths.
    pub api_prefix: String,
    /// API group, empty for core.
    pub group: String,
    /// API version.
    pub version: String,
    /// Namespace, for authorization also that of a request for the namespace itself.
    pub namespace: Option<String>,
    /// Plural resource.
    pub resource: String,
    /// Subresource, such as `status`.
    pub subresource: Option<String>,
    /// Name of the object, also one that the field selector of a list or watch requires.
    pub name: Option<String>,
    /// Path after the subresource, for `proxy` and the like; without the leading slash.
    pub rest: Option<String>,
}

/// Subresources of the namespace object; any other segment after a namespace's name is a resource in it.
const NAMESPACE_SUBRESOURCES: [&str; 2] = ["status", "finalize"];

// === impl RequestInfo ===

impl RequestInfo {
    /// Reads a request.
    ///
    /// # Errors
    ///
    /// 400 for a path that cannot be decoded, ends right after a legacy verb, or names `.`, `..` or a segment with `%`.
    pub fn parse(method: &str, path: &str, query: Option<&str>) -> Result<Self, Status> {
        let path = decode_path(path)?;
        let mut info = Self {
            verb: Verb::of_non_resource(method),
            ..Self::default()
        };
        info.read_path(method, &path, query)?;
        Ok(Self { path, ..info })
    }

    fn read_path(&mut self, method: &str, path: &str, query: Option<&str>) -> Result<(), Status> {
        // kube-apiserver's router does not find doubled slashes in front.
        if path.starts_with("//") {
            return Ok(());
        }
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (prefix, parts) = match parts.split_first() {
            Some((prefix @ (&"api" | &"apis"), rest)) if parts.len() >= 3 => (*prefix, rest),
            _ => return Ok(()),
        };
        prefix.clone_into(&mut self.api_prefix);
        let parts = match parts {
            [group, rest @ ..] if prefix == "apis" => {
                if rest.len() < 2 || group.is_empty() {
                    return Ok(());
                }
                (*group).clone_into(&mut self.group);
                rest
            }
            rest => rest,
        };
        self.read_resource(method, parts, query)
    }

    fn read_resource(&mut self, method: &str, parts: &[&str], query: Option<&str>) -> Result<(), Status> {
        let [version, parts @ ..] = parts else { return Ok(()) };
        self.is_resource = true;
        (*version).clone_into(&mut self.version);
        let parts = match parts {
            [special @ ("watch" | "proxy")] => {
                let message = format!("unable to determine kind and namespace from url, {special}");
                return Err(Status::bad_request(message));
            }
            ["watch", rest @ ..] => self.with_verb(Verb::Watch, rest),
            ["proxy", rest @ ..] => self.with_verb(Verb::Proxy, rest),
            rest => self.with_verb(Verb::of_resource(method), rest),
        };
        self.read_names(parts);
        self.check_segments()?;
        self.refine_verb(query);
        Ok(())
    }

    fn with_verb<'a, 'p>(&mut self, verb: Verb, parts: &'a [&'p str]) -> &'a [&'p str] {
        self.verb = verb;
        parts
    }

    fn read_names(&mut self, mut parts: &[&str]) {
        if let ["namespaces", namespace, rest @ ..] = parts {
            self.namespace = some(namespace);
            if rest
                .first()
                .is_some_and(|first| !NAMESPACE_SUBRESOURCES.contains(first))
            {
                parts = rest;
            }
        }
        if let Some(resource) = parts.first() {
            (*resource).clone_into(&mut self.resource);
        }
        self.name = parts.get(1).copied().and_then(some);
        // Legacy /proxy/ paths hand everything after the name to the backend.
        let is_proxy = self.verb == Verb::Proxy;
        self.subresource = parts.get(2).copied().filter(|_| !is_proxy).and_then(some);
        let rest = parts.get(if is_proxy { 2 } else { 3 }..).unwrap_or_default();
        self.rest = (!rest.is_empty()).then(|| rest.join("/"));
    }

    fn check_segments(&self) -> Result<(), Status> {
        for (what, value) in [("Namespace", &self.namespace), ("Name", &self.name)] {
            if let Some((value, why)) = value
                .as_ref()
                .and_then(|value| Some((value, path_segment_fault(value)?)))
            {
                return Err(Status::bad_request(format!(
                    "{what} parameter invalid: {}: {why}",
                    go_quote(value)
                )));
            }
        }
        Ok(())
    }

    /// A get without a name is a list or a watch, a delete without a name is a deletecollection.
    fn refine_verb(&mut self, query: Option<&str>) {
        if self.name.is_some() {
            return;
        }
        match self.verb {
            Verb::Get => {
                let query = Query::parse(query);
                let is_watch = query.get_bool("watch").unwrap_or(false);
                self.verb = if is_watch { Verb::Watch } else { Verb::List };
                self.name = crate::options::required_name(&query).filter(|name| path_segment_fault(name).is_none());
            }
            Verb::Delete => self.verb = Verb::DeleteCollection,
            _ => {}
        }
    }

    /// 403: an authorizer rejected this request of `user`; `why` may be empty.
    pub fn forbidden(&self, user: &str, why: &str) -> Status {
        Status::denied(&Denial {
            user,
            verb: self.verb.as_str(),
            path: (!self.is_resource).then_some(self.path.as_str()),
            group: &self.group,
            resource: &self.resource,
            subresource: self.subresource.as_deref().unwrap_or_default(),
            namespace: self.namespace.as_deref().unwrap_or_default(),
            name: self.name.as_deref().unwrap_or_default(),
            why,
        })
    }

    /// True if the request is passed on to a node, a pod or a service.
    pub fn is_proxy(&self) -> bool {
        self.verb == Verb::Proxy || self.subresource.as_deref() == Some("proxy")
    }

    /// Group, version and resource; empty for other paths.
    pub fn gvr(&self) -> GroupVersionResource {
        GroupVersionResource::new(self.group.clone(), self.version.clone(), self.resource.clone())
    }

    /// Group and resource; empty for other paths.
    pub fn group_resource(&self) -> GroupResource {
        GroupResource::new(self.group.clone(), self.resource.clone())
    }
}

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// Decodes a path as a whole, once: an encoded slash separates segments, as in Go.
fn decode_path(path: &str) -> Result<String, Status> {
    let refuse = || Status::bad_request(format!("invalid URL escape in path {}", go_quote(path)));
    if !escapes_are_valid(path) {
        return Err(refuse());
    }
    percent_encoding::percent_decode_str(path)
        .decode_utf8()
        .map(|path| path.into_owned())
        .map_err(|_| refuse())
}

/// Returns the reason why a text cannot be a name in a path.
pub(crate) fn path_segment_fault(name: &str) -> Option<String> {
    if matches!(name, "." | "..") {
        return Some(format!("may not be '{name}'"));
    }
    ['/', '%']
        .into_iter()
        .find(|c| name.contains(*c))
        .map(|c| format!("may not contain '{c}'"))
}

#[cfg(test)]
mod tests;
