//! Order of preference among versions: `v2` before `v1`, both before `v2beta1`, that before `v2alpha1`; names of
//! another form come last.

use std::cmp::Ordering;

/// Stability level of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Alpha,
    Beta,
    Stable,
}

/// Orders versions by preference, the preferred one first.
pub fn compare(a: &str, b: &str) -> Ordering {
    match (parse(a), parse(b)) {
        (Some(a), Some(b)) => b.cmp(&a),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.cmp(b),
    }
}

fn parse(version: &str) -> Option<(Stage, u64, u64)> {
    let rest = version.strip_prefix('v')?;
    let major = number(rest)?;
    let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
    let (stage, minor) = if let Some(minor) = rest.strip_prefix("alpha") {
        (Stage::Alpha, minor)
    } else if let Some(minor) = rest.strip_prefix("beta") {
        (Stage::Beta, minor)
    } else {
        return rest.is_empty().then_some((Stage::Stable, major, 0));
    };
    let is_number = minor.bytes().all(|byte| byte.is_ascii_digit());
    Some((stage, major, number(minor).filter(|_| is_number)?))
}

/// The number a text begins with.
fn number(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conformance: 1.25
    #[test]
    fn ripe_versions_come_first() {
        let mut versions = [
            "v1alpha1",
            "v10",
            "foo10",
            "v1beta1",
            "v11alpha2",
            "v3beta1",
            "v2",
            "v12alpha1",
            "foo1",
            "v11beta2",
            "v1",
            "v1beta",
            "v1beta1x",
        ];
        versions.sort_by(|a, b| compare(a, b));
        assert_eq!(
            versions.join(" "),
            "v10 v2 v1 v11beta2 v3beta1 v1beta1 v12alpha1 v11alpha2 v1alpha1 foo1 foo10 v1beta v1beta1x"
        );
    }
}
