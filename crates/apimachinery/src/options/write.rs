//! Options of create, update and patch.

use super::{check_dry_run, invalid_options};
use crate::meta::{FIELD_MANAGER_MAX_LEN, check_field_manager};
use crate::query::Query;
use crate::status::{ErrorList, FieldError, Status};
use crate::text::is_printable;
use crate::verb::Verb;

/// Validated options of a write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// True for a dry run: nothing is stored.
    pub dry_run: bool,
    /// Owner of the fields written; `None` means the default of [`WriteOptions::manager`].
    pub field_manager: Option<String>,
    /// Treatment of unknown and duplicate fields.
    pub field_validation: FieldValidation,
    /// True if an apply takes fields from other owners.
    pub force: Option<bool>,
}

/// Treatment of unknown and duplicate fields of a body.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    /// Drop them silently.
    Ignore,
    /// Drop them and send a Warning header.
    #[default]
    Warn,
    /// Reject the request.
    Strict,
}

// === impl WriteOptions ===

impl WriteOptions {
    /// Reads and validates the options of a write; `verb` names the options kind in errors.
    ///
    /// # Errors
    ///
    /// 422 for values outside the rules.
    pub fn parse(query: Option<&str>, verb: Verb) -> Result<Self, Status> {
        Self::parse_after(query, options_kind(verb), |_| ErrorList::default())
    }

    /// Reads and validates the options of a patch: an apply requires a manager, all others reject `force`.
    ///
    /// # Errors
    ///
    /// 422 for values outside the rules.
    pub fn parse_patch(query: Option<&str>, is_apply: bool) -> Result<Self, Status> {
        Self::parse_after(query, options_kind(Verb::Patch), |query| {
            let has_manager = query.get("fieldManager").is_some_and(|manager| !manager.is_empty());
            let mut errors = ErrorList::default();
            if is_apply && !has_manager {
                errors.push(FieldError::required("fieldManager", "is required for apply patch"));
            }
            if !is_apply && query.get_bool("force").is_some() {
                let why = "may not be specified for non-apply patch";
                errors.push(FieldError::forbidden("force", why));
            }
            errors
        })
    }

    fn parse_after(query: Option<&str>, kind: &str, first: impl FnOnce(&Query) -> ErrorList) -> Result<Self, Status> {
        let query = Query::parse(query);
        let mut errors = first(&query);
        let field_manager = query.get("fieldManager").filter(|manager| !manager.is_empty());
        check_field_manager("fieldManager", field_manager.unwrap_or_default(), &mut errors);
        let dry_run: Vec<&str> = query.get_all("dryRun").collect();
        let dry_run = check_dry_run(&dry_run, &mut errors);
        let validation = query.get("fieldValidation").unwrap_or_default();
        let field_validation = FieldValidation::of(validation);
        if field_validation.is_none() {
            let supported = ["", "Ignore", "Strict", "Warn"];
            errors.push(FieldError::not_supported("fieldValidation", validation, &supported));
        }
        invalid_options(kind, &errors)?;
        Ok(Self {
            dry_run,
            field_manager: field_manager.map(str::to_owned),
            field_validation: field_validation.unwrap_or_default(),
            force: query.get_bool("force"),
        })
    }

    /// The field manager. The default is the User-Agent up to its first slash, without unprintable characters and cut
    /// to the limit.
    pub fn manager(&self, user_agent: &str) -> String {
        if let Some(manager) = &self.field_manager {
            return manager.clone();
        }
        let mut name = String::new();
        for c in user_agent
            .split('/')
            .next()
            .unwrap_or_default()
            .chars()
            .filter(|c| is_printable(*c))
        {
            if name.len() + c.len_utf8() > FIELD_MANAGER_MAX_LEN {
                break;
            }
            name.push(c);
        }
        name
    }
}

// === impl FieldValidation ===

impl FieldValidation {
    fn of(text: &str) -> Option<Self> {
        match text {
            "Ignore" => Some(Self::Ignore),
            "" | "Warn" => Some(Self::Warn),
            "Strict" => Some(Self::Strict),
            _ => None,
        }
    }
}

fn options_kind(verb: Verb) -> &'static str {
    match verb {
        Verb::Update => "UpdateOptions",
        Verb::Patch => "PatchOptions",
        _ => "CreateOptions",
    }
}
