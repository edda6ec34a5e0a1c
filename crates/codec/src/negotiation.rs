//! Content negotiation: the representation a client wants, and the one its body has.
//!
//! JSON and YAML for everything, protobuf for built-in kinds, tables in JSON and YAML. A clause that cannot be served
//! is skipped, so that a later one wins. [`crate::representation`] writes the chosen representation.

use yurt_apimachinery::query::Query;
use yurt_apimachinery::status::Status;

mod accept;
mod body;

pub use body::{PatchType, body_format, body_json, patch_type};

use accept::Clause;

/// Encoding of a body.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// `application/json`.
    #[default]
    Json,
    /// `application/yaml`.
    Yaml,
    /// `application/vnd.kubernetes.protobuf`.
    Protobuf,
}

/// Transformation of objects before they are encoded.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Transform {
    /// Nothing.
    #[default]
    None,
    /// Objects are reduced to their metadata.
    PartialObjectMetadata(MetaVersion),
    /// Objects become the rows of a table.
    Table(TableOptions),
}

/// Version of `meta.k8s.io` that a transformed object belongs to.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum MetaVersion {
    /// `v1`.
    #[default]
    V1,
    /// `v1beta1`.
    V1Beta1,
}

/// Options of a table.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct TableOptions {
    /// Version of the table.
    pub version: MetaVersion,
    /// Part of its object that a row carries.
    pub include: Include,
}

/// Query parameter `includeObject` of tables.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Include {
    /// Its metadata.
    #[default]
    Metadata,
    /// The whole object.
    Object,
    /// Nothing.
    None,
}

/// Content of an answer.
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
    /// Transformation of the objects.
    pub transform: Transform,
    /// True if the body shall be indented for people.
    pub pretty: bool,
    /// True if the transformation is not available for this shape. The error is reported once there is something to
    /// transform.
    pub is_misfit: bool,
}

/// Media types served for objects and lists.
const MEDIA_TYPES: [&str; 3] = [
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
];
/// Media types served for watches.
const STREAM_MEDIA_TYPES: [&str; 2] = [
    "application/json;stream=watch",
    "application/vnd.kubernetes.protobuf;stream=watch",
];

// === impl Format ===

impl Format {
    /// All, in the order in which wildcards try them.
    const ALL: [Self; 3] = [Self::Json, Self::Yaml, Self::Protobuf];

    /// Value of header `Content-Type`, but for watches.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
            Self::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }

    /// Format of a document that is no object of a resource, such as discovery. Some of kube-apiserver's documents are
    /// behind its router, which has its own text for unknown types.
    ///
    /// # Errors
    ///
    /// 406 if no clause can be served.
    pub fn of_document(accept: Option<&str>, is_routed: bool) -> Result<Self, Status> {
        plain(accept, true).ok_or_else(|| {
            if !is_routed || accept::parse(accept.unwrap_or_default()).iter().any(is_known) {
                Status::not_acceptable(&MEDIA_TYPES)
            } else {
                Status::not_acceptable_unknown(&MEDIA_TYPES)
            }
        })
    }
}

// === impl MetaVersion ===

impl MetaVersion {
    /// `apiVersion` of a transformed object.
    pub fn api_version(self) -> &'static str {
        match self {
            Self::V1 => "meta.k8s.io/v1",
            Self::V1Beta1 => "meta.k8s.io/v1beta1",
        }
    }
}

// === impl Negotiated ===

impl Negotiated {
    /// Representation of a failure: indented JSON if nothing fits, so that a 406 does not replace the failure. Custom
    /// resources have no protobuf, for their failures neither.
    pub fn of_status(accept: Option<&str>, has_protobuf: bool) -> Self {
        let format = plain(accept, has_protobuf);
        Self {
            format: format.unwrap_or_default(),
            pretty: format.is_none(),
            ..Self::default()
        }
    }

    /// Adds indentation if the query or header `User-Agent` indicates a human reader.
    #[must_use]
    pub fn for_people(mut self, query: Option<&str>, user_agent: Option<&str>) -> Self {
        self.pretty |= wants_pretty(query, user_agent);
        self
    }

    /// Value of header `Content-Type` for an answer of this shape.
    pub fn content_type(&self, shape: Shape) -> &'static str {
        match (self.format, shape) {
            (Format::Protobuf, Shape::Watch) => STREAM_MEDIA_TYPES[1],
            (format, _) => format.content_type(),
        }
    }
}

/// Chooses the representation of an answer from header `Accept`, the query and header `User-Agent`. Custom resources
/// have no protobuf ([`crate::protobuf::supports`]), but their metadata has.
///
/// # Errors
///
/// 406 if no clause can be served, 400 for table options that do not exist.
pub fn negotiate(
    accept: Option<&str>,
    shape: Shape,
    has_protobuf: bool,
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
    if !clauses.iter().any(is_known) {
        let available: Vec<&str> = match shape {
            Shape::Object => MEDIA_TYPES.to_vec(),
            Shape::List | Shape::Watch => MEDIA_TYPES.into_iter().chain(STREAM_MEDIA_TYPES).collect(),
        };
        return Err(Status::not_acceptable_unknown(&available));
    }
    let is_servable = |clause: &Clause, format: Format| servable(clause, format, has_protobuf).is_some();
    // A watch that finds YAML first fails, even if JSON follows.
    let chosen = choose(&clauses, is_servable).filter(|chosen| (chosen.1, shape) != (Format::Yaml, Shape::Watch));
    let Some((clause, format)) = chosen else {
        let is_watch = shape == Shape::Watch;
        return Err(Status::not_acceptable(if is_watch {
            &STREAM_MEDIA_TYPES
        } else {
            &MEDIA_TYPES
        }));
    };
    let requested = servable(clause, format, has_protobuf).unwrap_or(Requested::Plain);
    let (transform, is_misfit) = transform(requested, shape, query)?;
    let pretty = pretty || (shape != Shape::Watch && clause.parameter("pretty") == Some("1"));
    Ok(Negotiated {
        format,
        transform,
        pretty,
        is_misfit,
    })
}

/// True if kube-apiserver's router passes the clause on to negotiation.
fn is_known(clause: &Clause) -> bool {
    clause.media_type == "*/*" || MEDIA_TYPES.contains(&clause.media_type.as_str())
}

/// Format of an answer that is never transformed; `None` if no clause fits.
fn plain(accept: Option<&str>, has_protobuf: bool) -> Option<Format> {
    let header = accept.unwrap_or_default().trim();
    if header.is_empty() {
        return Some(Format::Json);
    }
    let is_servable = |clause: &Clause, format: Format| {
        target(clause) == Some([None; 3]) && (has_protobuf || format != Format::Protobuf)
    };
    choose(&accept::parse(header), is_servable).map(|chosen| chosen.1)
}

/// The first clause that a format can serve, and that format.
fn choose(clauses: &[Clause], is_servable: impl Fn(&Clause, Format) -> bool) -> Option<(&Clause, Format)> {
    let servable = |clause: &Clause| {
        Format::ALL.into_iter().find(|format| {
            clause.matches(format.content_type()) && streams(clause, *format) && is_servable(clause, *format)
        })
    };
    clauses.iter().find_map(|clause| Some((clause, servable(clause)?)))
}

/// True if the format has the stream form that the clause names, or the clause names none.
fn streams(clause: &Clause, format: Format) -> bool {
    match clause.parameter("stream") {
        None | Some("") => true,
        Some(stream) => stream == "watch" && format != Format::Yaml,
    }
}

/// True if any clause asks for aggregated discovery in version `v2`, at any position. Older versions are not served.
pub fn wants_aggregated_discovery(accept: Option<&str>) -> bool {
    accept::parse(accept.unwrap_or_default()).iter().any(|clause| {
        clause.matches_json()
            && clause.parameter("g") == Some("apidiscovery.k8s.io")
            && clause.parameter("v") == Some("v2")
            && clause.parameter("as") == Some("APIGroupDiscoveryList")
    })
}

/// Transformation that a clause requests.
#[derive(Copy, Clone)]
enum Requested {
    Plain,
    PartialObject(MetaVersion),
    PartialList(MetaVersion),
    Table(MetaVersion),
}

/// Parameters `as`, `g` and `v`; `None` if the clause asks for another version of the server.
fn target(clause: &Clause) -> Option<[Option<&str>; 3]> {
    let is_this_server = clause.parameter("sv").is_none_or(str::is_empty);
    is_this_server.then(|| ["as", "g", "v"].map(|name| clause.parameter(name)))
}

/// The transformation a clause requests, if it can be served in that format.
fn servable(clause: &Clause, format: Format, has_protobuf: bool) -> Option<Requested> {
    let [kind, group, version] = target(clause)?;
    let version = match (group, version) {
        (None, None) if kind.is_none() => {
            // Custom resources have no protobuf form, but their metadata has.
            return (format != Format::Protobuf || has_protobuf).then_some(Requested::Plain);
        }
        (Some("meta.k8s.io"), Some("v1")) => MetaVersion::V1,
        (Some("meta.k8s.io"), Some("v1beta1")) => MetaVersion::V1Beta1,
        _ => return None,
    };
    match kind? {
        "PartialObjectMetadata" => Some(Requested::PartialObject(version)),
        "PartialObjectMetadataList" => Some(Requested::PartialList(version)),
        "Table" if format != Format::Protobuf => Some(Requested::Table(version)),
        _ => None,
    }
}

/// Transformation to apply, and whether it is impossible for answers of this shape.
fn transform(requested: Requested, shape: Shape, query: Option<&str>) -> Result<(Transform, bool), Status> {
    match requested {
        Requested::Plain => Ok((Transform::None, false)),
        // Events that cannot be transformed are sent unchanged.
        Requested::PartialList(_) if shape == Shape::Watch => Ok((Transform::None, false)),
        Requested::PartialObject(version) => Ok((Transform::PartialObjectMetadata(version), shape == Shape::List)),
        Requested::PartialList(version) => Ok((Transform::PartialObjectMetadata(version), shape != Shape::List)),
        Requested::Table(version) => {
            let include = include(query)?;
            Ok((Transform::Table(TableOptions { version, include }), false))
        }
    }
}

fn include(query: Option<&str>) -> Result<Include, Status> {
    match Query::parse(query).get("includeObject").unwrap_or_default() {
        "" | "Metadata" => Ok(Include::Metadata),
        "Object" => Ok(Include::Object),
        "None" => Ok(Include::None),
        other => Err(Status::bad_request(format!(
            "Unable to convert to Table as requested: includeObject: Invalid value: {}: must be 'Metadata', 'Object', \
             'None', or empty",
            yurt_apimachinery::text::go_quote(other)
        ))),
    }
}

/// True if the client wants indented bodies: on `pretty=true`, and by default in browsers and command-line HTTP tools.
fn wants_pretty(query: Option<&str>, user_agent: Option<&str>) -> bool {
    if let Some(value) = Query::parse(query).get("pretty").filter(|value| !value.is_empty()) {
        // Go's strconv.ParseBool; unknown values are false.
        return matches!(value, "1" | "t" | "T" | "true" | "TRUE" | "True");
    }
    let user_agent = user_agent.unwrap_or_default();
    ["curl", "Wget", "Mozilla/5.0"]
        .iter()
        .any(|prefix| user_agent.starts_with(prefix))
}

#[cfg(test)]
mod tests;
