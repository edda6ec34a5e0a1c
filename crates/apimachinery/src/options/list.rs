//! Options of list, watch and deletecollection.

use super::continue_token::ContinueToken;
use super::invalid_options;
use super::raw::RawListOptions;
use crate::kind::ResourceKind;
use crate::query::Query;
use crate::resource_version::ResourceVersion;
use crate::selector::{FieldSelector, LabelSelector};
use crate::status::{ErrorList, FieldError, Status};

/// Validated options of a list or watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListOptions {
    /// Selector of labels.
    pub label_selector: LabelSelector,
    /// Selector of field values.
    pub field_selector: FieldSelector,
    /// `None` if unset (latest), `Some(ZERO)` for "0" (any).
    pub resource_version: Option<ResourceVersion>,
    /// Meaning of `resource_version`.
    pub resource_version_match: Option<ResourceVersionMatch>,
    /// Page size; 0 for no limit.
    pub limit: u64,
    /// Token of the previous page.
    pub continue_token: Option<String>,
    /// Duration of a watch in seconds; `None` means the server's default.
    pub timeout_seconds: Option<u64>,
    /// True if the client understands bookmarks.
    pub allow_watch_bookmarks: bool,
    /// True if a watch starts with the present state. A watch without it from "" or "0" gets `Some(true)` here, as in
    /// kube-apiserver.
    pub send_initial_events: Option<bool>,
}

/// Meaning of a resource version of a list.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ResourceVersionMatch {
    /// Exactly this version.
    Exact,
    /// This version or a newer one.
    NotOlderThan,
}

/// Path of the match parameter in errors.
const MATCH_FIELD: &str = "resourceVersionMatch";

// === impl ListOptions ===

impl ListOptions {
    /// Reads and validates the options of a list (`watch` false) or watch (`watch` true) of a kind.
    ///
    /// # Errors
    ///
    /// 400 for what cannot be decoded and for fields that the kind's selectors may not name, 422 for forbidden
    /// combinations.
    pub fn parse(query: Option<&str>, watch: bool, kind: &ResourceKind) -> Result<Self, Status> {
        let query = Query::parse(query);
        let mut raw = RawListOptions::decode(&query).map_err(Status::bad_request)?;
        if watch {
            raw.default_initial_events();
        }
        let errors = if watch { watch_errors(&raw) } else { list_errors(&raw) };
        invalid_options("ListOptions", &errors)?;
        for requirement in raw.field_selector.requirements() {
            kind.check_field_label(&requirement.field)
                .map_err(Status::bad_request)?;
        }
        let resource_version = parse_version(raw.resource_version)?;
        if !watch && !raw.continue_token.is_empty() && resource_version.is_some_and(|version| !version.is_zero()) {
            // A later parse of the token would report the same error; kube-apiserver reports it before the next one.
            ContinueToken::decode(raw.continue_token).map_err(Status::bad_request)?;
            return Err(Status::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        Ok(Self {
            label_selector: raw.label_selector,
            field_selector: raw.field_selector,
            resource_version,
            resource_version_match: ResourceVersionMatch::of(raw.resource_version_match),
            limit: u64::try_from(raw.limit).unwrap_or_default(),
            continue_token: Some(raw.continue_token.to_owned()).filter(|token| !token.is_empty()),
            timeout_seconds: raw
                .timeout_seconds
                .and_then(|s| u64::try_from(s).ok())
                .filter(|s| *s > 0),
            allow_watch_bookmarks: raw.allow_watch_bookmarks,
            send_initial_events: raw.send_initial_events,
        })
    }

    /// Limits the options to the object named in the path: a legacy watch path can name one.
    ///
    /// # Errors
    ///
    /// 400 if a field selector does not require that very name.
    pub fn require_name(&mut self, name: &str) -> Result<(), Status> {
        if self.field_selector.is_everything() {
            self.field_selector = FieldSelector::equal("metadata.name", name);
            return Ok(());
        }
        if self.field_selector.requires("metadata.name") == Some(name) {
            return Ok(());
        }
        Err(Status::bad_request(
            "fieldSelector metadata.name doesn't match requested name",
        ))
    }

    /// True if both selectors match every object.
    pub fn selects_everything(&self) -> bool {
        self.label_selector.is_everything() && self.field_selector.is_everything()
    }
}

// === impl ResourceVersionMatch ===

impl ResourceVersionMatch {
    /// The word in queries.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exact => "Exact",
            Self::NotOlderThan => "NotOlderThan",
        }
    }

    fn of(text: &str) -> Option<Self> {
        [Self::Exact, Self::NotOlderThan]
            .into_iter()
            .find(|value| value.as_str() == text)
    }
}

// === impl RawListOptions ===

impl RawListOptions<'_> {
    /// A watch from "" or "0" without other options starts with the present state.
    fn default_initial_events(&mut self) {
        let says_nothing = self.send_initial_events.is_none() && self.resource_version_match.is_empty();
        if says_nothing && matches!(self.resource_version, "" | "0") {
            self.send_initial_events = Some(true);
            self.resource_version_match = ResourceVersionMatch::NotOlderThan.as_str();
        }
    }
}

fn parse_version(text: &str) -> Result<Option<ResourceVersion>, Status> {
    if text.is_empty() {
        return Ok(None);
    }
    let version = ResourceVersion::parse(text);
    version
        .map(Some)
        .map_err(|error| Status::bad_request(format!("invalid resource version: {error}")))
}

fn list_errors(raw: &RawListOptions<'_>) -> ErrorList {
    let mut errors = ErrorList::default();
    let mut forbid = |field: &str, why: &str| errors.push(FieldError::forbidden(field, why));
    let requested = raw.resource_version_match;
    if !requested.is_empty() {
        if raw.resource_version.is_empty() {
            forbid(
                MATCH_FIELD,
                "resourceVersionMatch is forbidden unless resourceVersion is provided",
            );
        }
        if !raw.continue_token.is_empty() {
            forbid(
                MATCH_FIELD,
                "resourceVersionMatch is forbidden when continue is provided",
            );
        }
        if ResourceVersionMatch::of(requested) == Some(ResourceVersionMatch::Exact) && raw.resource_version == "0" {
            forbid(
                MATCH_FIELD,
                "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
            );
        }
        if ResourceVersionMatch::of(requested).is_none() {
            errors.push(FieldError::not_supported(
                MATCH_FIELD,
                requested,
                &["Exact", "NotOlderThan", ""],
            ));
        }
    }
    if raw.send_initial_events.is_some() {
        errors.push(FieldError::forbidden(
            "sendInitialEvents",
            "sendInitialEvents is forbidden for list",
        ));
    }
    errors
}

fn watch_errors(raw: &RawListOptions<'_>) -> ErrorList {
    let mut errors = ErrorList::default();
    let requested = raw.resource_version_match;
    let not_older = ResourceVersionMatch::of(requested) == Some(ResourceVersionMatch::NotOlderThan);
    if raw.send_initial_events.is_some() && !not_older {
        let why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        errors.push(FieldError::forbidden(MATCH_FIELD, why));
    }
    if requested.is_empty() {
        return errors;
    }
    if raw.send_initial_events.is_none() {
        let why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
        errors.push(FieldError::forbidden(MATCH_FIELD, why));
    }
    if !not_older {
        errors.push(FieldError::not_supported(MATCH_FIELD, requested, &["NotOlderThan"]));
    }
    if !raw.continue_token.is_empty() {
        let why = "resourceVersionMatch is forbidden when continue is provided";
        errors.push(FieldError::forbidden(MATCH_FIELD, why));
    }
    errors
}
