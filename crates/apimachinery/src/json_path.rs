//! JSONPath as printer columns use it: `.spec.a`, `['k']`, `[0]`, `[*]`, `[?(@.type=="Ready")].status`.
//!
//! The part of kubectl's language that addresses a place. Slices, unions, recursion and arithmetic are rejected when
//! the path is parsed, not when it is evaluated.

use serde_json::Value;

/// Longest path that is read, in bytes.
pub const PATH_BYTES_MAX: usize = 1024;

/// A parsed path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JsonPath {
    steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Step {
    Member(String),
    /// Negative numbers count from the end.
    Item(i64),
    Every,
    Where(Filter),
}

/// Items of a list, by something below them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Filter {
    below: Vec<Step>,
    test: Test,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Test {
    Exists,
    Equals(Literal),
    Differs(Literal),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Literal {
    Text(String),
    Number(i64),
    Bool(bool),
}

/// The value of a comparison has another type than what it is compared with: kubectl gives up the whole path.
struct Incomparable;

struct Parser<'a> {
    rest: &'a str,
}

// === impl JsonPath ===

impl JsonPath {
    /// Reads a path that begins with a dot, without the braces around it.
    ///
    /// # Errors
    ///
    /// The expression that is not supported, and its position.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > PATH_BYTES_MAX {
            return Err(format!("longer than {PATH_BYTES_MAX} bytes"));
        }
        if !text.starts_with('.') {
            return Err("must be a simple json path starting with .".to_owned());
        }
        let mut parser = Parser { rest: text };
        let steps = parser.steps(true)?;
        if parser.rest.is_empty() {
            Ok(Self { steps })
        } else {
            Err(parser.unknown())
        }
    }

    /// The first value at the path; `None` when there is none, or the object has another shape than the path.
    pub fn first<'a>(&self, object: &'a Value) -> Option<&'a Value> {
        let found = walk(&self.steps, object).ok()?;
        found.first().copied()
    }

    /// The names along the path, if it consists of names only.
    pub fn members(&self) -> Option<Vec<&str>> {
        let names = self.steps.iter().map(|step| match step {
            Step::Member(name) => Some(name.as_str()),
            Step::Item(_) | Step::Every | Step::Where(_) => None,
        });
        names.collect()
    }
}

/// Every value a path leads to.
fn walk<'a>(steps: &[Step], from: &'a Value) -> Result<Vec<&'a Value>, Incomparable> {
    let mut found = vec![from];
    for step in steps {
        let mut next = Vec::new();
        for value in found {
            match (step, value) {
                (Step::Member(name), value) => next.extend(value.get(name)),
                (Step::Item(at), Value::Array(items)) => next.push(item(items, *at).ok_or(Incomparable)?),
                (Step::Every, Value::Array(items)) => next.extend(items),
                (Step::Every, Value::Object(members)) => next.extend(members.values()),
                (Step::Where(filter), Value::Array(items)) => {
                    for item in items {
                        if filter.takes(item)? {
                            next.push(item);
                        }
                    }
                }
                (Step::Item(_) | Step::Every, Value::Null) => {}
                (Step::Item(_) | Step::Where(_), _) => return Err(Incomparable),
                (Step::Every, _) => {}
            }
        }
        found = next;
    }
    Ok(found)
}

fn item(items: &[Value], at: i64) -> Option<&Value> {
    let from_end = i64::try_from(items.len()).ok()?;
    items.get(usize::try_from(if at < 0 { at + from_end } else { at }).ok()?)
}

// === impl Filter ===

impl Filter {
    fn takes(&self, item: &Value) -> Result<bool, Incomparable> {
        let found = walk(&self.below, item)?;
        let (literal, wanted) = match &self.test {
            Test::Exists => return Ok(!found.is_empty()),
            Test::Equals(literal) => (literal, true),
            Test::Differs(literal) => (literal, false),
        };
        match found.as_slice() {
            [] => Ok(false),
            [value] => Ok(literal.equals(value)? == wanted),
            _ => Err(Incomparable),
        }
    }
}

// === impl Literal ===

impl Literal {
    fn equals(&self, value: &Value) -> Result<bool, Incomparable> {
        match (self, value) {
            (Self::Text(text), Value::String(value)) => Ok(text == value),
            (Self::Number(number), Value::Number(value)) => Ok(value.as_i64() == Some(*number)),
            (Self::Bool(bool), Value::Bool(value)) => Ok(bool == value),
            _ => Err(Incomparable),
        }
    }
}

// === impl Parser ===

impl Parser<'_> {
    fn unknown(&self) -> String {
        format!(
            "{:?} is not understood; a path is made of .name, ['name'], [0], [*] and [?(@.name==\"value\")]",
            self.rest
        )
    }

    fn take(&mut self, prefix: &str) -> bool {
        match self.rest.strip_prefix(prefix) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, prefix: &str) -> Result<(), String> {
        if self.take(prefix) { Ok(()) } else { Err(self.unknown()) }
    }

    fn skip_spaces(&mut self) {
        self.rest = self.rest.trim_start_matches(' ');
    }

    /// Parses steps up to the first text that is not a step. Filters are allowed in the outermost path only.
    fn steps(&mut self, may_filter: bool) -> Result<Vec<Step>, String> {
        let mut steps = Vec::new();
        loop {
            if self.take(".*") {
                steps.push(Step::Every);
            } else if self.rest.starts_with("..") {
                return Err(self.unknown());
            } else if self.take(".") {
                let name = self.name();
                if !name.is_empty() {
                    steps.push(Step::Member(name));
                } else if !steps.is_empty() || !matches!(self.rest.chars().next(), None | Some('[')) {
                    return Err(self.unknown());
                }
            } else if self.rest.starts_with("[?(") {
                if !may_filter {
                    return Err(self.unknown());
                }
                steps.push(self.filter()?);
            } else if self.rest.starts_with('[') {
                steps.push(self.bracket()?);
            } else {
                return Ok(steps);
            }
        }
    }

    /// A name up to the next special character; a backslash escapes one.
    fn name(&mut self) -> String {
        let mut name = String::new();
        let mut chars = self.rest.char_indices();
        let mut end = self.rest.len();
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => name.extend(chars.next().map(|(_, c)| c)),
                '.' | '[' | ']' | ' ' | '=' | '!' | '<' | '>' | '(' | ')' | '"' | '\'' => {
                    end = at;
                    break;
                }
                c => name.push(c),
            }
        }
        self.rest = &self.rest[end..];
        name
    }

    fn bracket(&mut self) -> Result<Step, String> {
        let start = self.rest;
        self.expect("[")?;
        let step = if self.take("*") {
            Step::Every
        } else if let Some(text) = self.quoted() {
            Step::Member(text)
        } else {
            self.number()
                .map(Step::Item)
                .ok_or_else(|| Parser { rest: start }.unknown())?
        };
        if self.take("]") {
            return Ok(step);
        }
        Err(Parser { rest: start }.unknown())
    }

    fn filter(&mut self) -> Result<Step, String> {
        let start = Parser { rest: self.rest };
        self.expect("[?(")?;
        self.skip_spaces();
        self.expect("@")?;
        let below = self.steps(false)?;
        self.skip_spaces();
        let is_equal = self.take("==");
        let test = if is_equal || self.take("!=") {
            self.skip_spaces();
            let literal = self.literal().ok_or_else(|| start.unknown())?;
            if is_equal {
                Test::Equals(literal)
            } else {
                Test::Differs(literal)
            }
        } else {
            Test::Exists
        };
        self.skip_spaces();
        if self.take(")]") {
            return Ok(Step::Where(Filter { below, test }));
        }
        Err(start.unknown())
    }

    fn literal(&mut self) -> Option<Literal> {
        if let Some(text) = self.quoted() {
            return Some(Literal::Text(text));
        }
        if self.take("true") {
            return Some(Literal::Bool(true));
        }
        if self.take("false") {
            return Some(Literal::Bool(false));
        }
        self.number().map(Literal::Number)
    }

    fn quoted(&mut self) -> Option<String> {
        let quote = self.rest.chars().next().filter(|c| matches!(c, '"' | '\''))?;
        let mut text = String::new();
        let mut chars = self.rest.char_indices().skip(1);
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => text.extend(chars.next().map(|(_, c)| c)),
                c if c == quote => {
                    self.rest = &self.rest[at + 1..];
                    return Some(text);
                }
                c => text.push(c),
            }
        }
        None
    }

    fn number(&mut self) -> Option<i64> {
        let end = self.rest.find(|c: char| !c.is_ascii_digit() && c != '-');
        let (digits, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        let number = digits.parse().ok()?;
        self.rest = rest;
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_lead_where_kubectl_looks() {
        let object = json!({
            "metadata": {"annotations": {"a.b/c": "dotted"}},
            "spec": {"x": 1, "list": [{"n": "a", "v": 1}, {"n": "b", "v": 2}], "nothing": null},
            "status": {"conditions": [{"type": "Other", "status": "?"}, {"type": "Ready", "status": "True"}]},
        });
        for (path, want) in [
            (".spec.x", Some(json!(1))),
            (".spec['x']", Some(json!(1))),
            (".['spec'].x", Some(json!(1))),
            (".metadata.annotations.a\\.b/c", Some(json!("dotted"))),
            (".metadata.annotations['a.b/c']", Some(json!("dotted"))),
            (".spec.list[0].n", Some(json!("a"))),
            (".spec.list[-1].n", Some(json!("b"))),
            (".spec.list[*].v", Some(json!(1))),
            (".spec.list.*.v", Some(json!(1))),
            (".status.conditions[?(@.type==\"Ready\")].status", Some(json!("True"))),
            (".status.conditions[?( @.type == 'Ready' )].status", Some(json!("True"))),
            (".status.conditions[?(@.type!=\"Other\")].status", Some(json!("True"))),
            (".spec.list[?(@.v==2)].n", Some(json!("b"))),
            (".spec.list[?(@.v)].n", Some(json!("a"))),
            (".spec.nothing", Some(Value::Null)),
            (".spec.nothing.below", None),
            (".spec.none", None),
            (".spec.list[2]", None),
            (".spec.x[0]", None),
            (".spec.list[?(@.v==\"text\")].n", None),
            (".spec.x[?(@.v==1)]", None),
        ] {
            let found = JsonPath::parse(path).unwrap().first(&object).cloned();
            assert_eq!(found, want, "{path}");
        }
        assert_eq!(JsonPath::parse(".").unwrap().first(&object), Some(&object));
    }

    #[test]
    fn what_is_not_understood_is_refused_when_it_is_read() {
        for path in [
            "",
            "spec",
            "{.spec}",
            ".spec..x",
            "..x",
            ".a[",
            ".a[x]",
            ".a[0:2]",
            ".a[0,1]",
            ".a['b",
            ".a[?(@.b==)]",
            ".a[?(@.b<1)]",
            ".a[?(b)]",
            ".a[?(@.b[?(@.c)])]",
            ".a.[0]",
            ".a b",
        ] {
            assert!(JsonPath::parse(path).is_err(), "{path}");
        }
        let long = format!(".{}", "a".repeat(PATH_BYTES_MAX));
        assert!(JsonPath::parse(&long).is_err() && JsonPath::parse(&long[1..].replacen('a', ".", 1)).is_ok());
    }

    #[test]
    fn names_alone_are_told() {
        let members = |path: &str| JsonPath::parse(path).unwrap().members().map(|names| names.join("/"));
        assert_eq!(members(".spec.color"), Some("spec/color".to_owned()));
        assert_eq!(members(".spec.list[0]"), None);
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_survived(text in "[.a'\"?@=\\[\\]()*!0-9\\\\ ]{0,40}") {
            if let Ok(path) = JsonPath::parse(&format!(".{text}")) {
                path.first(&json!({"a": [{"a": 1}, null, "x"]}));
            }
        }
    }
}
