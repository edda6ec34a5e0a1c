//! Lists under a strategic merge patch: their elements afterwards, and the order.

use std::collections::{HashMap, HashSet};
use std::mem::discriminant;

use serde_json::{Map, Value};

use super::{
    Level, PATCH, SET_ORDER, Work, directive_field, merge_objects, refused, unknown_directive, without_directives,
};
use yurt_apimachinery::status::Status;
use yurt_apimachinery::text::go_value;

/// A merged list.
pub(super) struct Merged {
    /// The elements in order.
    pub(super) items: Vec<Value>,
    /// The order that later decisions use as the original one: elements new to the list have taken the places of
    /// deleted ones. Upstream's slices share memory in this way, and the order of its answers depends on it.
    places: Vec<Value>,
}

/// Positions of the elements of a list: the first of equal ones.
struct Places<'a> {
    key: Option<&'a str>,
    /// By the value of the key, or by the element where there is none.
    first: HashMap<Option<&'a Value>, usize>,
}

// === impl Places ===

impl<'a> Places<'a> {
    fn of(list: &'a [Value], key: Option<&'a str>) -> Self {
        let mut first = HashMap::with_capacity(list.len());
        for (at, item) in list.iter().enumerate() {
            first.entry(identity(item, key)).or_insert(at);
        }
        Self { key, first }
    }

    fn place(&self, item: &Value) -> Option<usize> {
        self.first.get(&identity(item, self.key)).copied()
    }
}

fn identity<'a>(item: &'a Value, key: Option<&str>) -> Option<&'a Value> {
    key.map_or(Some(item), |key| item.get(key))
}

/// Merges `patch` into `original`: elements of the patch in its order, the others where they were.
pub(super) fn merge(
    original: Vec<Value>,
    patch: Vec<Value>,
    (level, key): (Level, Option<&str>),
    is_deletion: bool,
    work: &mut Work,
) -> Result<Merged, Status> {
    work.count(&[&original, &patch])?;
    if !check_types(&original, &patch)? {
        if is_deletion {
            let gone: HashSet<&Value> = patch.iter().collect();
            let is_kept = |item: &&Value| !gone.contains(item);
            let items = original.iter().filter(is_kept).cloned().collect();
            return Ok(Merged {
                items,
                places: original,
            });
        }
        let mut seen = HashSet::new();
        let items = original.iter().chain(&patch).filter(|item| seen.insert(*item));
        let merged = items.cloned().collect();
        let items = arrange(merged, &patch, &original, None)?;
        return Ok(Merged {
            items,
            places: original,
        });
    }
    let len = original.len();
    let key = key.ok_or_else(|| refused("cannot merge lists without merge key for struct".to_owned()))?;
    let (mut merged, patch) = obey_directives(original, patch, key)?;
    let before = merged.clone();
    let mut places: HashMap<Value, usize> = HashMap::new();
    for (at, item) in before.iter().enumerate() {
        if let Some(held) = item.get(key) {
            places.entry(held.clone()).or_insert(at);
        }
    }
    for item in &patch {
        let wanted = key_of(item, key)?;
        match places.get(wanted).copied() {
            Some(at) => {
                let (Value::Object(old), Value::Object(new)) = (merged[at].take(), item.clone()) else {
                    continue;
                };
                merged[at] = merge_objects(old, new, level, work)?.into();
            }
            None => {
                places.insert(wanted.clone(), merged.len());
                merged.push(item.clone());
            }
        }
    }
    let places = merged.iter().take(len).cloned().collect();
    let items = arrange(merged, &patch, &before, Some(key))?;
    Ok(Merged { items, places })
}

/// Applies every `$setElementOrder/<field>` of a patch together with the patch of that field, and removes both from it.
pub(super) fn set_orders(
    original: &mut Map<String, Value>,
    patch: &mut Map<String, Value>,
    level: Level,
    work: &mut Work,
) -> Result<(), Status> {
    let directives: Vec<String> = patch.keys().filter(|key| key.starts_with(SET_ORDER)).cloned().collect();
    for directive in directives {
        let order = list_of(patch.remove(&directive))?.unwrap_or_default();
        let name = directive_field(&directive, SET_ORDER).ok_or_else(bad_order)?;
        let old = list_of(original.remove(name))?;
        let new = list_of(patch.remove(name))?;
        if old.is_none() && new.is_none() {
            continue;
        }
        let (inner, rule) = level.member(name)?;
        check_order(new.as_deref().unwrap_or_default(), &order, rule.key)?;
        let merged = match (old, new) {
            (Some(old), Some(new)) if rule.is_merged => merge(old, new, (inner, rule.key), false, work)?,
            (Some(old), None) => {
                work.count(&[&old])?;
                Merged {
                    items: old.clone(),
                    places: old,
                }
            }
            (None, Some(new)) => match without_directives(new.into()) {
                Some(Value::Array(items)) => Merged {
                    items,
                    places: Vec::new(),
                },
                _ => continue,
            },
            (old, new) => Merged {
                items: new.unwrap_or_default(),
                places: old.unwrap_or_default(),
            },
        };
        let arranged = arrange(merged.items, &order, &merged.places, rule.key)?;
        original.insert(name.to_owned(), arranged.into());
    }
    Ok(())
}

/// Orders elements: those that `wanted` names follow it, the others keep the order of `before`.
fn arrange(items: Vec<Value>, wanted: &[Value], before: &[Value], key: Option<&str>) -> Result<Vec<Value>, Status> {
    if let Some(key) = key {
        for item in items.iter().chain(wanted).chain(before) {
            key_of(item, key)?;
        }
    }
    let (wanted, before) = (Places::of(wanted, key), Places::of(before, key));
    let (mut named, mut others): (Vec<Value>, Vec<Value>) =
        items.into_iter().partition(|item| wanted.place(item).is_some());
    named.sort_by_key(|item| wanted.place(item));
    others.sort_by_key(|item| before.place(item).unwrap_or(usize::MAX));
    let mut arranged = Vec::with_capacity(named.len() + others.len());
    let (mut named, mut others) = (named.into_iter().peekable(), others.into_iter().peekable());
    while let (Some(name), Some(other)) = (named.peek(), others.peek()) {
        let is_other_first = match (before.place(other), before.place(name)) {
            (Some(other), Some(name)) => other < name,
            _ => false,
        };
        arranged.extend(if is_other_first { others.next() } else { named.next() });
    }
    arranged.extend(named);
    arranged.extend(others);
    Ok(arranged)
}

/// Applies the elements that carry `$patch`: returns the rest of the original, and of the patch.
fn obey_directives(mut original: Vec<Value>, patch: Vec<Value>, key: &str) -> Result<(Vec<Value>, Vec<Value>), Status> {
    let mut plain = Vec::with_capacity(patch.len());
    let mut is_replaced = false;
    let mut gone = HashSet::new();
    for item in patch {
        let Some(directive) = item.get(PATCH) else {
            plain.push(item);
            continue;
        };
        match directive.as_str() {
            Some("delete") => {
                gone.insert(key_of(&item, key)?.clone());
            }
            Some("replace") => is_replaced = true,
            Some("merge") => {
                return Err(refused("merging lists cannot yet be specified in the patch".to_owned()));
            }
            _ => {
                return Err(unknown_directive(
                    directive,
                    item.as_object().cloned().unwrap_or_default(),
                ));
            }
        }
    }
    if is_replaced {
        return Ok((plain, Vec::new()));
    }
    original.retain(|old| old.get(key).is_none_or(|held| !gone.contains(held)));
    Ok((original, plain))
}

/// Checks that the requested order names all elements of the patch, in their order.
fn check_order(patch: &[Value], order: &[Value], key: Option<&str>) -> Result<(), Status> {
    if order.is_empty() || patch.is_empty() {
        return Ok(());
    }
    let mut rest = order.iter();
    for item in patch.iter().filter(|item| item.get(PATCH).is_none()) {
        let is_item = |other: &Value| match key {
            Some(key) => Ok::<_, Status>(key_of(item, key)? == key_of(other, key)?),
            None => Ok(item == other),
        };
        loop {
            let Some(other) = rest.next() else {
                let [patch, order] = [patch, order].map(|list| go_value(&Value::from(list)));
                return Err(refused(format!(
                    "The order in patch list:\n{patch}\n doesn't match {SET_ORDER} list:\n{order}\n"
                )));
            };
            if is_item(other)? {
                break;
            }
        }
    }
    Ok(())
}

/// All elements must be of one type; true if they are objects.
fn check_types(original: &[Value], patch: &[Value]) -> Result<bool, Status> {
    let mut items = original.iter().chain(patch);
    let Some(first) = items.next() else {
        return Ok(false);
    };
    match first {
        Value::Array(_) => return Err(Status::patch_failed()),
        Value::Null => return Err(refused("list elements may not be null".to_owned())),
        _ => {}
    }
    if items.any(|item| discriminant(item) != discriminant(first)) {
        let [original, patch] = [original, patch].map(|list| go_value(&Value::from(list)));
        return Err(refused(format!(
            "list element types are not identical: [{original} {patch}]"
        )));
    }
    Ok(first.is_object())
}

fn key_of<'a>(item: &'a Value, key: &str) -> Result<&'a Value, Status> {
    item.get(key).ok_or_else(|| {
        refused(format!(
            "map: {} does not contain declared merge key: {key}",
            go_value(item)
        ))
    })
}

fn list_of(value: Option<Value>) -> Result<Option<Vec<Value>>, Status> {
    match value {
        None => Ok(None),
        Some(Value::Array(items)) => Ok(Some(items)),
        Some(_) => Err(bad_order()),
    }
}

fn bad_order() -> Status {
    Status::bad_request("invalid patch format of setElementOrder list")
}
