//! Kinds that are added and changed while the program runs: a kind's collection is rebuilt from its predecessor.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use yurt_apimachinery::kind::NameRule;
use yurt_apimachinery::{Object, ResourceKind, ResourceVersion, json_text};
use yurt_codec::typed;
use yurt_collection::{Collection, Recovered};

use super::{Cacher, Collections};
use crate::shared::SharedCollection;

/// Placeholder for the kind of a collection until it is declared, in namespaces or not.
static UNDECLARED: LazyLock<[ResourceKind; 2]> = LazyLock::new(|| [false, true].map(placeholder));

fn placeholder(namespaced: bool) -> ResourceKind {
    ResourceKind {
        group: Cow::Borrowed("undeclared.invalid"),
        version: Cow::Borrowed("v1"),
        plural: Cow::Borrowed("undeclared"),
        singular: Cow::Borrowed("undeclared"),
        kind: Cow::Borrowed("Undeclared"),
        list_kind: Cow::Borrowed("UndeclaredList"),
        namespaced,
        short_names: &[],
        categories: &[],
        fields: &[],
        columns: &[],
        has_status: false,
        unconditional_update: false,
        create_on_update: false,
        delete_returns_object: false,
        name_rule: NameRule::DnsSubdomain,
    }
}

pub(super) fn undeclared() -> &'static ResourceKind {
    &UNDECLARED[0]
}

fn is_undeclared(kind: &ResourceKind) -> bool {
    std::ptr::eq(kind, undeclared())
}

/// True if objects of `kind` are read as [`read`] does.
pub(super) fn is_custom(kind: &ResourceKind) -> bool {
    kind.is_custom() || is_undeclared(kind)
}

/// An empty state at `at`, with the floor `floor`.
pub(super) fn empty_at(at: ResourceVersion, floor: ResourceVersion) -> Recovered {
    Recovered {
        position: at,
        floor: floor.min(at),
        complete: true,
        ..Recovered::default()
    }
}

/// Reads a stored custom resource as `kind`, independent of the version it was stored in.
///
/// # Errors
/// Describes the fault of the value, or that the kind had another scope when the value was stored.
pub(super) fn read(key: &str, value: &Bytes, kind: &ResourceKind) -> Result<Object, String> {
    let at = key.splitn(3, '/').nth(2).unwrap_or_default();
    if is_undeclared(kind) {
        let kind = &UNDECLARED[usize::from(at.contains('/'))];
        return Object::parse(value.clone(), kind).map_err(|error| error.to_string());
    }
    let value = valid(value, kind).map_err(|error| error.to_string())?;
    match Object::parse(value, kind) {
        Ok(object) if object.key().as_str() == at => Ok(object),
        Ok(_) => Err("it is in a namespace, and the kind is in none".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// The object with the kind's `apiVersion` and with valid metadata. Earlier versions of the coordinator stored metadata
/// of custom resources unchecked.
fn valid(value: &Bytes, kind: &ResourceKind) -> Result<Bytes, serde_json::Error> {
    let version = kind.api_version();
    let mut object = json_text::parse(value)?;
    let metadata = object.get("metadata").and_then(typed::repaired_metadata);
    if metadata.is_none() && object.get("apiVersion").is_some_and(|stored| *stored == *version) {
        return Ok(value.clone());
    }
    if let Some(members) = object.as_object_mut() {
        members.insert("apiVersion".to_owned(), version.into());
        members.extend(metadata.map(|metadata| ("metadata".to_owned(), metadata)));
    }
    serde_json::to_vec(&object).map(Bytes::from)
}

// === impl Cacher ===

impl Cacher {
    /// Returns the collections of `kinds`, in their order, with objects read according to their kinds.
    ///
    /// A new or changed kind gets another collection than before. The caller hands the old one to [`Self::retire`] once
    /// no reader can open it any more.
    ///
    /// # Errors
    /// Names the stored object that does not fit its kind; nothing was changed.
    pub fn declare(&self, kinds: &[&'static ResourceKind]) -> Result<Vec<Arc<SharedCollection>>, String> {
        let mut collections = self.collections.write();
        let new = |kind: &&'static ResourceKind| {
            let name = kind.group_resource().to_string();
            let state = match collections.get(&name) {
                Some(held) if held.kind() == *kind => return Ok((name, held.clone())),
                Some(held) => held.read(|collection| state_as(&name, collection, kind))?,
                None => self.nothing_yet(&collections),
            };
            let shared = Arc::new(SharedCollection::within(kind, self.progress.clone()));
            shared.update(|collection| collection.recover(state));
            Ok((name, shared))
        };
        let new: Vec<_> = kinds.iter().map(new).collect::<Result<_, String>>()?;
        collections.extend(new.iter().cloned());
        Ok(new.into_iter().map(|(_, shared)| shared).collect())
    }

    /// Empties a collection that was replaced by another one, so that its remaining readers end.
    pub fn retire(old: &SharedCollection) {
        let end = Recovered {
            floor: ResourceVersion(u64::MAX),
            ..Recovered::default()
        };
        old.update(|collection| collection.recover(end));
    }

    /// A collection without stored objects, as far as the store has been loaded.
    fn nothing_yet(&self, collections: &Collections) -> Recovered {
        let complete = collections.values().all(|shared| shared.read(Collection::is_complete));
        Recovered {
            complete,
            ..empty_at(self.progress.now(), self.known_from())
        }
    }
}

/// Contents of a collection, as objects of `kind`.
fn state_as(name: &str, held: &Collection, kind: &ResourceKind) -> Result<Recovered, String> {
    let state = held.to_recovered();
    let read = |object: Object| {
        let key = format!("/{name}/{}", object.key());
        let read = read(&key, &object.bytes(), kind);
        read.map_err(|why| format!("stored object {key} cannot be read as {}: {why}", kind.kind))
    };
    let tombstones: Vec<Object> = state
        .tombstones
        .into_iter()
        .filter_map(|object| read(object).ok())
        .collect();
    // Readers that may have missed a deletion which is no longer available start over.
    let is_told = tombstones.len() == held.tombstones().count() && state.ranges.is_empty();
    Ok(Recovered {
        objects: state.objects.into_iter().map(read).collect::<Result<_, _>>()?,
        tombstones,
        ranges: Vec::new(),
        floor: if is_told { state.floor } else { state.position },
        ..state
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use yurt_apiextensions::definition;
    use yurt_collection::Reader;

    use super::*;
    use crate::backend::{Committed, Loaded, Sink as _, Stored};

    fn kind(version: &str, scope: &str, field: &str) -> &'static ResourceKind {
        let manifest = json!({
            "metadata": {"name": "widgets.example.com"},
            "spec": {
                "group": "example.com", "scope": scope, "names": {"plural": "widgets", "kind": "Widget"},
                "versions": [{"name": version, "storage": true, "selectableFields": [{"jsonPath": field}]}],
            },
        });
        definition::parse(&manifest).expect("a manifest").stored.leak()
    }

    fn value(name: &str, color: &str) -> Bytes {
        let object = json!({"apiVersion": "example.com/v1", "kind": "Widget",
            "metadata": {"name": name, "namespace": "x"}, "spec": {"color": color}});
        object.to_string().into()
    }

    fn stored(name: &str, rv: u64) -> Stored {
        Stored {
            key: format!("/widgets.example.com/x/{name}"),
            rv: ResourceVersion(rv),
            value: value(name, "red"),
        }
    }

    fn change(name: &str, color: &str, deleted: bool) -> Committed {
        Committed {
            key: format!("/widgets.example.com/x/{name}"),
            value: value(name, color).into(),
            deleted,
        }
    }

    fn loaded() -> Cacher {
        let cacher = Cacher::new(yurt_apimachinery::kind::find_kind("", "configmaps"));
        let state = Loaded {
            live: vec![stored("a", 3), stored("b", 4)],
            at: ResourceVersion(5),
            ..Loaded::default()
        };
        cacher.load(state).expect("all can be read");
        cacher
    }

    fn declare(cacher: &Cacher, kind: &'static ResourceKind) -> Result<Arc<SharedCollection>, String> {
        cacher.declare(&[kind]).map(|mut collections| collections.remove(0))
    }

    fn colors(shared: &SharedCollection) -> Vec<String> {
        let color = |object: &Object| {
            let color = object.field("spec.color").unwrap_or("not known");
            format!("{} {color} {}", object.name(), object.to_value()["apiVersion"])
        };
        shared.read(|held| held.objects().map(color).collect())
    }

    #[test]
    fn what_is_stored_is_there_when_its_kind_is_declared() {
        let cacher = loaded();
        cacher.committed(ResourceVersion(6), &[change("c", "blue", false)]);
        let shared = declare(&cacher, kind("v1", "Namespaced", ".spec.color")).expect("the scope is right");
        assert!(shared.read(Collection::is_complete));
        assert_eq!(
            colors(&shared).join(", "),
            r#"a red "example.com/v1", b red "example.com/v1", c blue "example.com/v1""#
        );
        let again = declare(&cacher, kind("v1", "Namespaced", ".spec.color")).expect("nothing changed");
        assert!(Arc::ptr_eq(&shared, &again));
    }

    #[test]
    fn malformed_metadata_of_a_stored_object_is_not_served() {
        let mut object = json_text::parse(&value("a", "red")).expect("JSON");
        object["metadata"]["labels"] = json!({"a": "b"});
        let valid = Bytes::from(object.to_string());
        object["metadata"]["annotations"] = json!({"a": true});
        object["metadata"]["odd"] = json!(1);
        let kind = kind("v1", "Namespaced", ".spec.color");
        let read = |value: &Bytes| read("/widgets.example.com/x/a", value, kind).expect("an object");
        assert_eq!(read(&object.to_string().into()).bytes(), valid);
        assert_eq!(read(&valid).bytes(), valid);
    }

    #[test]
    fn changed_kind_goes_on_with_the_same_history() {
        let cacher = loaded();
        let old = declare(&cacher, kind("v1", "Namespaced", ".spec.other")).expect("the scope is right");
        let reader = old.read(|held| held.snapshot(None).reader);
        cacher.committed(ResourceVersion(6), &[change("a", "red", true)]);
        let new = declare(&cacher, kind("v2", "Namespaced", ".spec.color")).expect("the scope is right");
        cacher.committed(ResourceVersion(7), &[change("b", "green", false)]);
        assert_eq!(colors(&new), [r#"b green "example.com/v2""#]);
        let mut resumed = new
            .read(|held| held.open(reader.position()))
            .expect("everything since is remembered");
        let told = new.read(|held| held.read(&mut resumed, 10)).expect("readers go on");
        assert_eq!(told.len(), 2 + 2, "the deletion and the change, as one step: {told:?}");
        Cacher::retire(&old);
        assert!(!old.read(Collection::is_complete) && read_to_the_end(&old, reader).is_err());
    }

    fn read_to_the_end(shared: &SharedCollection, mut reader: Reader) -> Result<(), yurt_collection::Expired> {
        shared.read(|held| held.read(&mut reader, 10)).map(drop)
    }

    #[test]
    fn objects_of_another_scope_are_never_shown() {
        let cacher = loaded();
        let refused = declare(&cacher, kind("v1", "Cluster", ".spec.color")).expect_err("a is in a namespace");
        assert!(
            refused.contains("/widgets.example.com/x/a") && refused.contains("Widget"),
            "{refused}"
        );
        for name in ["a", "b"] {
            let rv = ResourceVersion(if name == "a" { 6 } else { 7 });
            cacher.committed(rv, &[change(name, "red", true)]);
        }
        let shared = declare(&cacher, kind("v1", "Cluster", ".spec.color")).expect("nothing is left");
        assert!(
            shared.read(|held| held.open(ResourceVersion(5)).is_err()),
            "deletions of the other scope cannot be sent"
        );
    }

    #[test]
    fn kind_nobody_stored_is_empty_and_complete_once_the_store_is_loaded() {
        let declared =
            |cacher: &Cacher| declare(cacher, kind("v1", "Namespaced", ".spec.color")).expect("nothing is there");
        let early = declared(&Cacher::new(yurt_apimachinery::kind::find_kind("", "configmaps")));
        assert!(!early.read(Collection::is_complete));
        let cacher = Cacher::new(yurt_apimachinery::kind::find_kind("", "configmaps"));
        let at = ResourceVersion(5);
        cacher
            .load(Loaded {
                at,
                ..Loaded::default()
            })
            .expect("nothing can be wrong");
        let shared = declared(&cacher);
        assert!(shared.read(|held| held.is_complete() && held.position() == at));
    }

    #[test]
    fn watches_of_a_kind_nobody_stored_go_on_across_a_restart() {
        let cacher = Cacher::new(yurt_apimachinery::kind::find_kind("", "configmaps"));
        let state = |floor, at| Loaded {
            floor: ResourceVersion(floor),
            at: ResourceVersion(at),
            ..Loaded::default()
        };
        cacher.load(state(2, 9)).expect("nothing can be wrong");
        let opens = |shared: &SharedCollection, at| shared.read(|held| held.open(ResourceVersion(at)).is_ok());
        let shared = declare(&cacher, kind("v1", "Namespaced", ".spec.color")).expect("nothing is there");
        assert!(opens(&shared, 5), "nothing was deleted since 2 that is not remembered");
        assert!(!opens(&shared, 1));
        cacher.reloaded(state(0, 12));
        let manifest = json!({
            "metadata": {"name": "gadgets.example.com"},
            "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "gadgets", "kind": "Gadget"},
                "versions": [{"name": "v1", "storage": true}]},
        });
        let other = definition::parse(&manifest).expect("a manifest").stored.leak();
        let other = declare(&cacher, other).expect("nothing is there");
        assert!(
            !opens(&other, 10),
            "changes before the store was read again are unknown here"
        );
        assert!(opens(&other, 12));
    }
}
