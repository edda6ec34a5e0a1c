//! Selectors over labels.

use std::fmt;

use super::label_parser;
use super::{Labels, ParseError};

/// A conjunction of requirements on labels. The default selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LabelSelector {
    /// Sorted by key.
    pub(super) requirements: Vec<LabelRequirement>,
}

/// A requirement on one label.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LabelRequirement {
    /// The label's key.
    pub key: String,
    /// Condition on the label.
    pub operator: LabelOperator,
    /// Sorted values: one for the comparisons, one or more for the sets, none for existence.
    pub values: Vec<String>,
}

/// Condition of a requirement on a label.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum LabelOperator {
    /// `k in (a,b)`.
    In,
    /// `k notin (a,b)`; also true without the label.
    NotIn,
    /// `k=a`.
    Equals,
    /// `k==a`.
    DoubleEquals,
    /// `k!=a`; also true without the label.
    NotEquals,
    /// `k`.
    Exists,
    /// `!k`.
    DoesNotExist,
    /// `k>1`; false for labels that are no numbers.
    GreaterThan,
    /// `k<1`; false for labels that are no numbers.
    LessThan,
}

// === impl LabelSelector ===

impl LabelSelector {
    /// Reads a selector such as `a=b,c in (d,e),!f`.
    ///
    /// # Errors
    ///
    /// When the text breaks the grammar, or a key or value breaks the rules for labels.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut requirements = label_parser::parse(text).map_err(ParseError)?;
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Self { requirements })
    }

    /// True if every requirement holds.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.requirements.iter().all(|requirement| requirement.matches(labels))
    }

    /// True if there are no requirements.
    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty()
    }

    /// The requirements, sorted by key.
    pub fn requirements(&self) -> &[LabelRequirement] {
        &self.requirements
    }
}

/// The canonical text, which parses to an equal selector.
impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, requirement) in self.requirements.iter().enumerate() {
            if at > 0 {
                f.write_str(",")?;
            }
            requirement.fmt(f)?;
        }
        Ok(())
    }
}

// === impl LabelRequirement ===

impl LabelRequirement {
    /// True if the requirement holds.
    pub fn matches(&self, labels: &Labels) -> bool {
        use LabelOperator as Op;
        let value = labels.get(&self.key);
        let is_listed = |value: &str| self.is_listed(value);
        match self.operator {
            Op::In | Op::Equals | Op::DoubleEquals => value.is_some_and(is_listed),
            Op::NotIn | Op::NotEquals => !value.is_some_and(is_listed),
            Op::Exists => value.is_some(),
            Op::DoesNotExist => value.is_none(),
            Op::GreaterThan => self.compare(value).is_some_and(|(have, want)| have > want),
            Op::LessThan => self.compare(value).is_some_and(|(have, want)| have < want),
        }
    }

    /// Evaluated for every object that a watch may show. The values are sorted, since the client chooses their number.
    fn is_listed(&self, value: &str) -> bool {
        self.values
            .binary_search_by(|listed| listed.as_str().cmp(value))
            .is_ok()
    }

    fn compare(&self, value: Option<&str>) -> Option<(i64, i64)> {
        Some((value?.parse().ok()?, self.values.first()?.parse().ok()?))
    }
}

impl fmt::Display for LabelRequirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use LabelOperator as Op;
        let (key, values) = (&self.key, self.values.join(","));
        match self.operator {
            Op::In => write!(f, "{key} in ({values})"),
            Op::NotIn => write!(f, "{key} notin ({values})"),
            Op::Equals => write!(f, "{key}={values}"),
            Op::DoubleEquals => write!(f, "{key}=={values}"),
            Op::NotEquals => write!(f, "{key}!={values}"),
            Op::Exists => f.write_str(key),
            Op::DoesNotExist => write!(f, "!{key}"),
            Op::GreaterThan => write!(f, "{key}>{values}"),
            Op::LessThan => write!(f, "{key}<{values}"),
        }
    }
}
