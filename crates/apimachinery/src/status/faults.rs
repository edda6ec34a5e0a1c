//! Faults of one object: the first ones, and the number of the others.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::ops::Deref;

use super::FieldError;

/// Most faults that are kept of one object. More would not help the client, and a body can consist of faults.
pub const FAULTS_MAX: usize = 100;

/// A list of faults that keeps the first [`FAULTS_MAX`] and counts the others.
///
/// ```
/// use yurt_apimachinery::status::{FieldError, Faults};
///
/// let faults: Faults = (0..300).map(|at| FieldError::required(format!("items[{at}]"), "")).collect();
/// assert_eq!((faults.len(), faults.left_out()), (100, 200));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    kept: Vec<FieldError>,
    left_out: usize,
}

// === impl Faults ===

impl Faults {
    /// Adds a fault, or counts it when there are enough.
    pub fn push(&mut self, fault: FieldError) {
        if self.kept.len() < FAULTS_MAX {
            self.kept.push(fault);
        } else {
            self.left_out += 1;
        }
    }

    /// Adds a fault that is not kept yet.
    pub fn push_new(&mut self, fault: FieldError) {
        let is_known = |known: &FieldError| (&known.field, &known.message) == (&fault.field, &fault.message);
        if !self.kept.iter().any(is_known) {
            self.push(fault);
        }
    }

    /// Adds all of another list.
    pub fn append(&mut self, other: Self) {
        self.left_out += other.left_out;
        self.extend(other.kept);
    }

    /// Adds those of another list that are not kept yet.
    pub fn append_new(&mut self, other: Self) {
        self.left_out += other.left_out;
        other.kept.into_iter().for_each(|fault| self.push_new(fault));
    }

    /// Number of those counted and not kept.
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// Joins them as Go's aggregate does: a single one as it is, several in brackets, equal texts once. The end gives
    /// the number left out.
    pub(super) fn joined(&self) -> String {
        let mut seen = HashSet::new();
        let mut texts: Vec<String> = self.kept.iter().map(ToString::to_string).collect();
        texts.retain(|text| seen.insert(text.clone()));
        if let ([only], 0) = (texts.as_slice(), self.left_out) {
            return only.clone();
        }
        let mut joined = format!("[{}", texts.join(", "));
        if self.left_out > 0 {
            // Writing to a String does not fail.
            let _ = write!(joined, ", and {} more", self.left_out);
        }
        joined.push(']');
        joined
    }
}

impl Deref for Faults {
    type Target = [FieldError];

    fn deref(&self) -> &[FieldError] {
        &self.kept
    }
}

impl Extend<FieldError> for Faults {
    fn extend<I: IntoIterator<Item = FieldError>>(&mut self, faults: I) {
        faults.into_iter().for_each(|fault| self.push(fault));
    }
}

impl FromIterator<FieldError> for Faults {
    fn from_iter<I: IntoIterator<Item = FieldError>>(faults: I) -> Self {
        let mut all = Self::default();
        all.extend(faults);
        all
    }
}

impl From<FieldError> for Faults {
    fn from(fault: FieldError) -> Self {
        Self {
            kept: vec![fault],
            left_out: 0,
        }
    }
}
