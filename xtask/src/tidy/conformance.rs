//! Every conformance case is claimed by a test or has a reason; no test claims a case that is not listed.

use std::collections::BTreeSet;

use anyhow::Result;

use super::{Subject, Violation};
use crate::conformance::{Cases, FILE, claims};

pub(super) fn check(subject: &Subject) -> Result<Vec<Violation>> {
    let cases = Cases::of(&subject.tree)?;
    let claims = claims(&subject.tree);
    let claimed: BTreeSet<&str> = claims.iter().flat_map(|claim| &claim.ids).map(String::as_str).collect();
    let mut found = Vec::new();
    for (id, title) in &cases.titles {
        match (claimed.contains(id.as_str()), cases.reasons.contains_key(id)) {
            (false, false) => found.push(Violation::new(
                FILE,
                format!(
                    "case {id} ({title}) is claimed by no test; write `Conformance: {id}` above the one that shows it"
                ),
            )),
            (true, true) => found.push(Violation::new(
                FILE,
                format!("case {id} has a test now; remove its reason"),
            )),
            _ => {}
        }
    }
    for claim in &claims {
        for id in claim.ids.iter().filter(|id| !cases.contains(id)) {
            found.push(Violation::new(
                &claim.file,
                format!("{} claims case {id}, which {FILE} does not list", claim.test),
            ));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_and_claims_are_compared_both_ways() {
        let list = "1.01 a\n1.02 b\n1.03 c\n1.04 d\n## Not shown by a test\n\n1.03: why\n1.04: why\n";
        let test = "/// Conformance: 1.01, 1.04, 9.99\n#[test]\nfn t() {}\n";
        let subject = Subject::of_files(&[(FILE, list), ("a.rs", test)]);
        let problems: Vec<String> = check(&subject)
            .expect("the check runs")
            .into_iter()
            .map(|v| v.problem)
            .collect();
        assert_eq!(problems.len(), 3, "{problems:?}");
        assert!(problems[0].contains("1.02") && problems[1].contains("1.04") && problems[2].contains("9.99"));
    }
}
