//! Wording of comments and documents: each area has a number of offences that it may only lower.
//!
//! Pure. The rules are three of `docs/STYLE.md` that a machine can count. Comments are lines that begin with `//`; a
//! doc paragraph is a run of `///` or `//!` lines. Code spans and code blocks are not prose.

use std::collections::BTreeMap;

use anyhow::Result;

use super::{Subject, Violation};

/// Allowed offences, one area per line: `area opens words long`. An area without a line has none.
const RATCHET: &str = "xtask/prose-ratchet.txt";

/// Words that a doc paragraph must not open with: it names the item, or what the item does.
const OPENINGS: [&str; 8] = ["what", "who", "whoever", "whose", "which", "how", "where", "why"];

/// Words that hide the component that acts, or that have a plainer synonym.
const AVOIDED: [&str; 9] = [
    "told",
    "whoever",
    "nobody",
    "somebody",
    "everybody",
    "anybody",
    "anew",
    "meanwhile",
    "lately",
];

/// Widest line of Markdown prose, in columns.
const COLUMNS_MAX: usize = 140;

/// Most places that a violation lists.
const PLACES_MAX: usize = 20;

/// Beginning of a comment that names the type of the methods below it.
const SECTION: &str = "===";

/// Names of the rules, in the order of the columns of [`RATCHET`].
const RULES: [&str; 3] = [
    "doc paragraphs open with what, who, which, how, where or why",
    "words to avoid (told, whoever, nobody, somebody, everybody, anybody, anew, meanwhile, lately)",
    "lines of Markdown prose over 140 columns",
];

/// Places of the offences of one area, per rule.
type Offences = [Vec<String>; RULES.len()];

/// A run of prose lines.
#[derive(Debug, PartialEq, Eq)]
struct Paragraph {
    /// Number of its first line, from 1.
    line: usize,
    is_doc: bool,
    /// Lines joined by spaces, code spans blanked.
    text: String,
}

pub(super) fn check(subject: &Subject) -> Result<Vec<Violation>> {
    let mut allowed = rows(subject.tree.text(RATCHET).unwrap_or_default());
    let mut areas: BTreeMap<&str, Offences> = BTreeMap::new();
    for (path, text) in subject.tree.texts().filter(|(path, _)| is_prose(path)) {
        count(areas.entry(area_of(path)).or_default(), path, text);
    }
    let mut found = Vec::new();
    for (area, offences) in &areas {
        let limits = allowed.remove(*area);
        found.extend(compare(area, offences, limits));
    }
    found.extend(
        allowed
            .into_keys()
            .map(|area| Violation::new(RATCHET, format!("{area} is gone; delete its line"))),
    );
    Ok(found)
}

/// Compares the offences of one area with its row.
fn compare(area: &str, offences: &Offences, limits: Option<[usize; RULES.len()]>) -> Vec<Violation> {
    let counts = offences.each_ref().map(Vec::len);
    let limit = limits.unwrap_or_default();
    let mut found = Vec::new();
    for ((rule, places), limit) in RULES.iter().zip(offences).zip(limit) {
        if places.len() > limit {
            let listed = places.iter().take(PLACES_MAX).map(String::as_str).collect::<Vec<_>>();
            let problem = format!(
                "{} {rule}, {limit} allowed; reword: {}",
                places.len(),
                listed.join(", ")
            );
            found.push(Violation::new(area, problem));
        }
    }
    if found.is_empty() && limits.is_some() && counts == [0; RULES.len()] {
        found.push(Violation::new(
            RATCHET,
            format!("{area} has no offence left; delete its line"),
        ));
    } else if found.is_empty() && counts != limit {
        let [opens, words, long] = counts;
        let row = format!("write `{area} {opens} {words} {long}`: its offences went down");
        found.push(Violation::new(RATCHET, row));
    }
    found
}

/// Rows of the ratchet file. Blank lines and `#` comments are skipped; a missing number allows nothing.
fn rows(text: &str) -> BTreeMap<String, [usize; RULES.len()]> {
    let lines = text.lines().map(str::trim);
    lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| {
            let mut parts = line.split_whitespace();
            let area = parts.next().unwrap_or_default().to_owned();
            let mut number = || parts.next().and_then(|part| part.parse().ok()).unwrap_or(0);
            (area, [number(), number(), number()])
        })
        .collect()
}

fn is_prose(path: &str) -> bool {
    (path.ends_with(".rs") || path.ends_with(".md")) && !path.split('/').any(|part| part == "testdata")
}

/// Area of a file: the crate, or the top folder; `.` for the root. Each decision record of `docs/adr` belongs to
/// `docs`.
fn area_of(path: &str) -> &str {
    let mut slashes = path.match_indices('/').map(|(at, _)| at);
    let Some(first) = slashes.next() else { return "." };
    if matches!(&path[..first], "crates") {
        return slashes.next().map_or("crates", |second| &path[..second]);
    }
    &path[..first]
}

/// Adds the offences of one file.
fn count(offences: &mut Offences, path: &str, text: &str) {
    let [opens, words, long] = offences;
    let is_markdown = path.ends_with(".md");
    for paragraph in if is_markdown { markdown(text) } else { comments(text) } {
        let place = format!("{path}:{}", paragraph.line);
        let mut all = words_of(&paragraph.text).peekable();
        let first = all.peek().map(|word| word.to_lowercase()).unwrap_or_default();
        if paragraph.is_doc && OPENINGS.contains(&first.as_str()) {
            opens.push(place.clone());
        }
        let avoided = all.filter(|word| AVOIDED.contains(&word.to_lowercase().as_str()));
        words.extend(avoided.map(|word| format!("{place} {word}")));
    }
    if is_markdown {
        let wide = prose_lines(text).filter(|(_, line)| !is_table(line) && line.chars().count() > COLUMNS_MAX);
        long.extend(wide.map(|(number, _)| format!("{path}:{number}")));
    }
}

/// Words of a text; an identifier with an underscore is one word.
fn words_of(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
}

fn is_table(line: &str) -> bool {
    line.trim_start().starts_with('|')
}

/// Lines of Markdown outside code blocks, with their numbers.
fn prose_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    let numbered = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    numbered.filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// Paragraphs of Markdown. Each line of a table is one.
fn markdown(text: &str) -> Vec<Paragraph> {
    let mut paragraphs = Vec::new();
    let mut lines: Vec<&str> = Vec::new();
    let (mut start, mut last) = (0, 0);
    for (number, line) in prose_lines(text) {
        if line.trim().is_empty() || is_table(line) || number != last + 1 {
            close(&mut paragraphs, &mut lines, start, false);
        }
        last = number;
        if !line.trim().is_empty() {
            start = if lines.is_empty() { number } else { start };
            lines.push(line.trim());
        }
    }
    close(&mut paragraphs, &mut lines, start, false);
    paragraphs
}

/// Paragraphs of the comments of Rust source.
fn comments(text: &str) -> Vec<Paragraph> {
    let mut paragraphs = Vec::new();
    let mut lines: Vec<&str> = Vec::new();
    let (mut start, mut kind, mut is_code) = (0, "", false);
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        let marker = ["///", "//!", "//"]
            .into_iter()
            .find(|marker| line.starts_with(marker))
            .unwrap_or("");
        let words = line[marker.len()..].trim();
        if marker != kind {
            close(&mut paragraphs, &mut lines, start, kind.len() == 3);
            (kind, is_code) = (marker, false);
        }
        let is_fence = words.starts_with("```");
        is_code ^= is_fence;
        if marker.is_empty() || is_code || is_fence || words.is_empty() || words.starts_with(SECTION) {
            close(&mut paragraphs, &mut lines, start, kind.len() == 3);
            continue;
        }
        start = if lines.is_empty() { index + 1 } else { start };
        lines.push(words);
    }
    close(&mut paragraphs, &mut lines, start, kind.len() == 3);
    paragraphs
}

fn close(paragraphs: &mut Vec<Paragraph>, lines: &mut Vec<&str>, line: usize, is_doc: bool) {
    if !lines.is_empty() {
        let text = without_code(&lines.join(" "));
        paragraphs.push(Paragraph { line, is_doc, text });
        lines.clear();
    }
}

/// `text` with each code span and each link target replaced by a placeholder that is no word to avoid. An unpaired
/// backtick stays.
fn without_code(text: &str) -> String {
    let parts: Vec<&str> = text.split('`').collect();
    let last = parts.len() - 1;
    let mut out = String::new();
    for (index, part) in parts.iter().enumerate() {
        let is_span = index % 2 == 1 && index < last;
        out.push_str(if is_span { "X" } else { part });
    }
    let mut links = out.split("](");
    let first = links.next().unwrap_or_default().to_owned();
    links.fold(first, |text, link| {
        let (_, after) = link.split_once(')').unwrap_or((link, ""));
        text + "](X)" + after
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(files: &[(&str, &str)]) -> Vec<String> {
        let found = check(&Subject::of_files(files)).expect("the check runs");
        found.into_iter().map(|violation| violation.to_string()).collect()
    }

    fn counts(path: &str, text: &str) -> [usize; 3] {
        let mut offences = Offences::default();
        count(&mut offences, path, text);
        offences.map(|places| places.len())
    }

    #[test]
    fn doc_paragraphs_that_open_with_a_question_word_are_counted() {
        let text = "//! What it is.\n//!\n//! Which it is not.\n/// Returns\n/// what it is.\nfn a() {}\n// Why not.\n";
        assert_eq!(counts("a.rs", text), [2, 0, 0]);
        assert_eq!(counts("a.rs", "/// `what` is a name.\n/// Whatever.\n"), [0, 0, 0]);
        assert_eq!(counts("a.md", "What a title\n"), [0, 0, 0], "documents may ask");
    }

    #[test]
    fn words_to_avoid_are_counted_outside_code() {
        let text =
            "/// Nobody is told.\nfn nobody_is_told() { let told = \"anew\"; }\n// Lately: `told`, [`meanwhile`].\n";
        assert_eq!(counts("a.rs", text), [0, 3, 0]);
        assert_eq!(
            counts(
                "a.rs",
                "/// ```\n/// // nobody\n/// ```\n/// A `span over\n/// nobody` too.\n"
            ),
            [0; 3]
        );
        assert_eq!(counts("a.rs", "// === impl Told ===\n"), [0; 3], "a name");
        assert_eq!(counts("a.md", "[a](what-is-told.md) and [b](x.md).\n"), [0; 3]);
        assert_eq!(
            counts("a.md", "| `x` | told |\n\n```\ntold\n```\n\nA `name_told_late`.\n"),
            [0, 1, 0]
        );
    }

    #[test]
    fn wide_lines_are_counted_in_prose_and_not_in_tables_or_code() {
        let wide = "ä".repeat(COLUMNS_MAX + 1);
        let text = format!("{wide}\n{}\n| {wide} |\n```\n{wide}\n```\n", "ä".repeat(COLUMNS_MAX));
        assert_eq!(counts("a.md", &text), [0, 0, 1]);
        assert_eq!(
            counts("a.rs", &format!("// {wide}\n")),
            [0, 0, 0],
            "rustfmt wraps comments"
        );
    }

    #[test]
    fn areas_are_crates_and_top_folders() {
        let area = |path| area_of(path);
        assert_eq!(area("README.md"), ".");
        assert_eq!(area("crates/storage/src/lib.rs"), "crates/storage");
        assert_eq!(area("docs/adr/0001-a.md"), "docs");
    }

    #[test]
    fn ratchet_lets_an_area_lower_its_counts_and_never_raise_them() {
        let two = "/// What.\nfn a() {}\n/// How.\n";
        assert!(problems(&[("x/a.rs", two), (RATCHET, "# area\nx 2 0 0\n")]).is_empty());
        let raised = problems(&[("x/a.rs", two), (RATCHET, "x 1 0 0\n")]);
        assert!(
            raised[0].contains("x/a.rs:1, x/a.rs:3") && raised[0].contains("1 allowed"),
            "{raised:?}"
        );
        assert!(
            problems(&[("x/a.rs", two)])[0].contains("0 allowed"),
            "an area without a line has none"
        );
        assert!(problems(&[("x/a.rs", two), (RATCHET, "x 3 0 0")])[0].contains("write `x 2 0 0`"));
        assert!(problems(&[("x/a.rs", ""), (RATCHET, "x 1 0 0")])[0].contains("delete its line"));
        assert!(problems(&[(RATCHET, "x 1 0 0")])[0].contains("is gone"));
    }
}
