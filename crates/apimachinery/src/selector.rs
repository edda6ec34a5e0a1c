//! Selection of objects for a list or watch: selectors over labels and over fields.

mod field;
mod label;
mod label_parser;
mod labels;
mod lexer;

pub use field::{FieldOperator, FieldRequirement, FieldSelector, FieldSource};
pub use label::{LabelOperator, LabelRequirement, LabelSelector};
pub use labels::Labels;

/// A selector that cannot be parsed; the text is that of kube-apiserver's 400.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseError(pub(crate) String);

#[cfg(test)]
mod tests;
