//! Walks down to the selectable fields of a kind, and skips everything else.

use std::fmt;

use serde::de::{MapAccess, SeqAccess, Visitor};

use super::{Decoded, Name};
use crate::kind::SelectableField;

/// The values found, two places per field: its path and its alternative.
pub(super) struct Slots {
    fields: &'static [SelectableField],
    values: Vec<Option<Box<str>>>,
}

/// The value at one place of the object, and which slots lie at or below it.
pub(super) struct FieldsSeed<'a> {
    slots: &'a mut Slots,
    /// One bit per slot.
    mask: u64,
    /// Number of path segments above this place.
    depth: usize,
}

// === impl Slots ===

impl Slots {
    pub(super) fn new(fields: &'static [SelectableField]) -> Self {
        // A kind with more fields than bits selects by the first ones only; the built-in table is tested to have none.
        let count = fields.len().min(u64::BITS as usize / 2);
        Self {
            fields,
            values: vec![None; count * 2],
        }
    }

    fn path(&self, slot: usize) -> &'static [&'static str] {
        let field = &self.fields[slot / 2];
        if slot.is_multiple_of(2) {
            field.path
        } else {
            field.alternative
        }
    }

    /// The slots of `mask` that lie below member `name` of a place `depth` segments down.
    fn below(&self, mask: u64, depth: usize, name: &str) -> u64 {
        let is_below = |slot: &usize| mask & (1 << slot) != 0 && self.path(*slot).get(depth) == Some(&name);
        (0..self.values.len())
            .filter(is_below)
            .fold(0, |found, slot| found | 1 << slot)
    }

    /// Forgets what an earlier member of the same name held.
    fn clear(&mut self, mask: u64) {
        for (slot, value) in self.values.iter_mut().enumerate() {
            if mask & (1 << slot) != 0 {
                *value = None;
            }
        }
    }

    /// Sets the slots of `mask` whose path ends `depth` segments down.
    fn set(&mut self, mask: u64, depth: usize, text: &str) {
        for slot in 0..self.values.len() {
            if mask & (1 << slot) != 0 && self.path(slot).len() == depth {
                self.values[slot] = Some(text.into());
            }
        }
    }

    pub(super) fn into_values(self) -> Box<[Option<Box<str>>]> {
        let is_set = |value: &Option<Box<str>>| value.as_ref().is_some_and(|text| !text.is_empty());
        let mut values = self.values.into_iter();
        let mut out = Vec::new();
        while let (Some(first), Some(second)) = (values.next(), values.next()) {
            out.push([first, second].into_iter().find(is_set).flatten());
        }
        out.into()
    }
}

// === impl FieldsSeed ===

impl<'a> FieldsSeed<'a> {
    /// The value of a member of the object itself.
    pub(super) fn root(slots: &'a mut Slots, name: &str) -> Self {
        let mask = slots.below(u64::MAX, 0, name);
        slots.clear(mask);
        Self { slots, mask, depth: 1 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.mask == 0
    }

    fn set(self, text: &str) {
        self.slots.set(self.mask, self.depth, text);
    }
}

impl<'de> Visitor<'de> for FieldsSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, value: bool) -> Result<(), E> {
        self.set(if value { "true" } else { "false" });
        Ok(())
    }

    fn visit_i64<E>(self, value: i64) -> Result<(), E> {
        self.set(&value.to_string());
        Ok(())
    }

    fn visit_u64<E>(self, value: u64) -> Result<(), E> {
        self.set(&value.to_string());
        Ok(())
    }

    fn visit_f64<E>(self, value: f64) -> Result<(), E> {
        self.set(&value.to_string());
        Ok(())
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        self.set(text);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element::<Decoded>()?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        while let Some(Name(name)) = members.next_key()? {
            let mask = self.slots.below(self.mask, self.depth, &name);
            self.slots.clear(mask);
            let depth = self.depth + 1;
            members.next_value_seed(FieldsSeed {
                slots: &mut *self.slots,
                mask,
                depth,
            })?;
        }
        Ok(())
    }
}
