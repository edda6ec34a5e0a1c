//! Values that are counted while a document is read.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use yurt_apimachinery::json_text;

use crate::decoded::{Allowance, TooManyValues, container, text};

/// The count of one document.
pub(super) struct Counter {
    allowance: RefCell<Allowance>,
    refused: RefCell<Option<TooManyValues>>,
}

/// One place of the document.
#[derive(Clone, Copy)]
struct NodeContext<'a> {
    counter: &'a Counter,
    in_list: bool,
}

// === impl Counter ===

impl Counter {
    /// The count of a document of `len` bytes.
    pub(super) fn of(len: usize) -> Self {
        Self {
            allowance: RefCell::new(Allowance::of(len)),
            refused: RefCell::default(),
        }
    }

    /// Reads a value.
    ///
    /// # Errors
    /// Those of the document; any error when there are too many values.
    pub(super) fn read<'de, D: Deserializer<'de>>(&self, document: D) -> Result<Value, D::Error> {
        let place = NodeContext {
            counter: self,
            in_list: false,
        };
        place.deserialize(document)
    }

    /// The reason when there were too many values.
    pub(super) fn refusal(&self) -> Option<TooManyValues> {
        *self.refused.borrow()
    }

    fn take<E: Error>(&self, bytes: usize) -> Result<(), E> {
        let taken = self.allowance.borrow_mut().take(bytes);
        self.judge(taken)
    }

    fn take_further<E: Error>(&self, is_object: bool, len: usize) -> Result<(), E> {
        let taken = self.allowance.borrow_mut().take_further(is_object, len);
        self.judge(taken)
    }

    fn judge<E: Error>(&self, taken: Result<(), TooManyValues>) -> Result<(), E> {
        taken.map_err(|refused| {
            *self.refused.borrow_mut() = Some(refused);
            E::custom(refused)
        })
    }
}

impl<'de> DeserializeSeed<'de> for NodeContext<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, document: D) -> Result<Value, D::Error> {
        document.deserialize_any(self)
    }
}

/// As the visitor of [`Value`], with the count.
impl<'de> Visitor<'de> for NodeContext<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any valid JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(json_text::number(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        self.counter.take(text(value.len()))?;
        Ok(value.into())
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        self.counter.take(text(value.len()))?;
        Ok(Value::String(value))
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, document: D) -> Result<Value, D::Error> {
        self.deserialize(document)
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let place = NodeContext { in_list: true, ..self };
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(place)? {
            if list.is_empty() {
                self.counter.take(container(false, false, self.in_list))?;
            }
            list.push(item);
            self.counter.take_further(false, list.len())?;
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let place = NodeContext { in_list: false, ..self };
        let mut object = Map::new();
        if self.in_list {
            self.counter.take(container(true, true, true))?;
        }
        while let Some(name) = members.next_key::<String>()? {
            if object.is_empty() && !self.in_list {
                self.counter.take(container(true, false, false))?;
            }
            self.counter.take(text(name.len()))?;
            let member = members.next_value_seed(place)?;
            object.insert(name, member);
            self.counter.take_further(true, object.len())?;
        }
        Ok(Value::Object(object))
    }
}
