//! Which representation a client wants, and which one its body has.
//!
//! Only JSON is served so far; clauses for protobuf, YAML and tables are skipped, so that a later plain JSON clause wins,
//! which every client sends.

use crate::query::Query;
use crate::status::Status;

mod accept;
mod body;

pub use body::{PatchType, body_format, patch_type};

use accept::Clause;

/// Encoding of a body.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// `application/json`.
    #[default]
    Json,
}

/// What is done to objects before they are encoded.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Transform {
    /// Nothing.
    #[default]
    None,
    /// Objects are reduced to their metadata.
    PartialObjectMetadata,
}

/// What an answer consists of.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One object, or a Status.
    Object,
    /// A list.
    List,
    /// A stream of events.
    Watch,
}

/// The representation chosen.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Negotiated {
    /// Encoding.
    pub format: Format,
    /// What is done to the objects.
    pub transform: Transform,
    /// True if the body shall be indented for people.
    pub pretty: bool,
}

/// Media types served for objects and lists.
const MEDIA_TYPES: [&str; 1] = ["application/json"];
/// Media types served for watches.
const STREAM_MEDIA_TYPES: [&str; 1] = ["application/json;stream=watch"];
/// Base types that kube-apiserver's router lets through to the negotiation proper.
const KNOWN_BASE_TYPES: [&str; 4] = [
    "*/*",
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
];

// === impl Format ===

impl Format {
    /// Value of header `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
        }
    }
}

// === impl Negotiated ===

impl Negotiated {
    /// Value of header `Content-Type`.
    pub fn content_type(&self) -> &'static str {
        self.format.content_type()
    }
}

/// Chooses the representation of an answer from header `Accept`, the query and header `User-Agent`.
///
/// # Errors
///
/// 406 if no clause can be served.
pub fn negotiate(
    accept: Option<&str>,
    shape: Shape,
    query: Option<&str>,
    user_agent: Option<&str>,
) -> Result<Negotiated, Status> {
    let pretty = shape != Shape::Watch && wants_pretty(query, user_agent);
    let header = accept.unwrap_or_default().trim();
    if header.is_empty() {
        return Ok(Negotiated {
            pretty,
            ..Negotiated::default()
        });
    }
    let clauses = accept::parse(header);
    if !clauses
        .iter()
        .any(|clause| KNOWN_BASE_TYPES.contains(&clause.media_type.as_str()))
    {
        let available: Vec<&str> = match shape {
            Shape::Object => MEDIA_TYPES.to_vec(),
            Shape::List | Shape::Watch => MEDIA_TYPES.into_iter().chain(STREAM_MEDIA_TYPES).collect(),
        };
        return Err(Status::not_acceptable_unknown(&available));
    }
    let Some((clause, transform)) = clauses.iter().find_map(|clause| Some((clause, servable(clause)?))) else {
        let is_watch = shape == Shape::Watch;
        return Err(Status::not_acceptable(if is_watch {
            &STREAM_MEDIA_TYPES
        } else {
            &MEDIA_TYPES
        }));
    };
    let transform = check_shape(transform, shape)?;
    let pretty = pretty || (shape != Shape::Watch && clause.parameter("pretty") == Some("1"));
    Ok(Negotiated {
        format: Format::Json,
        transform,
        pretty,
    })
}

/// True if any clause asks for aggregated discovery in version `v2`, wherever it stands. Older versions are not served.
pub fn wants_aggregated_discovery(accept: Option<&str>) -> bool {
    accept::parse(accept.unwrap_or_default()).iter().any(|clause| {
        clause.matches_json()
            && clause.parameter("g") == Some("apidiscovery.k8s.io")
            && clause.parameter("v") == Some("v2")
            && clause.parameter("as") == Some("APIGroupDiscoveryList")
    })
}

/// What a clause asks objects to become.
#[derive(Copy, Clone)]
enum Requested {
    Plain,
    PartialObject,
    PartialList,
}

/// What a clause asks for, if it can be served.
fn servable(clause: &Clause) -> Option<Requested> {
    let stream_is_known = matches!(clause.parameter("stream"), None | Some("" | "watch"));
    let version_is_plain = clause.parameter("sv").is_none_or(str::is_empty);
    if !(clause.matches_json() && stream_is_known && version_is_plain) {
        return None;
    }
    let target = ["as", "g", "v"].map(|name| clause.parameter(name));
    match target {
        [None, None, None] => Some(Requested::Plain),
        [Some("PartialObjectMetadata"), Some("meta.k8s.io"), Some("v1")] => Some(Requested::PartialObject),
        [Some("PartialObjectMetadataList"), Some("meta.k8s.io"), Some("v1")] => Some(Requested::PartialList),
        _ => None,
    }
}

fn check_shape(requested: Requested, shape: Shape) -> Result<Transform, Status> {
    match (requested, shape) {
        (Requested::Plain, _) => Ok(Transform::None),
        (Requested::PartialObject, Shape::Object | Shape::Watch) | (Requested::PartialList, Shape::List) => {
            Ok(Transform::PartialObjectMetadata)
        }
        (Requested::PartialObject, Shape::List) => Err(Status::not_acceptable_transform(
            "you requested PartialObjectMetadata, but the requested object is a list",
        )),
        (Requested::PartialList, Shape::Object | Shape::Watch) => Err(Status::not_acceptable_transform(
            "you requested PartialObjectMetadataList, but the requested object is not a list",
        )),
    }
}

/// People get indented bodies: on `pretty=true`, and by default in browsers and command-line HTTP tools.
fn wants_pretty(query: Option<&str>, user_agent: Option<&str>) -> bool {
    if let Some(value) = Query::parse(query).get("pretty").filter(|value| !value.is_empty()) {
        // Go's strconv.ParseBool; what it does not know is false.
        return matches!(value, "1" | "t" | "T" | "true" | "TRUE" | "True");
    }
    let user_agent = user_agent.unwrap_or_default();
    ["curl", "Wget", "Mozilla/5.0"]
        .iter()
        .any(|prefix| user_agent.starts_with(prefix))
}

#[cfg(test)]
mod tests;
