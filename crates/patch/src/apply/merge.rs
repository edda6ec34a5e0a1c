//! Merge of an applied configuration into the live object. Nothing is removed here; lists take the applier's order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::{Map, Value};
use yurt_apimachinery::collecting::inserted;

use super::path::PathElement;
use super::types::{Shape, Type};

/// Merges `applied` into `live`; both are valid.
pub(super) fn merge(ty: Type<'_>, live: &Value, applied: &Value) -> Value {
    values(ty, Some(live), Some(applied)).unwrap_or(Value::Null)
}

fn values(ty: Type<'_>, live: Option<&Value>, applied: Option<&Value>) -> Option<Value> {
    let leaf = || applied.or(live).cloned();
    match ty.shape(applied.or(live)) {
        Shape::Scalar(_) => leaf(),
        Shape::List { is_atomic } => {
            let (ours, theirs) = (array(live), array(applied));
            if is_atomic || (ours.is_empty() && theirs.is_empty()) {
                return leaf();
            }
            let items = Lists::new(ty, ours, theirs).merged();
            (!items.is_empty()).then_some(Value::Array(items))
        }
        Shape::Map { is_atomic } => {
            let (ours, theirs) = (members(live), members(applied));
            let is_empty = |members: Option<&Map<String, Value>>| members.is_none_or(Map::is_empty);
            if is_atomic || (is_empty(ours) && is_empty(theirs)) {
                return leaf();
            }
            let names: BTreeSet<&String> = inserted([ours, theirs].into_iter().flatten().flat_map(Map::keys));
            let merged = names.into_iter().filter_map(|name| {
                let [live, applied] = [ours, theirs].map(|members| members.and_then(|members| members.get(name)));
                let merged = values(ty.member(name)?, live, applied)?;
                Some((name.clone(), merged))
            });
            let merged: Map<String, Value> = inserted(merged);
            (!merged.is_empty()).then_some(Value::Object(merged))
        }
    }
}

/// Two lists during their merge. Elements of both keep the applier's order; those of the live list alone stay where
/// they are between them.
struct Lists<'a> {
    ty: Type<'a>,
    live: Vec<(PathElement, &'a Value)>,
    applied: Vec<PathElement>,
    /// By key; null for an element that occurs twice, which is not merged.
    live_by_key: BTreeMap<PathElement, &'a Value>,
    applied_by_key: BTreeMap<PathElement, &'a Value>,
    /// Elements of both lists that are not merged yet, in the applier's order.
    shared: VecDeque<PathElement>,
    merged_keys: BTreeSet<PathElement>,
    merged: Vec<Value>,
}

// === impl Lists ===

impl<'a> Lists<'a> {
    fn new(ty: Type<'a>, live: &'a [Value], applied: &'a [Value]) -> Self {
        const DOUBLED: &Value = &Value::Null;
        let keyed = |items: &'a [Value]| -> Vec<(PathElement, &'a Value)> {
            let keyed = items.iter().filter_map(|item| Some((ty.item(item).ok()?, item)));
            keyed.collect()
        };
        let by_key = |items: &[(PathElement, &'a Value)]| {
            let mut map: BTreeMap<PathElement, &'a Value> = BTreeMap::new();
            for (element, item) in items {
                let place = map.entry(element.clone());
                place.and_modify(|item| *item = DOUBLED).or_insert(item);
            }
            map
        };
        let (live, applied) = (keyed(live), keyed(applied));
        let live_by_key = by_key(&live);
        let applied_by_key = by_key(&applied);
        let applied: Vec<PathElement> = applied.into_iter().map(|(element, _)| element).collect();
        let shared = applied.iter().filter(|element| live_by_key.contains_key(element));
        Self {
            ty,
            shared: shared.cloned().collect(),
            live,
            applied,
            live_by_key,
            applied_by_key,
            merged_keys: BTreeSet::new(),
            merged: Vec::new(),
        }
    }

    fn merged(mut self) -> Vec<Value> {
        let live = std::mem::take(&mut self.live);
        let applied = std::mem::take(&mut self.applied);
        let (mut ours, mut theirs) = (live.iter().peekable(), applied.iter().peekable());
        let mut wanted = self.shared.pop_front();
        while ours.peek().is_some() || theirs.peek().is_some() {
            if let (Some((element, _)), Some(next)) = (ours.peek(), theirs.peek()) {
                if element == *next {
                    self.take_both(element);
                    ours.next();
                    theirs.next();
                    wanted = self.shared.pop_front();
                    continue;
                }
                let is_wanted = wanted.as_ref().is_none_or(|wanted| wanted == element);
                if self.applied_by_key.contains_key(element) && !is_wanted {
                    // It comes later, in the applier's order.
                    ours.next();
                    continue;
                }
            }
            if let Some((element, item)) = ours.peek() {
                if !self.applied_by_key.contains_key(element) {
                    self.push(Some(item), None);
                    ours.next();
                    continue;
                }
                if self.merged_keys.contains(element) {
                    ours.next();
                }
            }
            if let Some(element) = theirs.next() {
                self.take_both(element);
                if wanted.as_ref() == Some(element) {
                    wanted = self.shared.pop_front();
                }
            }
        }
        self.merged
    }

    /// The applier's element, merged with the live one if there is one.
    fn take_both(&mut self, element: &PathElement) {
        self.merged_keys.insert(element.clone());
        let (live, applied) = (
            self.live_by_key.get(element).copied(),
            self.applied_by_key.get(element).copied(),
        );
        self.push(live, applied);
    }

    fn push(&mut self, live: Option<&Value>, applied: Option<&Value>) {
        self.merged.extend(values(self.ty.element(), live, applied));
    }
}

fn array(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn members(value: Option<&Value>) -> Option<&Map<String, Value>> {
    value.and_then(Value::as_object)
}
