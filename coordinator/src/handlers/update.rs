//! UPDATE (PUT): a whole new state, guarded by the resourceVersion it is based on.

use http::{Response, StatusCode};
use serde_json::Value;
use yurt_apimachinery::{Object, ResourceVersion, Status, Verb, WriteOptions, meta};
use yurt_codec::negotiation::Shape;
use yurt_codec::type_meta;
use yurt_runtime::http::Body;

use super::{check_version, create, reading, version_in};
use crate::admission;
use crate::registry::Resource;
use crate::registry::own::{Change, ChangeOutcome, Intent};
use crate::registry::prepare::{self, Account, Part};
use crate::request::Call;

/// Maximum number of tries of a PUT that finds no object and loses the race to create it.
const ATTEMPTS_MAX: usize = 3;

/// The state of a body. Each attempt uses it up, and a further one parses the body again: a copy of a wide body would
/// take as much memory as the first.
struct Wanted<'a> {
    call: &'a Call,
    options: &'a WriteOptions,
    parsed: Option<Value>,
}

/// Answers an update.
///
/// # Errors
/// The error to return.
pub(crate) async fn handle(call: &Call) -> Result<Response<Body>, Status> {
    let negotiated = call.negotiate(Shape::Object)?;
    let options = &WriteOptions::parse(call.query.as_deref(), Verb::Update)?;
    let mut wanted = Wanted {
        call,
        options,
        parsed: None,
    };
    wanted.value()?;
    let manager = call.manager(options);
    let account = Account::Writer {
        manager: &manager,
        now: call.now(),
    };
    let intent = call.intent(options.field_manager.clone(), options.dry_run);
    let may_create = call.resource.kind.create_on_update && call.info.subresource.is_none();
    for _ in 0..ATTEMPTS_MAX {
        match update(&mut wanted, account, &intent).await {
            Ok(object) => return call.object(StatusCode::OK, &object, negotiated),
            Err(status) if status.is_not_found() && may_create => {
                if let Some(created) = create_instead(&mut wanted, account, &intent).await? {
                    return call.object(StatusCode::CREATED, &created, negotiated);
                }
            }
            Err(status) => return Err(status),
        }
    }
    Err(Status::conflict_modified(
        &call.resource.kind.group_resource(),
        call.name(),
    ))
}

// === impl Wanted ===

impl Wanted<'_> {
    /// The state, parsed if it is used up.
    fn value(&mut self) -> Result<&Value, Status> {
        let parsed = self.take()?;
        Ok(self.parsed.insert(parsed))
    }

    fn take(&mut self) -> Result<Value, Status> {
        if let Some(parsed) = self.parsed.take() {
            return Ok(parsed);
        }
        let call = self.call;
        let mut body = reading::body(call, self.options.field_validation)?;
        type_meta::complete(&mut body, call.resource.kind)?;
        meta::check_name(&body, call.name())?;
        meta::settle_namespace(&mut body, call.resource.kind, call.namespace())?;
        Ok(body)
    }
}

async fn update(body: &mut Wanted<'_>, account: Account<'_>, intent: &Intent) -> Result<Object, Status> {
    let call = body.call;
    let part = part(call);
    let key = call.key();
    let mut based_on = ResourceVersion::ZERO;
    let outcome = call.app.own.update(&call.resource, &key, intent, |current| {
        based_on = current.resource_version();
        let given = body.value()?;
        let wanted = version_in(given);
        check_uid(call, current, meta::text(given, "uid"))?;
        check_version(call, current, wanted.as_deref())?;
        if wanted.is_none() && !call.resource.kind.unconditional_update {
            let resource = call.resource.kind.group_resource();
            return Err(Status::resource_version_required(&resource, current.name()));
        }
        admission::update(call, current, given)?;
        let old = current.stored();
        let new = prepare::updated(&call.resource, old, body.take()?, part, account)?;
        warn(call, &new, old, part);
        Ok(settle(&call.resource, new, wanted.is_some()))
    });
    Ok(written(outcome.await?, based_on))
}

/// The answer to an update. An update that removed the last finalizer, and so deleted the object, shows the RV of the
/// state it was based on.
pub(super) fn written(outcome: ChangeOutcome, based_on: ResourceVersion) -> Object {
    match outcome {
        ChangeOutcome::Deleted(last) => last.with_resource_version(based_on),
        other => other.into_object(),
    }
}

/// Collects the warnings about values of a new state.
pub(super) fn warn(call: &Call, new: &Value, old: &Value, part: Part) {
    if part == Part::Main {
        call.warnings.extend(call.resource.strategy.warnings(new, Some(old)));
    }
}

/// Refuses to create an object for a body with a uid: it refers to an object that existed before.
async fn create_instead(
    body: &mut Wanted<'_>,
    account: Account<'_>,
    intent: &Intent,
) -> Result<Option<Object>, Status> {
    let call = body.call;
    let uid = meta::text(body.value()?, "uid");
    if !uid.is_empty() {
        return Err(other_uid(call, uid, ""));
    }
    let mut object = body.take()?;
    meta::clear_resource_version(&mut object);
    create::create(call, object, account, intent).await
}

/// Part of the object that the URL names.
pub(super) fn part(call: &Call) -> Part {
    match call.info.subresource.as_deref() {
        None => Part::Main,
        Some("finalize") => Part::Finalize,
        Some(_) => Part::Status,
    }
}

/// Deletes a deleting object once nothing is left to wait for.
pub(crate) fn settle(resource: &Resource, new: Value, is_conditional: bool) -> Change {
    let is_deleting = !meta::text(&new, "deletionTimestamp").is_empty();
    if is_deleting && resource.strategy.may_go(&new) {
        return Change::Delete {
            last: Some(new),
            is_conditional,
        };
    }
    Change::Put { new, is_conditional }
}

fn check_uid(call: &Call, current: &Object, uid: &str) -> Result<(), Status> {
    if uid.is_empty() || uid == current.uid() {
        return Ok(());
    }
    Err(other_uid(call, uid, current.uid()))
}

fn other_uid(call: &Call, wanted: &str, found: &str) -> Status {
    not_that_one(call, "UID", wanted, found)
}

/// Conflict with another object, or another state of it. The text is that of kube-apiserver's store, with the key that
/// an object would have there.
pub(crate) fn not_that_one(call: &Call, what: &str, wanted: &str, found: &str) -> Status {
    let kind = call.resource.kind;
    let folder = match (&*kind.group, &*kind.plural) {
        ("", "services") => "services/specs".to_owned(),
        ("", "endpoints") => "services/endpoints".to_owned(),
        ("", "nodes") => "minions".to_owned(),
        (group, plural) if kind.is_custom() => format!("{group}/{plural}"),
        (_, plural) => plural.to_owned(),
    };
    let why = format!(
        "StorageError: invalid object, Code: 4, Key: /registry/{folder}/{}, ResourceVersion: 0, AdditionalErrorMsg: \
         Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {found}",
        call.key()
    );
    Status::conflict(&kind.group_resource(), call.name(), &why)
}
