//! Selectors over fields.

use std::fmt;

use super::ParseError;

/// A conjunction of requirements on fields. The default selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FieldSelector {
    requirements: Vec<FieldRequirement>,
}

/// Values that field selectors compare with.
pub trait FieldSource {
    /// Value of a field that selectors may name; `None` for other fields.
    fn field(&self, label: &str) -> Option<&str>;
}

/// A requirement on one field.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FieldRequirement {
    /// Label of the field, such as `spec.nodeName`.
    pub field: String,
    /// Comparison.
    pub operator: FieldOperator,
    /// Value to compare with.
    pub value: String,
}

/// Comparison of a field with a value.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum FieldOperator {
    /// `f=v` or `f==v`.
    Equals,
    /// `f!=v`.
    NotEquals,
}

/// Longest first, so that `==` does not leave a `=` in the value.
const OPERATORS: [(&str, FieldOperator); 3] = [
    ("!=", FieldOperator::NotEquals),
    ("==", FieldOperator::Equals),
    ("=", FieldOperator::Equals),
];

// === impl FieldSelector ===

impl FieldSelector {
    /// Reads a selector such as `metadata.name=a,status.phase!=Failed`; a backslash escapes `\`, `,` and `=` in values.
    ///
    /// # Errors
    ///
    /// When a term has no operator or its value a bad escape.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut terms = split_terms(text);
        terms.sort_unstable();
        let mut requirements = Vec::new();
        for term in terms.into_iter().filter(|term| !term.is_empty()) {
            let Some((field, operator, value)) = split_term(term) else {
                return Err(ParseError(format!(
                    "invalid selector: '{text}'; can't understand '{term}'"
                )));
            };
            let value = unescape(value)?;
            // An empty term selects everything.
            if !(field.is_empty() && value.is_empty()) {
                requirements.push(FieldRequirement {
                    field: field.to_owned(),
                    operator,
                    value,
                });
            }
        }
        // Sorted by content: `==5` and `=5` are one requirement in two spellings.
        requirements.sort_by_cached_key(FieldRequirement::to_string);
        Ok(Self { requirements })
    }

    /// The selector `field=value`.
    pub fn equal(field: &str, value: &str) -> Self {
        let (field, value) = (field.to_owned(), value.to_owned());
        Self {
            requirements: vec![FieldRequirement {
                field,
                operator: FieldOperator::Equals,
                value,
            }],
        }
    }

    /// True if every requirement holds. A field that is not selectable for the object's kind counts as empty.
    pub fn matches(&self, object: &impl FieldSource) -> bool {
        self.requirements.iter().all(|requirement| {
            let is_equal = object.field(&requirement.field).unwrap_or_default() == requirement.value;
            is_equal == (requirement.operator == FieldOperator::Equals)
        })
    }

    /// The one value that the selector requires of a field.
    pub fn requires(&self, field: &str) -> Option<&str> {
        let is_exact = |r: &&FieldRequirement| r.operator == FieldOperator::Equals && r.field == field;
        self.requirements
            .iter()
            .find(is_exact)
            .map(|requirement| requirement.value.as_str())
    }

    /// The requirements, sorted by their text.
    pub fn requirements(&self) -> &[FieldRequirement] {
        &self.requirements
    }

    /// The same requirements on fields that another view of the objects calls by other names.
    #[must_use]
    pub fn renamed(&self, name: impl Fn(&str) -> String) -> Self {
        let rename = |requirement: &FieldRequirement| FieldRequirement {
            field: name(&requirement.field),
            ..requirement.clone()
        };
        Self {
            requirements: self.requirements.iter().map(rename).collect(),
        }
    }

    /// True if there are no requirements.
    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty()
    }
}

/// The canonical text, which parses to an equal selector.
impl fmt::Display for FieldSelector {
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

impl fmt::Display for FieldRequirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operator = match self.operator {
            FieldOperator::Equals => "=",
            FieldOperator::NotEquals => "!=",
        };
        write!(f, "{}{operator}{}", self.field, escape(&self.value))
    }
}

/// Splits at commas that no backslash escapes.
fn split_terms(text: &str) -> Vec<&str> {
    let mut terms = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                terms.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms
}

fn split_term(term: &str) -> Option<(&str, FieldOperator, &str)> {
    term.char_indices().find_map(|(at, _)| {
        let rest = &term[at..];
        let (operator, value) = OPERATORS
            .iter()
            .find_map(|(text, operator)| Some((*operator, rest.strip_prefix(text)?)))?;
        Some((&term[..at], operator, value))
    })
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace(',', "\\,").replace('=', "\\=")
}

fn unescape(value: &str) -> Result<String, ParseError> {
    let bad_escape = |text: String| ParseError(format!("invalid field selector: invalid escape sequence: {text}"));
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(escaped @ ('\\' | ',' | '=')) => out.push(escaped),
                Some(other) => return Err(bad_escape(format!("\\{other}"))),
                None => return Err(bad_escape("\\".to_owned())),
            },
            ',' | '=' => {
                let code = c as u32;
                return Err(ParseError(format!(
                    "invalid field selector: unescaped character in value: {code}"
                )));
            }
            other => out.push(other),
        }
    }
    Ok(out)
}
