//! The place of a walk over a value, as in the text of faults: `spec.items[3].name`.

use std::borrow::Cow;
use std::fmt::{Display, Write as _};

use yurt_apimachinery::text::cut;

/// Most bytes of a path that are shown.
const SHOWN_BYTES_MAX: usize = 1024;

/// A path that grows and shrinks with the walk. Nothing is copied during the walk: names may be long, with many values
/// below them.
#[derive(Debug, Default)]
pub(super) struct Path(String);

// === impl Path ===

impl Path {
    /// The path, cut where it is too long.
    pub(super) fn shown(&self) -> Cow<'_, str> {
        cut(&self.0, SHOWN_BYTES_MAX)
    }

    /// The path of a member, cut where it is too long.
    pub(super) fn shown_below(&mut self, name: &str) -> String {
        self.below(name, |path| path.shown().into_owned())
    }

    /// Visits a member.
    pub(super) fn below<T>(&mut self, name: &str, look: impl FnOnce(&mut Self) -> T) -> T {
        let outer = self.enter(name);
        let seen = look(self);
        self.back(outer);
        seen
    }

    /// Visits an item of a list.
    pub(super) fn item<T>(&mut self, index: usize, look: impl FnOnce(&mut Self) -> T) -> T {
        let outer = self.enter_item(index);
        let seen = look(self);
        self.back(outer);
        seen
    }

    /// Visits the value of a key that the schema does not list.
    pub(super) fn key<T>(&mut self, key: &str, look: impl FnOnce(&mut Self) -> T) -> T {
        let outer = self.enter_subscript(key);
        let seen = look(self);
        self.back(outer);
        seen
    }

    /// Goes to a member; returns the position for [`back`](Self::back).
    pub(super) fn enter(&mut self, name: &str) -> usize {
        let outer = self.0.len();
        if outer > 0 {
            self.0.push('.');
        }
        self.0.push_str(name);
        outer
    }

    /// Goes to an item of a list; returns the position for [`back`](Self::back).
    pub(super) fn enter_item(&mut self, index: usize) -> usize {
        self.enter_subscript(index)
    }

    fn enter_subscript(&mut self, subscript: impl Display) -> usize {
        let outer = self.0.len();
        // Writing to a String does not fail.
        let _ = write!(self.0, "[{subscript}]");
        outer
    }

    /// Returns to an earlier position.
    pub(super) fn back(&mut self, outer: usize) {
        self.0.truncate(outer);
    }
}
