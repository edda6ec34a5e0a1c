//! PATCH as server-side apply: the client sends the fields it wants, and the object is created or changed to
//! match.

use http::{Response, StatusCode};
use serde_json::{Map, Value};
use yurt_apimachinery::options::FieldValidation;
use yurt_apimachinery::{Object, ResourceVersion, Status, WriteOptions, json_text, meta};
use yurt_codec::negotiation::Negotiated;
use yurt_codec::yaml::{self, YamlError};
use yurt_runtime::http::Body;

use super::{check_version, create, reading, update, version_in};
use crate::admission;
use crate::registry::own::Intent;
use crate::registry::prepare::{self, Account, Part};
use crate::request::Call;

/// Maximum number of tries of an apply that finds no object and loses the race to create it.
const ATTEMPTS_MAX: usize = 3;

/// One apply.
struct Apply<'a> {
    call: &'a Call,
    manager: String,
    force: bool,
    /// The configuration, in its stored form.
    config: Value,
}

/// Answers an apply. Without a resourceVersion in it, conflicts are retried here and never reach the client.
///
/// # Errors
/// The error to return.
pub(super) async fn handle(
    call: &Call,
    options: WriteOptions,
    negotiated: Negotiated,
) -> Result<Response<Body>, Status> {
    let apply = Apply::read(call, &options)?;
    let intent = Intent {
        is_apply: true,
        ..call.intent(options.field_manager, options.dry_run)
    };
    let may_create = update::part(call) == Part::Main;
    for _ in 0..ATTEMPTS_MAX {
        match apply.to_existing(&intent).await {
            Ok(object) => return call.object(StatusCode::OK, &object, negotiated),
            Err(status) if status.is_not_found() && may_create => {
                if let Some(created) = apply.to_nothing(&intent).await? {
                    return call.object(StatusCode::CREATED, &created, negotiated);
                }
            }
            Err(status) => return Err(status),
        }
    }
    let resource = call.resource.kind.group_resource();
    Err(Status::conflict_modified(&resource, call.name()))
}

// === impl Apply ===

impl<'a> Apply<'a> {
    fn read(call: &'a Call, options: &WriteOptions) -> Result<Self, Status> {
        let mut config = read_body(call, options.field_validation)?;
        let manager = call.manager(options);
        if let Some(view) = call.resource.view {
            let as_shown = yurt_patch::apply::Write {
                kind: call.resource.kind,
                ..prepare::write(&call.resource, update::part(call), &manager, call.now())
            };
            as_shown.check(&config)?;
            view.to_stored(&mut config);
        }
        Ok(Self {
            call,
            manager,
            force: options.force.unwrap_or_default(),
            config,
        })
    }

    async fn to_existing(&self, intent: &Intent) -> Result<Object, Status> {
        let call = self.call;
        let wanted = version_in(&self.config);
        let key = call.key();
        let mut based_on = ResourceVersion::ZERO;
        let outcome = call.app.own.update(&call.resource, &key, intent, |current| {
            based_on = current.resource_version();
            let old = current.stored();
            let new = self.applied_to(old)?;
            meta::check_name(&new, call.name())?;
            check_version(call, current, wanted.as_deref())?;
            admission::update(call, current, &new)?;
            let part = update::part(call);
            let new = prepare::updated(&call.resource, old, new, part, Account::Settled)?;
            update::warn(call, &new, old, part);
            Ok(update::settle(&call.resource, new, wanted.is_some()))
        });
        Ok(update::written(outcome.await?, based_on))
    }

    /// Creates the object; `None` when another request has created it.
    async fn to_nothing(&self, intent: &Intent) -> Result<Option<Object>, Status> {
        let mut new = self.applied_to(&prepare::empty(&self.call.resource))?;
        let uid = meta::text(&new, "uid");
        if !uid.is_empty() {
            let why =
                format!("uid mismatch: the provided object specified uid {uid}, and no existing object was found");
            let resource = self.call.resource.kind.group_resource();
            return Err(Status::conflict(&resource, self.call.name(), &why));
        }
        meta::settle_namespace(&mut new, self.call.resource.kind, self.call.namespace())?;
        meta::check_name(&new, self.call.name())?;
        meta::clear_resource_version(&mut new);
        create::create(self.call, new, Account::Settled, intent).await
    }

    /// The stored object after the apply, as clients of the resource see it.
    fn applied_to(&self, old: &Value) -> Result<Value, Status> {
        let resource = &self.call.resource;
        let write = prepare::write(resource, update::part(self.call), &self.manager, self.call.now());
        let mut new = write.apply(old, &prepare::empty(resource), &self.config, self.force)?;
        if let Some(view) = resource.view {
            view.to_view(&mut new);
        }
        reading::applied(resource, new)
    }
}

/// Parses the configuration: YAML, or JSON, which is YAML. Field validation handles duplicate keys.
fn read_body(call: &Call, validation: FieldValidation) -> Result<Value, Status> {
    let undecodable = |why: String| Status::bad_request(format!("error decoding YAML: {why}"));
    let (parsed, twice) = match yaml::parse(&call.body) {
        Ok(value) => (Ok(value), None),
        Err(YamlError::TooLarge(refused)) => return Err(refused.into()),
        Err(error) => (yaml::parse_repeating(&call.body), Some(error)),
    };
    let parsed = parsed.map_err(|error| error.into_status("error decoding YAML: error converting YAML to JSON: "))?;
    let text = parsed.to_string();
    drop(parsed);
    // Parsed again, so that nesting is bounded as in every other body.
    let value = match json_text::parse(text.as_bytes()) {
        Ok(Value::Object(members)) => Value::Object(members),
        Ok(Value::Null) => Value::Object(Map::new()),
        Ok(other) => return Err(undecodable(not_a_map(&other))),
        Err(error) => return Err(undecodable(error.to_string())),
    };
    meta::check_list_lengths(&value).map_err(|fault| Status::bad_request(fault.to_string()))?;
    if let Some(error) = twice {
        match validation {
            FieldValidation::Strict => {
                let why = format!("error strict decoding YAML: error converting YAML to JSON: {error}");
                return Err(Status::bad_request(why));
            }
            FieldValidation::Warn => call.warnings.extend([error.warning()]),
            FieldValidation::Ignore => {}
        }
    }
    Ok(value)
}

fn not_a_map(value: &Value) -> String {
    let sort = match value {
        Value::Array(_) => "array",
        Value::String(_) => "string",
        Value::Bool(_) => "bool",
        _ => "number",
    };
    format!(
        "error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {sort} into Go value of type \
         map[string]interface {{}}"
    )
}
