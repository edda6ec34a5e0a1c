//! The list of cases in `docs/conformance.md`: lines of an id and a title, and at its end `id: reason` lines for cases
//! without a test.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use crate::tree::Tree;

/// File with the list of cases.
pub(crate) const FILE: &str = "docs/conformance.md";
/// Below this heading are the reasons.
const REASONS: &str = "## Not shown by a test";

/// Every case and, for those without a test, the reason.
pub(crate) struct Cases {
    /// Titles of the cases, in the order of the list.
    pub(crate) titles: Vec<(String, String)>,
    /// Reasons of the cases without a test.
    pub(crate) reasons: BTreeMap<String, String>,
}

impl Cases {
    /// Reads the list.
    pub(crate) fn of(tree: &Tree) -> Result<Self> {
        let text = tree.text(FILE).with_context(|| format!("{FILE} is missing"))?;
        Ok(Self::parse(text))
    }

    pub(crate) fn parse(text: &str) -> Self {
        let (listed, excused) = text.split_once(REASONS).unwrap_or((text, ""));
        let split = |line: &'_ str, at: &str| {
            let (id, rest) = line.split_once(at)?;
            is_id(id).then(|| (id.to_owned(), rest.trim().to_owned()))
        };
        Self {
            titles: listed.lines().filter_map(|line| split(line, " ")).collect(),
            reasons: excused.lines().filter_map(|line| split(line, ": ")).collect(),
        }
    }

    /// True if a case of this id is listed.
    pub(crate) fn contains(&self, id: &str) -> bool {
        self.titles.iter().any(|(known, _)| known == id)
    }
}

/// `2.53`, `3.G02`, `5.22a`.
pub(crate) fn is_id(text: &str) -> bool {
    let Some((section, rest)) = text.split_once('.') else {
        return false;
    };
    let is_short = |part: &str| (1..=4).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_alphanumeric());
    section.len() == 1
        && section.bytes().all(|b| b.is_ascii_digit())
        && is_short(rest)
        && rest.bytes().any(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_and_reasons_are_told_apart_from_prose() {
        let cases = Cases::parse(
            "# Cases\n\nLines are `id what`.\n\n1.01 first\n5.22a second\n\n## Not shown by a test\n\nLines are `id: reason`.\n\n5.22a: because\n",
        );
        assert_eq!(
            cases.titles,
            [("1.01".into(), "first".into()), ("5.22a".into(), "second".into())]
        );
        assert_eq!(cases.reasons["5.22a"], "because");
        assert!(cases.contains("1.01") && !cases.contains("1.02"));
    }
}
