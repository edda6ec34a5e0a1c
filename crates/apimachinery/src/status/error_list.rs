//! Errors of one object: the first ones, and the number of the others.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::ops::Deref;

use super::FieldError;

/// Most errors that are kept of one object. More would not help the client, and a body can consist of errors.
pub const ERRORS_MAX: usize = 100;

/// A list of errors that keeps the first [`ERRORS_MAX`] and counts the others.
///
/// ```
/// use yurt_apimachinery::status::{FieldError, ErrorList};
///
/// let errors: ErrorList = (0..300).map(|at| FieldError::required(format!("items[{at}]"), "")).collect();
/// assert_eq!((errors.len(), errors.left_out()), (100, 200));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorList {
    kept: Vec<FieldError>,
    left_out: usize,
}

// === impl ErrorList ===

impl ErrorList {
    /// Adds an error, or counts it when there are enough.
    pub fn push(&mut self, error: FieldError) {
        if self.kept.len() < ERRORS_MAX {
            self.kept.push(error);
        } else {
            self.left_out += 1;
        }
    }

    /// As [`push`](Self::push), of an error that is made only if it is kept.
    ///
    /// ```
    /// use yurt_apimachinery::status::{FieldError, ErrorList};
    ///
    /// let (mut errors, mut made) = (ErrorList::default(), 0);
    /// for _ in 0..300 {
    ///     errors.push_with(|| {
    ///         made += 1;
    ///         FieldError::required("spec", "")
    ///     });
    /// }
    /// assert_eq!((made, errors.left_out()), (100, 200));
    /// ```
    pub fn push_with(&mut self, error: impl FnOnce() -> FieldError) {
        if self.kept.len() < ERRORS_MAX {
            self.kept.push(error());
        } else {
            self.left_out += 1;
        }
    }

    /// Adds an error that is not kept yet.
    pub fn push_new(&mut self, error: FieldError) {
        let is_known = |known: &FieldError| (&known.field, &known.message) == (&error.field, &error.message);
        if !self.kept.iter().any(is_known) {
            self.push(error);
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
        other.kept.into_iter().for_each(|error| self.push_new(error));
    }

    /// The same errors, with fields below `path`.
    #[must_use]
    pub fn below(mut self, path: &str) -> Self {
        for error in &mut self.kept {
            error.field = format!("{path}.{}", error.field);
        }
        self
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

impl Deref for ErrorList {
    type Target = [FieldError];

    fn deref(&self) -> &[FieldError] {
        &self.kept
    }
}

impl Extend<FieldError> for ErrorList {
    fn extend<I: IntoIterator<Item = FieldError>>(&mut self, errors: I) {
        errors.into_iter().for_each(|error| self.push(error));
    }
}

impl FromIterator<FieldError> for ErrorList {
    fn from_iter<I: IntoIterator<Item = FieldError>>(errors: I) -> Self {
        let mut all = Self::default();
        all.extend(errors);
        all
    }
}

impl From<FieldError> for ErrorList {
    fn from(error: FieldError) -> Self {
        Self {
            kept: vec![error],
            left_out: 0,
        }
    }
}
