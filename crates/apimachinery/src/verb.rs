//! The verbs of the API.

use std::fmt;

/// Operation that a request wants.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Read one object; also GET of a path that is no resource.
    Get,
    /// Read a collection.
    List,
    /// Watch a collection.
    Watch,
    /// POST of a resource.
    Create,
    /// PUT of a resource.
    Update,
    /// Change part of an object; also PATCH of a path that is no resource.
    Patch,
    /// Remove one object; also DELETE of a path that is no resource.
    Delete,
    /// Remove every object of a collection that the selectors match.
    DeleteCollection,
    /// The legacy path prefix `/proxy/`.
    Proxy,
    /// POST of a path that is no resource.
    Post,
    /// PUT of a path that is no resource.
    Put,
    /// HEAD of a path that is no resource; of a resource it is [`Verb::Get`].
    Head,
    /// OPTIONS of a path that is no resource.
    Options,
    /// Any other method.
    #[default]
    Other,
}

// === impl Verb ===

impl Verb {
    /// The verb in RBAC rules and messages; empty for [`Verb::Other`].
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
            Self::Proxy => "proxy",
            Self::Post => "post",
            Self::Put => "put",
            Self::Head => "head",
            Self::Options => "options",
            Self::Other => "",
        }
    }

    /// True for the verbs that change nothing.
    pub fn is_read_only(self) -> bool {
        matches!(self, Self::Get | Self::List | Self::Watch | Self::Head | Self::Options)
    }

    pub(crate) fn of_resource(method: &str) -> Self {
        match method {
            "GET" | "HEAD" => Self::Get,
            "POST" => Self::Create,
            "PUT" => Self::Update,
            "PATCH" => Self::Patch,
            "DELETE" => Self::Delete,
            _ => Self::Other,
        }
    }

    pub(crate) fn of_non_resource(method: &str) -> Self {
        match method {
            "GET" => Self::Get,
            "HEAD" => Self::Head,
            "POST" => Self::Post,
            "PUT" => Self::Put,
            "PATCH" => Self::Patch,
            "DELETE" => Self::Delete,
            "OPTIONS" => Self::Options,
            _ => Self::Other,
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
