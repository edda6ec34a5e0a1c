//! Every relative link in a Markdown file leads to a file or folder of the repository.

use anyhow::Result;

use super::{Subject, Violation};
use crate::tree::Tree;

pub(super) fn check(subject: &Subject) -> Result<Vec<Violation>> {
    let pages = subject
        .tree
        .with_extension("md")
        .filter(|(path, _)| !path.contains("/testdata/"));
    Ok(pages
        .flat_map(|(path, text)| violations(&subject.tree, path, text))
        .collect())
}

fn violations(tree: &Tree, page: &str, text: &str) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut in_fence = false;
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_fence = !in_fence;
        }
        if in_fence {
            continue;
        }
        for link in targets(line).filter(|link| is_relative(link)) {
            if !resolves(tree, page, link) {
                found.push(Violation::new(
                    format!("{page}:{}", number + 1),
                    format!("the link `{link}` has no target"),
                ));
            }
        }
    }
    found
}

/// The text in the round brackets of each `[text](target)`; code spans are skipped.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    // Every second piece between backticks is code.
    let prose = line.split('`').step_by(2);
    let links = prose.flat_map(|piece| piece.split("](").skip(1));
    let inner = links.filter_map(|rest| rest.split_once(')').map(|(target, _)| target));
    // `[a](b "title")`
    inner.map(|target| target.split(' ').next().unwrap_or_default())
}

fn is_relative(link: &str) -> bool {
    !link.is_empty() && !link.starts_with('#') && !link.contains("://") && !link.starts_with("mailto:")
}

fn resolves(tree: &Tree, page: &str, link: &str) -> bool {
    let link = link.split('#').next().unwrap_or_default();
    let mut parts: Vec<&str> = if link.starts_with('/') {
        Vec::new()
    } else {
        page.split('/').collect()
    };
    parts.pop();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.pop().is_none() => return false,
            ".." => {}
            name => parts.push(name),
        }
    }
    tree.contains(&parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_links_are_found_and_good_ones_are_not() {
        let page = "[a](ARCHITECTURE.md#life) [b](adr/) [c](../README.md) [d](https://k8s.io/x) [e](#here)\n\
                    [f](gone.md) and [g](../../outside.md)\n```\n[h](gone.md)\n```\n`[i](gone.md)` [j](adr/0001.md \"title\")\n";
        let files = [
            ("docs/ARCHITECTURE.md", page),
            ("docs/adr/0001.md", ""),
            ("README.md", "[k](docs/none.md)"),
        ];
        let found: Vec<String> = check(&Subject::of_files(&files))
            .expect("the check runs")
            .into_iter()
            .map(|v| v.place)
            .collect();
        assert_eq!(
            found,
            ["README.md:1", "docs/ARCHITECTURE.md:2", "docs/ARCHITECTURE.md:2"]
        );
    }
}
