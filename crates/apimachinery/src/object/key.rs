//! The place of an object in its collection.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

/// `<namespace>/<name>`, or `<name>` for cluster-scoped kinds. Ordered bytewise, as kube-apiserver orders lists:
/// namespace `a-b` comes before namespace `a`, because `-` sorts before `/`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey(Arc<str>);

// === impl ObjectKey ===

impl ObjectKey {
    /// Joins namespace and name.
    pub fn new(namespace: Option<&str>, name: &str) -> Self {
        match namespace {
            Some(namespace) => Self(format!("{namespace}/{name}").into()),
            None => Self(name.into()),
        }
    }

    /// Reads the joined form. Every text is a key; it may be that of no object.
    pub fn parse(text: &str) -> Self {
        Self(text.into())
    }

    /// The joined form.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name.
    pub fn name(&self) -> &str {
        self.0.split_once('/').map_or(&*self.0, |(_, name)| name)
    }

    /// The namespace; `None` for cluster-scoped kinds.
    pub fn namespace(&self) -> Option<&str> {
        self.0.split_once('/').map(|(namespace, _)| namespace)
    }
}

impl Borrow<str> for ObjectKey {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}
