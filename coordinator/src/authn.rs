//! Decides who a caller is: the subject of the client certificate, else anonymous.

use yurt_apimachinery::Status;
use yurt_runtime::tls::PeerIdentity;

/// A caller as authorization sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// CN of the certificate, or `system:anonymous`.
    pub name: String,
    /// Every O of the certificate, and `system:authenticated`.
    pub groups: Vec<String>,
}

/// Group whose members may do everything.
pub const MASTERS: &str = "system:masters";
/// Group of node certificates.
pub const NODES: &str = "system:nodes";
/// User name prefix of node certificates.
pub const NODE_PREFIX: &str = "system:node:";
/// User name prefix of service accounts; namespace, a colon and the name follow.
pub const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";
const ANONYMOUS: &str = "system:anonymous";
const AUTHENTICATED: &str = "system:authenticated";
const UNAUTHENTICATED: &str = "system:unauthenticated";

// === impl User ===

impl User {
    /// A caller with these groups, and `system:authenticated`.
    pub fn new(name: &str, groups: &[&str]) -> Self {
        let added = (!groups.contains(&AUTHENTICATED)).then_some(AUTHENTICATED);
        let groups = groups.iter().copied().chain(added).map(str::to_owned).collect();
        Self {
            name: name.to_owned(),
            groups,
        }
    }

    /// A caller without any credential.
    #[must_use]
    pub fn anonymous() -> Self {
        Self {
            name: ANONYMOUS.to_owned(),
            groups: vec![UNAUTHENTICATED.to_owned()],
        }
    }

    /// Whether the caller is in `group`.
    #[must_use]
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|one| one == group)
    }

    /// Whether no credential was given.
    #[must_use]
    pub fn is_anonymous(&self) -> bool {
        self.name == ANONYMOUS
    }

    /// The node this caller is, from a certificate `system:node:N` of group `system:nodes`.
    #[must_use]
    pub fn node_name(&self) -> Option<&str> {
        let name = self.name.strip_prefix(NODE_PREFIX).filter(|name| !name.is_empty())?;
        self.is_in(NODES).then_some(name)
    }

    /// Whether an election record `<node>_<process>` was written in the name of this caller's node.
    #[must_use]
    pub fn owns_identity(&self, holder_identity: &str) -> bool {
        let named = holder_identity.split_once('_').map(|(node, _)| node);
        self.node_name().is_some_and(|node| named == Some(node))
    }
}

/// Finds out who sent a request. A verified certificate wins over a bearer token, as in kube-apiserver.
///
/// # Errors
/// 401 for a bearer token: this version has no way to check one, and treating its bearer as anonymous would hide that.
pub fn authenticate(identity: Option<&PeerIdentity>, authorization: Option<&str>) -> Result<User, Status> {
    if let Some(identity) = identity.filter(|identity| !identity.common_name.is_empty()) {
        let groups: Vec<&str> = identity.organizations.iter().map(String::as_str).collect();
        return Ok(User::new(&identity.common_name, &groups));
    }
    let has_token = authorization
        .and_then(|value| value.split_once(' '))
        .is_some_and(|(scheme, token)| scheme.eq_ignore_ascii_case("bearer") && !token.trim().is_empty());
    if has_token {
        Err(Status::unauthorized())
    } else {
        Ok(User::anonymous())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(cn: &str, o: &[&str]) -> PeerIdentity {
        PeerIdentity {
            common_name: cn.into(),
            organizations: o.iter().map(|o| (*o).to_owned()).collect(),
        }
    }

    #[test]
    fn certificate_wins_over_token() {
        let identity = certificate("system:node:a", &["system:nodes"]);
        let user = authenticate(Some(&identity), Some("Bearer x")).unwrap();
        assert_eq!(user.node_name(), Some("a"));
        assert!(user.is_in("system:authenticated"));
    }

    #[test]
    fn token_alone_is_refused_and_nothing_is_anonymous() {
        assert_eq!(authenticate(None, Some("bEARER x")).unwrap_err().code(), 401);
        assert_eq!(authenticate(None, Some("Bearer ")).unwrap(), User::anonymous());
        assert_eq!(
            authenticate(Some(&certificate("", &[])), None).unwrap(),
            User::anonymous()
        );
    }

    #[test]
    fn node_needs_its_group_and_owns_only_its_own_identity() {
        assert_eq!(User::new("system:node:a", &[]).node_name(), None);
        let user = User::new("system:node:edge-1", &[NODES]);
        assert!(user.owns_identity("edge-1_0af3"));
        assert!(!user.owns_identity("edge-10_0af3") && !user.owns_identity("edge-1") && !user.owns_identity(""));
    }
}
