//! Claims of tests for cases: `Conformance: 2.53, 3.G02` in the comment above a test function, in Rust and in Go.

use std::fmt;

use super::cases::is_id;
use crate::tree::Tree;

/// Starts the list of ids in a comment.
const MARK: &str = "Conformance:";

/// One test and the cases it claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// File, relative to the root.
    pub(crate) file: String,
    /// Name of the function.
    pub(crate) test: String,
    /// Cases.
    pub(crate) ids: Vec<String>,
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.file, self.test)
    }
}

/// Every claim in the repository.
pub(crate) fn claims(tree: &Tree) -> Vec<Claim> {
    let of_language = |extension, keyword: &'static str| {
        tree.with_extension(extension)
            .filter(|(path, _)| !path.starts_with("xtask/src/conformance"))
            .flat_map(move |(path, text)| claims_of_file(path, text, keyword))
    };
    of_language("rs", "fn ").chain(of_language("go", "func ")).collect()
}

fn claims_of_file(path: &str, text: &str, keyword: &str) -> Vec<Claim> {
    let mut found = Vec::new();
    let mut ids: Vec<String> = Vec::new();
    let mut continues = false;
    for line in text.lines() {
        let line = line.trim();
        let comment = line.strip_prefix("//").map(|rest| rest.trim_start_matches('/').trim());
        if let Some(comment) = comment {
            let list = comment.split_once(MARK).map(|(_, list)| list);
            // A long list continues on the next line of the comment.
            let list = list.or_else(|| Some(comment).filter(|_| continues));
            continues = list.is_some_and(|list| list.trim_end().ends_with(','));
            ids.extend(list.into_iter().flat_map(ids_of));
            continue;
        }
        continues = false;
        if let Some(name) = function_name(line, keyword) {
            if !ids.is_empty() {
                found.push(Claim {
                    file: path.to_owned(),
                    test: name.to_owned(),
                    ids: std::mem::take(&mut ids),
                });
            }
        } else if line.is_empty() {
            ids.clear();
        }
    }
    found
}

fn ids_of(list: &str) -> impl Iterator<Item = String> {
    let words = list.split([',', ' ']).map(|word| word.trim_end_matches('.'));
    words.filter(|word| is_id(word)).map(str::to_owned)
}

/// The name of the function that begins on this line.
pub(crate) fn function_name<'a>(line: &'a str, keyword: &str) -> Option<&'a str> {
    let (before, rest) = line.split_once(keyword)?;
    if !matches!(before, "" | "async " | "pub " | "pub async " | "pub(crate) ") {
        return None;
    }
    rest.split(['(', '<']).next().filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_stand_above_functions_of_both_languages() {
        let rust = "\n/// Lists come in pages.\n///\n/// Conformance: 3.E07, 3.E08,\n/// 5.22a.\n#[tokio::test]\nasync fn pages() {}\n\n/// Other.\nfn no() {}\n";
        let go = "// TestX does.\n//\n// Conformance: 1.33\nfunc TestX(t *testing.T) {\n";
        let tree = Tree::of_files(&[("a.rs", rust), ("b_test.go", go)]);
        let found = claims(&tree);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].test.as_str(), found[0].ids.len()), ("pages", 3));
        assert_eq!((found[1].test.as_str(), found[1].ids[0].as_str()), ("TestX", "1.33"));
    }
}
