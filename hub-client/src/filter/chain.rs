//! Runs the filters of one request over an object.

use yurt_apimachinery::{Object, ObjectKey, ResourceKind};

use super::{FilterContext, Inputs, ObjectFilter, Verdict};

/// Filters in call order; an empty chain passes everything.
#[derive(Clone, Default)]
pub struct Chain {
    filters: Vec<&'static dyn ObjectFilter>,
}

// === impl Chain ===

impl Chain {
    /// Creates a chain that calls the filters in the given order.
    pub fn new(filters: Vec<&'static dyn ObjectFilter>) -> Self {
        Chain { filters }
    }

    /// True if the chain has no filter, so that every object passes.
    pub fn is_empty(&self) -> bool {
        self.filters.is_empty()
    }

    /// Returns the names in call order, for logs and as part of the key of a derived view.
    pub fn names(&self) -> Vec<&'static str> {
        self.filters.iter().map(|filter| filter.name()).collect()
    }

    /// Returns the inputs that the view depends on.
    pub fn inputs(&self) -> Inputs {
        let inputs = self.filters.iter().map(|filter| filter.inputs());
        inputs.fold(Inputs::NONE, Inputs::union)
    }

    /// Returns the keys of the Services that the view of `object` depends on.
    pub fn services_of(&self, kind: &ResourceKind, object: &Object) -> impl Iterator<Item = ObjectKey> {
        self.filters.iter().filter_map(|filter| filter.service_of(kind, object))
    }

    /// Runs the filters; each one gets the result of the previous one. The first [`Verdict::Drop`] ends the chain.
    pub fn filter(&self, kind: &ResourceKind, object: &Object, context: &FilterContext<'_>) -> Verdict {
        let mut verdict = Verdict::Keep;
        for filter in &self.filters {
            let seen = if let Verdict::Replace(replaced) = &verdict {
                replaced
            } else {
                object
            };
            match filter.filter(kind, seen, context) {
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

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Chain").field(&self.names()).finish()
    }
}

#[cfg(test)]
mod tests {
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
    fn drop_ends_the_chain() {
        let (kind, object) = service(r#"{"metadata":{"namespace":"shop","name":"web"},"spec":{}}"#);
        let chain = Chain::new(vec![&DROPS, &FIRST]);
        assert!(matches!(
            chain.filter(kind, &object, &World::default().context()),
            Verdict::Drop
        ));
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
