//! Reviews: kinds that can only be created, as a question. They are answered, never stored.

use yurt_apimachinery::RequestInfo;

/// A kind that can only be created, as a question, and is not stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReviewKind {
    /// The question.
    pub(crate) review: Review,
    /// API group.
    pub(crate) group: &'static str,
    /// Plural.
    pub(crate) plural: &'static str,
    /// Singular.
    pub(crate) singular: &'static str,
    /// Kind.
    pub(crate) kind: &'static str,
    /// True if the path has a namespace.
    pub(crate) namespaced: bool,
}

/// Questions that are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Review {
    /// The caller's identity.
    SelfSubject,
    /// The owner of a token.
    Token,
    /// A right of the caller.
    SelfSubjectAccess,
    /// All rights of the caller in a namespace.
    SelfSubjectRules,
    /// A right of any user.
    SubjectAccess,
    /// A right of any user, in the namespace of the path.
    LocalSubjectAccess,
}

/// Version of all reviews.
pub(crate) const VERSION: &str = "v1";

const fn authentication(
    review: Review,
    plural: &'static str,
    singular: &'static str,
    kind: &'static str,
) -> ReviewKind {
    ReviewKind {
        review,
        group: "authentication.k8s.io",
        plural,
        singular,
        kind,
        namespaced: false,
    }
}

const fn authorization(review: Review, plural: &'static str, singular: &'static str, kind: &'static str) -> ReviewKind {
    ReviewKind {
        group: "authorization.k8s.io",
        ..authentication(review, plural, singular, kind)
    }
}

/// Every review served.
pub(crate) const KINDS: [ReviewKind; 6] = [
    authentication(
        Review::SelfSubject,
        "selfsubjectreviews",
        "selfsubjectreview",
        "SelfSubjectReview",
    ),
    authentication(Review::Token, "tokenreviews", "tokenreview", "TokenReview"),
    authorization(
        Review::SelfSubjectAccess,
        "selfsubjectaccessreviews",
        "selfsubjectaccessreview",
        "SelfSubjectAccessReview",
    ),
    authorization(
        Review::SelfSubjectRules,
        "selfsubjectrulesreviews",
        "selfsubjectrulesreview",
        "SelfSubjectRulesReview",
    ),
    authorization(
        Review::SubjectAccess,
        "subjectaccessreviews",
        "subjectaccessreview",
        "SubjectAccessReview",
    ),
    ReviewKind {
        namespaced: true,
        ..authorization(
            Review::LocalSubjectAccess,
            "localsubjectaccessreviews",
            "localsubjectaccessreview",
            "LocalSubjectAccessReview",
        )
    },
];

/// The review that a path names.
pub(crate) fn find(info: &RequestInfo) -> Option<&'static ReviewKind> {
    let is_named = |kind: &&ReviewKind| kind.group == info.group && kind.plural == info.resource;
    let kind = KINDS.iter().find(is_named)?;
    (info.version == VERSION && info.subresource.is_none()).then_some(kind)
}
