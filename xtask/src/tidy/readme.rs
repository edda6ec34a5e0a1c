//! README.md stays short: the product, the two commands, links to further documents.

use anyhow::Result;

use super::{Subject, Violation};

/// Two screens.
const LINES_MAX: usize = 120;

pub(super) fn check(subject: &Subject) -> Result<Vec<Violation>> {
    Ok(match subject.tree.text("README.md").map(|text| text.lines().count()) {
        None => vec![Violation::new("README.md", "is missing; it is the front door")],
        Some(lines) if lines > LINES_MAX => {
            vec![Violation::new(
                "README.md",
                format!("has {lines} lines, {LINES_MAX} are allowed; move detail into docs/"),
            )]
        }
        Some(_) => Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_or_missing_readme_is_reported() {
        let found = |files: &[(&str, &str)]| check(&Subject::of_files(files)).expect("the check runs").len();
        assert_eq!(found(&[("README.md", &"x\n".repeat(LINES_MAX))]), 0);
        assert_eq!(found(&[("README.md", &"x\n".repeat(LINES_MAX + 1))]), 1);
        assert_eq!(found(&[]), 1);
    }
}
