//! The filter of `docs/FILTERS.md`, "Write a filter".

use super::super::json::Json;
use super::*;

struct HideHeadless;

impl ObjectFilter for HideHeadless {
    fn name(&self) -> &'static str {
        "hideheadless"
    }

    fn filter(&self, kind: &ResourceKind, object: &Object, _: &FilterContext<'_>) -> Verdict {
        if !kind.group.is_empty() || kind.plural != "services" {
            return Verdict::Keep;
        }
        match Json::of(&object.bytes()).text_at(&["spec", "clusterIP"]) {
            Ok(address) if address != "None" => Verdict::Keep,
            // Headless, or not readable: this filter hides, so it fails closed.
            _ => Verdict::Drop,
        }
    }
}

#[test]
fn filter_of_the_documentation_is_this_one() {
    const DOCS: &str = include_str!("../../../../docs/FILTERS.md");
    const HERE: &str = include_str!("sample.rs");
    let (_, rest) = DOCS.split_once("   ```rust\n").expect("a sample");
    let (sample, _) = rest.split_once("   ```\n").expect("its end");
    let sample: Vec<&str> = sample
        .lines()
        .map(|line| line.strip_prefix("   ").unwrap_or(line))
        .collect();
    assert!(HERE.contains(&sample.join("\n")), "the sample differs from this file");
}

#[test]
fn filter_of_the_documentation_hides_headless_services() {
    let kind = find_kind("", "services").expect("a built-in kind");
    let verdict = |spec: Value| {
        let service = json!({"metadata": {"namespace": "shop", "name": "web"}, "spec": spec});
        let service = Object::from_value(service, kind).expect("an object");
        HideHeadless.filter(kind, &service, &World::default().context())
    };
    assert!(matches!(verdict(json!({"clusterIP": "10.96.0.7"})), Verdict::Keep));
    assert!(matches!(verdict(json!({"clusterIP": "None"})), Verdict::Drop));
    assert!(matches!(verdict(json!({"clusterIP": 7})), Verdict::Drop));
}
