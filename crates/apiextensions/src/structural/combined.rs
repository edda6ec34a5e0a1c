//! Schemas composed of schemas: `allOf`, `anyOf`, `oneOf`, `not`.

use serde_json::Value;

use super::Node;
use super::path::Path;
use super::validate::{NOWHERE, check};
use yurt_apimachinery::status::{ErrorList, FieldError};
use yurt_apimachinery::text::go_quote;

/// The parts of one schema.
#[derive(Debug, Default)]
pub(super) struct Combined {
    all: Vec<Node>,
    any: Vec<Node>,
    one: Vec<Node>,
    not: Option<Node>,
}

/// Result of one alternative for a value.
#[derive(Default)]
struct AlternativeResult {
    matched: usize,
    errors: ErrorList,
}

// === impl Combined ===

impl Combined {
    /// The combination in a schema; `None` if there is none.
    pub(super) fn of(schema: &Value) -> Option<Self> {
        let nodes = |name: &str| -> Vec<Node> {
            let schemas = schema[name].as_array().into_iter().flatten();
            schemas.map(Node::of).collect()
        };
        let combined = Self {
            all: nodes("allOf"),
            any: nodes("anyOf"),
            one: nodes("oneOf"),
            not: schema["not"].is_object().then(|| Node::of(&schema["not"])),
        };
        let is_alone = combined.all.is_empty() && combined.any.is_empty() && combined.one.is_empty();
        (!is_alone || combined.not.is_some()).then_some(combined)
    }

    /// Adds the faults; returns the number of checked parts, as [`check`] does. Alternatives judge the whole value: a
    /// member that an update keeps may still be the one that decides between them.
    pub(super) fn check(&self, path: &mut Path, value: &Value, errors: &mut ErrorList) -> usize {
        let shown = path.shown().into_owned();
        let mut judge = |node: &Node| {
            let mut verdict = AlternativeResult::default();
            verdict.matched = check(node, path, value, None, &mut verdict.errors);
            verdict
        };
        let refuse = |errors: &mut ErrorList, what: String| {
            let why = format!("{} must {what}", go_quote(&shown));
            // Alternatives often find the same fault: it is listed once.
            errors.push_new(FieldError::invalid(NOWHERE, "", &why));
        };
        let mut matched = 0;
        if !self.any.is_empty() {
            let verdicts: Vec<AlternativeResult> = self.any.iter().map(&mut judge).collect();
            if !verdicts.iter().any(AlternativeResult::is_good) {
                refuse(errors, "validate at least one schema (anyOf)".to_owned());
            }
            matched += tell_best(verdicts, errors);
        }
        if !self.one.is_empty() {
            let verdicts: Vec<AlternativeResult> = self.one.iter().map(&mut judge).collect();
            match verdicts.iter().filter(|verdict| verdict.is_good()).count() {
                1 => matched += tell_best(verdicts, errors),
                0 => {
                    let what = "validate one and only one schema (oneOf). Found none valid";
                    refuse(errors, what.to_owned());
                    matched += tell_best(verdicts, errors);
                }
                several => {
                    let what = format!("validate one and only one schema (oneOf). Found {several} valid alternatives");
                    refuse(errors, what);
                }
            }
        }
        if !self.all.is_empty() {
            let verdicts: Vec<AlternativeResult> = self.all.iter().map(&mut judge).collect();
            let good = verdicts.iter().filter(|verdict| verdict.is_good()).count();
            for verdict in verdicts {
                matched += verdict.tell(errors);
            }
            if good < self.all.len() {
                let none = if good == 0 { ". None validated" } else { "" };
                refuse(errors, format!("validate all the schemas (allOf){none}"));
            }
        }
        if self.not.as_ref().is_some_and(|not| judge(not).is_good()) {
            refuse(errors, "not validate the schema (not)".to_owned());
        }
        matched
    }
}

// === impl AlternativeResult ===

impl AlternativeResult {
    fn is_good(&self) -> bool {
        self.errors.is_empty()
    }

    fn tell(self, errors: &mut ErrorList) -> usize {
        errors.append_new(self.errors);
        self.matched
    }
}

/// Reports the first verdict without a fault, else the first of those that matched most.
fn tell_best(verdicts: Vec<AlternativeResult>, errors: &mut ErrorList) -> usize {
    let mut best: Option<AlternativeResult> = None;
    for verdict in verdicts {
        if verdict.is_good() {
            return verdict.tell(errors);
        }
        if best.as_ref().is_none_or(|best| verdict.matched > best.matched) {
            best = Some(verdict);
        }
    }
    best.map_or(0, |best| best.tell(errors))
}
