//! Every `.rs` file opens with a `//!` sentence that says what it is.

use anyhow::Result;

use super::{Subject, Violation};

/// A shorter text is a title, not a sentence about the file.
const SENTENCE_MIN: usize = 15;

pub(super) fn check(subject: &Subject) -> Result<Vec<Violation>> {
    Ok(subject
        .tree
        .with_extension("rs")
        .filter_map(|(path, text)| problem(text).map(|p| Violation::new(path, p)))
        .collect())
}

fn problem(text: &str) -> Option<&'static str> {
    let sentence = text.lines().next().unwrap_or_default().strip_prefix("//!");
    match sentence.map(str::trim) {
        None => Some("starts without a //! header; say in one sentence what this file is"),
        Some(sentence) if sentence.len() < SENTENCE_MIN => Some("its //! header is no sentence; say what this file is"),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_header_or_with_a_mere_title_is_reported() {
        let subject = Subject::of_files(&[
            ("a.rs", "//! Decides whether a hub may lead.\nfn a() {}\n"),
            ("b.rs", "use std::fs;\n//! Too late to be a header.\n"),
            ("c.rs", "//! Utils\n"),
            ("d.rs", ""),
        ]);
        let places: Vec<_> = check(&subject)
            .expect("the check runs")
            .into_iter()
            .map(|v| v.place)
            .collect();
        assert_eq!(places, ["b.rs", "c.rs", "d.rs"]);
    }
}
