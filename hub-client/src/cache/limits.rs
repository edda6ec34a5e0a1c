//! Limits of the number of cached selections. Pure.

/// Maximum number of selections. A kubelet with 110 pods has 300 to 700: each Secret and ConfigMap of its pods is one.
pub const SELECTIONS_MAX: usize = 2_000;
/// Maximum number of selections that only callers with a token of their own use. The others are the node's.
pub const SELECTIONS_OF_TOKENS_MAX: usize = 640;
/// Name of the failure while the node itself gets no further selection.
pub const SELECTIONS: &str = "number of selections";
/// Name of the failure while callers with tokens get no further selection. The node's data is complete.
pub const SELECTIONS_OF_TOKENS: &str = "number of selections of tokens";

/// Limit that a further selection would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    /// [`SELECTIONS_MAX`].
    All,
    /// [`SELECTIONS_OF_TOKENS_MAX`].
    OfTokens,
}

/// Numbers of cached selections.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    pub(super) all: usize,
    pub(super) of_tokens: usize,
}

// === impl Limit ===

impl Limit {
    pub(super) const EVERY: [Self; 2] = [Self::All, Self::OfTokens];

    /// Name of its failure.
    pub(super) fn failure(self) -> &'static str {
        match self {
            Self::All => SELECTIONS,
            Self::OfTokens => SELECTIONS_OF_TOKENS,
        }
    }

    /// Reason for the operator.
    pub(super) fn why(self) -> String {
        match self {
            Self::All => format!("{SELECTIONS_MAX} selections are cached: further ones go to the cloud"),
            Self::OfTokens => format!(
                "{SELECTIONS_OF_TOKENS_MAX} selections of callers with tokens are cached: further ones go to the cloud"
            ),
        }
    }

    /// True if a further selection would exceed it.
    pub(super) fn is_reached(self, counts: Counts) -> bool {
        match self {
            Self::All => counts.all >= SELECTIONS_MAX,
            Self::OfTokens => counts.of_tokens >= SELECTIONS_OF_TOKENS_MAX,
        }
    }
}

// === impl Counts ===

impl Counts {
    /// The limit that keeps a further selection out; `None` if there is room.
    pub(super) fn limit(self, is_of_node: bool) -> Option<Limit> {
        let concerns = |limit: &Limit| *limit == Limit::All || !is_of_node;
        let mut limits = Limit::EVERY.into_iter().filter(concerns);
        limits.find(|limit| limit.is_reached(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_with_tokens_reach_a_limit_of_their_own() {
        let limit = |all, of_tokens, is_of_node| Counts { all, of_tokens }.limit(is_of_node);
        let (all, of_tokens) = (SELECTIONS_MAX, SELECTIONS_OF_TOKENS_MAX);
        assert_eq!(limit(all - 1, of_tokens - 1, false), None);
        assert_eq!(limit(of_tokens, of_tokens, false), Some(Limit::OfTokens));
        assert_eq!(limit(of_tokens, of_tokens, true), None);
        for is_of_node in [true, false] {
            assert_eq!(limit(all, 0, is_of_node), Some(Limit::All));
        }
    }
}
