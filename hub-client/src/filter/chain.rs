//! Runs the filters of one request over an object.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use yurt_apimachinery::{Object, ObjectKey, ResourceKind};

use super::{FilterContext, Inputs, ObjectFilter, Verdict};

/// Filters in call order; an empty chain passes everything.
#[derive(Clone, Default)]
pub struct Chain {
    filters: Vec<(&'static dyn ObjectFilter, Arc<Counts>)>,
}

/// Counts of one filter's verdicts.
#[derive(Debug, Default)]
pub struct Counts {
    kept: AtomicU64,
    replaced: AtomicU64,
    dropped: AtomicU64,
    reevaluated: AtomicU64,
}

// === impl Chain ===

impl Chain {
    /// Creates a chain that calls the filters in the given order.
    pub fn new(filters: Vec<&'static dyn ObjectFilter>) -> Self {
        Self::counted(filters.into_iter().map(|filter| (filter, Arc::default())).collect())
    }

    /// Creates a chain of filters in call order that counts the verdicts of each.
    pub fn counted(filters: Vec<(&'static dyn ObjectFilter, Arc<Counts>)>) -> Self {
        Chain { filters }
    }

    /// The filters that concern objects of this namespace and name; `None` is any.
    #[must_use]
    pub fn about(mut self, namespace: Option<&str>, name: Option<&str>) -> Self {
        self.filters.retain(|(filter, _)| filter.concerns(namespace, name));
        self
    }

    /// Filters in call order.
    pub fn filters(&self) -> impl Iterator<Item = &'static dyn ObjectFilter> {
        self.filters.iter().map(|(filter, _)| *filter)
    }

    /// Counts objects that were evaluated again because an input changed.
    pub fn count_reevaluated(&self, objects: u64) {
        for (_, counts) in &self.filters {
            counts.reevaluated.fetch_add(objects, Ordering::Relaxed);
        }
    }

    /// True if the chain has no filter, so that every object passes.
    pub fn is_empty(&self) -> bool {
        self.filters.is_empty()
    }

    /// Returns the names in call order, for logs and as part of the key of a derived view.
    pub fn names(&self) -> Vec<&'static str> {
        self.filters().map(ObjectFilter::name).collect()
    }

    /// Returns the inputs that the view depends on.
    pub fn inputs(&self) -> Inputs {
        let inputs = self.filters().map(ObjectFilter::inputs);
        inputs.fold(Inputs::NONE, Inputs::union)
    }

    /// Returns the keys of the Services that the view of `object` depends on.
    pub fn services_of(&self, kind: &ResourceKind, object: &Object) -> impl Iterator<Item = ObjectKey> {
        self.filters().filter_map(|filter| filter.service_of(kind, object))
    }

    /// Runs the filters; each one gets the result of the previous one. The first [`Verdict::Drop`] ends the chain.
    pub fn filter(&self, kind: &ResourceKind, object: &Object, context: &FilterContext<'_>) -> Verdict {
        let mut verdict = Verdict::Keep;
        for (filter, counts) in &self.filters {
            let seen = if let Verdict::Replace(replaced) = &verdict {
                replaced
            } else {
                object
            };
            let given = filter.filter(kind, seen, context);
            counts.add(&given);
            match given {
                Verdict::Keep => {}
                replaced @ Verdict::Replace(_) => verdict = replaced,
                Verdict::Drop => return Verdict::Drop,
            }
        }
        verdict
    }

    /// Returns the client's view of `object`; `None` if it is hidden.
    pub fn view_of(&self, kind: &ResourceKind, object: &Object, context: &FilterContext<'_>) -> Option<Object> {
        self.filter(kind, object, context).view_of(object)
    }
}

// === impl Counts ===

impl Counts {
    fn add(&self, verdict: &Verdict) {
        let count = match verdict {
            Verdict::Keep => &self.kept,
            Verdict::Replace(_) => &self.replaced,
            Verdict::Drop => &self.dropped,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the counts with their names, as metrics and reports show them.
    #[must_use]
    pub fn each(&self) -> [(&'static str, u64); 4] {
        let each = [
            ("kept", &self.kept),
            ("replaced", &self.replaced),
            ("dropped", &self.dropped),
            ("reevaluated", &self.reevaluated),
        ];
        each.map(|(name, count)| (name, count.load(Ordering::Relaxed)))
    }
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Chain").field(&self.names()).finish()
    }
}

#[cfg(test)]
mod tests {
    use yurt_apimachinery::packed::Packer;

    use super::*;
    use crate::filter::tests::{World, service};

    /// Records its name in the object, or drops the object.
    struct Probe {
        name: &'static str,
        drops: bool,
    }

    impl ObjectFilter for Probe {
        fn name(&self) -> &'static str {
            self.name
        }
        fn filter(&self, kind: &ResourceKind, object: &Object, _: &FilterContext<'_>) -> Verdict {
            if self.drops {
                return Verdict::Drop;
            }
            let mut value = object.to_value();
            let trace = value["spec"]["trace"].as_str().unwrap_or_default().to_owned() + self.name;
            value["spec"]["trace"] = trace.into();
            Verdict::Replace(Object::from_value(value, kind).unwrap())
        }
    }

    static FIRST: Probe = Probe {
        name: "a",
        drops: false,
    };
    static SECOND: Probe = Probe {
        name: "b",
        drops: false,
    };
    static DROPS: Probe = Probe { name: "d", drops: true };

    #[test]
    fn filters_are_called_in_order_on_what_the_one_before_left() {
        let (kind, object) = service(r#"{"metadata":{"namespace":"shop","name":"web"},"spec":{}}"#);
        let chain = Chain::new(vec![&FIRST, &SECOND]);
        let seen = chain.view_of(kind, &object, &World::default().context()).unwrap();
        assert_eq!(seen.to_value()["spec"]["trace"], "ab");
        assert_eq!(chain.names(), ["a", "b"]);
    }

    #[test]
    fn object_that_is_held_deflated_is_kept_so() {
        let text = format!(
            r#"{{"metadata":{{"namespace":"shop","name":"web"}},"spec":{{"x":"{}"}}}}"#,
            "again ".repeat(1000)
        );
        let (kind, object) = service(&text);
        object.pack(&mut Packer::default());
        let seen = |chain: Chain| chain.view_of(kind, &object, &World::default().context()).unwrap();
        assert!(seen(Chain::default()).identity().is(&object));
        assert_eq!(seen(Chain::new(vec![&FIRST])).to_value()["spec"]["trace"], "a");
    }

    #[test]
    fn drop_ends_the_chain() {
        let (kind, object) = service(r#"{"metadata":{"namespace":"shop","name":"web"},"spec":{}}"#);
        let chain = Chain::new(vec![&DROPS, &FIRST]);
        assert!(matches!(
            chain.filter(kind, &object, &World::default().context()),
            Verdict::Drop
        ));
    }

    #[test]
    fn verdicts_of_each_filter_are_counted() {
        let (kind, object) = service(r#"{"metadata":{"namespace":"shop","name":"web"},"spec":{}}"#);
        let counts: Vec<Arc<Counts>> = vec![Arc::default(), Arc::default(), Arc::default()];
        let filters: [&'static dyn ObjectFilter; 3] = [&FIRST, &DROPS, &SECOND];
        let chain = Chain::counted(filters.into_iter().zip(counts.iter().cloned()).collect());
        for _ in 0..2 {
            assert!(chain.view_of(kind, &object, &World::default().context()).is_none());
        }
        chain.count_reevaluated(3);
        let counted: Vec<_> = counts
            .iter()
            .map(|counts| counts.each().map(|(_, count)| count))
            .collect();
        assert_eq!(counted, [[0, 2, 0, 3], [0, 0, 2, 3], [0, 0, 0, 3]]);
    }

    #[test]
    fn empty_chain_keeps() {
        let (kind, object) = service(r#"{"metadata":{"namespace":"shop","name":"web"},"spec":{}}"#);
        let chain = Chain::default();
        assert!(chain.is_empty());
        assert!(matches!(
            chain.filter(kind, &object, &World::default().context()),
            Verdict::Keep
        ));
    }
}
