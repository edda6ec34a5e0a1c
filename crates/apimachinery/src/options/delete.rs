//! Options of delete and deletecollection.

use serde::Deserialize;

use super::{check_dry_run, invalid_options};
use crate::mapping::Mapping;
use crate::nesting;
use crate::query::Query;
use crate::status::{ErrorList, FieldError, Status};
use crate::text::parse_int;

/// Validated options of a delete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// Seconds the object may take to terminate; `None` means the default of the kind.
    pub grace_period_seconds: Option<i64>,
    /// Conditions on the object.
    pub preconditions: Preconditions,
    /// Treatment of dependents; `None` means the server's default.
    pub propagation_policy: Option<PropagationPolicy>,
    /// True for a dry run: nothing is stored.
    pub dry_run: bool,
}

/// Conditions an object must meet for a write to happen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Preconditions {
    /// The object's uid.
    pub uid: Option<String>,
    /// The object's resource version, compared as text.
    pub resource_version: Option<String>,
}

/// Treatment of the dependents of a deleted object.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum PropagationPolicy {
    /// They stay.
    Orphan,
    /// The garbage collector removes them later.
    Background,
    /// The object is deleted after them.
    Foreground,
}

/// The options as decoded, before any rule is applied.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawDeleteOptions {
    kind: Option<String>,
    grace_period_seconds: Option<i64>,
    preconditions: Option<Mapping<Preconditions>>,
    orphan_dependents: Option<bool>,
    propagation_policy: Option<String>,
    dry_run: Option<Vec<String>>,
}

// === impl DeleteOptions ===

impl DeleteOptions {
    /// Reads and validates the options: the body's if there is one, else the query's.
    ///
    /// # Errors
    ///
    /// 400 for what cannot be decoded, 422 for values outside the rules.
    pub fn parse(query: Option<&str>, body: &[u8]) -> Result<Self, Status> {
        let raw = if body.is_empty() {
            from_query(query)
        } else {
            from_body(body)
        };
        raw.map_err(Status::bad_request)?.validate()
    }
}

// === impl Preconditions ===

impl Preconditions {
    /// True if there are no conditions.
    pub fn is_empty(&self) -> bool {
        self.uid.is_none() && self.resource_version.is_none()
    }
}

// === impl PropagationPolicy ===

impl PropagationPolicy {
    /// The word in options.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Orphan => "Orphan",
            Self::Background => "Background",
            Self::Foreground => "Foreground",
        }
    }

    fn of(text: &str) -> Option<Self> {
        [Self::Orphan, Self::Background, Self::Foreground]
            .into_iter()
            .find(|policy| policy.as_str() == text)
    }
}

// === impl RawDeleteOptions ===

impl RawDeleteOptions {
    fn validate(self) -> Result<DeleteOptions, Status> {
        const FIELD: &str = "propagationPolicy";
        let mut errors = ErrorList::default();
        let mut propagation_policy = None;
        if let Some(text) = &self.propagation_policy {
            if self.orphan_dependents.is_some() {
                let why = "orphanDependents and deletionPropagation cannot be both set";
                errors.push(FieldError::invalid(FIELD, text.as_str(), why));
            }
            propagation_policy = PropagationPolicy::of(text);
            if propagation_policy.is_none() {
                let supported = ["Foreground", "Background", "Orphan", "nil"];
                errors.push(FieldError::not_supported(FIELD, text.as_str(), &supported));
            }
        } else if let Some(orphan) = self.orphan_dependents {
            propagation_policy = Some(if orphan {
                PropagationPolicy::Orphan
            } else {
                PropagationPolicy::Background
            });
        }
        let dry_run: Vec<&str> = self.dry_run.iter().flatten().map(String::as_str).collect();
        let dry_run = check_dry_run(&dry_run, &mut errors);
        invalid_options("DeleteOptions", &errors)?;
        Ok(DeleteOptions {
            grace_period_seconds: self.grace_period_seconds,
            preconditions: self.preconditions.unwrap_or_default().0,
            propagation_policy,
            dry_run,
        })
    }
}

fn from_body(body: &[u8]) -> Result<RawDeleteOptions, String> {
    if body.trim_ascii() == b"null" {
        // Go decodes it into options without any field set.
        return Ok(RawDeleteOptions::default());
    }
    nesting::check(body).map_err(|error| format!("couldn't get version/kind; json parse error: {error}"))?;
    // Of a duplicate member the last one counts.
    let once = crate::json_text::parse(body).map(|value| value.to_string());
    let body = once.as_ref().map_or(body, |text| text.as_bytes());
    let raw: RawDeleteOptions = crate::mapping::from_slice(body).map_err(|error| {
        not_a_number(body).unwrap_or_else(|| format!("couldn't get version/kind; json parse error: {error}"))
    })?;
    match raw.kind.as_deref() {
        None | Some("" | "DeleteOptions") => Ok(raw),
        Some(_) => Err("decoded object cannot be converted to DeleteOptions".to_owned()),
    }
}

/// The most common mistake: a period in quotes.
fn not_a_number(body: &[u8]) -> Option<String> {
    let body = crate::json_text::parse(body).ok()?;
    let found = match body.get("gracePeriodSeconds")? {
        serde_json::Value::String(_) => "string",
        serde_json::Value::Bool(_) => "bool",
        serde_json::Value::Array(_) => "array",
        serde_json::Value::Object(_) => "object",
        serde_json::Value::Null | serde_json::Value::Number(_) => return None,
    };
    Some(format!(
        "json: cannot unmarshal {found} into Go struct field DeleteOptions.gracePeriodSeconds of type int64"
    ))
}

fn from_query(query: Option<&str>) -> Result<RawDeleteOptions, String> {
    let query = Query::parse(query);
    let text = |key| query.get(key).map(str::to_owned);
    let preconditions = Preconditions {
        uid: text("uid").filter(|uid| !uid.is_empty()),
        resource_version: text("resourceVersion").filter(|version| !version.is_empty()),
    };
    Ok(RawDeleteOptions {
        kind: None,
        grace_period_seconds: query.get("gracePeriodSeconds").map(parse_int).transpose()?,
        preconditions: Some(Mapping(preconditions)),
        orphan_dependents: query.get_bool("orphanDependents"),
        propagation_policy: text("propagationPolicy"),
        dry_run: Some(query.get_all("dryRun").map(str::to_owned).collect()),
    })
}
