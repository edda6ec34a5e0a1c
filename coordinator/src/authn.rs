//! Authentication: a caller is the subject of the client certificate, else the service account of a bearer token,
//! else anonymous.
//!
//! In reading order: this file ([`User`], the order of credentials), `tokens` (keys and issuers), `claims` (claims
//! of a token).

use std::collections::BTreeMap;

use serde_json::{Value, json};
use yurt_apimachinery::Status;
use yurt_runtime::tls::PeerIdentity;

pub(crate) mod claims;
pub(crate) mod tokens;

/// A caller as authorization sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct User {
    /// CN of the certificate, name of the service account, or `system:anonymous`.
    pub(crate) name: String,
    /// Unique over time; empty when unknown.
    pub(crate) uid: String,
    /// Every O of the certificate, and `system:authenticated`.
    pub(crate) groups: Vec<String>,
    /// Further attributes of the credential.
    pub(crate) extra: BTreeMap<String, Vec<String>>,
}

/// Group whose members may do everything.
pub(crate) const MASTERS: &str = "system:masters";
/// Group of node certificates.
pub(crate) const NODES: &str = "system:nodes";
/// User name prefix of node certificates.
pub(crate) const NODE_PREFIX: &str = "system:node:";
/// User name prefix of service accounts; namespace, a colon and the name follow.
pub(crate) const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";
/// Group of all service accounts; with a colon and a namespace, of those in it.
pub(crate) const SERVICE_ACCOUNTS: &str = "system:serviceaccounts";
/// User name of callers without a credential.
pub(crate) const ANONYMOUS: &str = "system:anonymous";
const AUTHENTICATED: &str = "system:authenticated";
const UNAUTHENTICATED: &str = "system:unauthenticated";
/// Key in `extra`: id of the credential that the caller presented.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

// === impl User ===

impl User {
    /// A caller with these groups, and `system:authenticated`.
    pub(crate) fn new(name: &str, groups: &[&str]) -> Self {
        let added = (!groups.contains(&AUTHENTICATED)).then_some(AUTHENTICATED);
        let groups = groups.iter().copied().chain(added).map(str::to_owned).collect();
        Self {
            name: name.to_owned(),
            groups,
            ..Self::default()
        }
    }

    /// A caller without any credential.
    #[must_use]
    pub(crate) fn anonymous() -> Self {
        Self {
            name: ANONYMOUS.to_owned(),
            groups: vec![UNAUTHENTICATED.to_owned()],
            ..Self::default()
        }
    }

    /// A service account.
    #[must_use]
    pub(crate) fn service_account(namespace: &str, name: &str) -> Self {
        let own_namespace = format!("{SERVICE_ACCOUNTS}:{namespace}");
        Self::new(
            &format!("{SERVICE_ACCOUNT_PREFIX}{namespace}:{name}"),
            &[SERVICE_ACCOUNTS, &own_namespace],
        )
    }

    /// The holder of a verified certificate.
    #[must_use]
    pub(crate) fn of_certificate(identity: &PeerIdentity) -> Self {
        let groups: Vec<&str> = identity.organizations.iter().map(String::as_str).collect();
        let mut user = Self::new(&identity.common_name, &groups);
        user.uid.clone_from(&identity.uid);
        let id = ["X509SHA256=", &identity.sha256].concat();
        user.extra.insert(CREDENTIAL_ID.to_owned(), vec![id]);
        user
    }

    /// True if the caller is in `group`.
    #[must_use]
    pub(crate) fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|one| one == group)
    }

    /// True if no credential was given, or the caller impersonates the anonymous user.
    #[must_use]
    pub(crate) fn is_anonymous(&self) -> bool {
        self.name == ANONYMOUS || self.is_in(UNAUTHENTICATED)
    }

    /// Adds `system:authenticated` or `system:unauthenticated`, unless the groups contain one of them already.
    pub(crate) fn complete_groups(&mut self) {
        let wanted = if self.name == ANONYMOUS {
            UNAUTHENTICATED
        } else if self.is_in(UNAUTHENTICATED) {
            return;
        } else {
            AUTHENTICATED
        };
        if !self.is_in(wanted) {
            self.groups.push(wanted.to_owned());
        }
    }

    /// JSON form of a user in reviews and audit events.
    #[must_use]
    pub(crate) fn info(&self) -> Value {
        let mut info = json!({ "username": self.name });
        if !self.uid.is_empty() {
            info["uid"] = json!(self.uid);
        }
        if !self.groups.is_empty() {
            info["groups"] = json!(self.groups);
        }
        if !self.extra.is_empty() {
            info["extra"] = json!(self.extra);
        }
        info
    }

    /// The caller's node, from a certificate `system:node:N` of group `system:nodes`.
    #[must_use]
    pub(crate) fn node_name(&self) -> Option<&str> {
        let name = self.name.strip_prefix(NODE_PREFIX).filter(|name| !name.is_empty())?;
        self.is_in(NODES).then_some(name)
    }

    /// True for a node certificate that names no node.
    pub(crate) fn is_unnamed_node(&self) -> bool {
        self.name == NODE_PREFIX && self.is_in(NODES)
    }

    /// True if an election record `<node>_<process>` was written in the name of this caller's node.
    #[must_use]
    pub(crate) fn owns_identity(&self, holder_identity: &str) -> bool {
        let named = holder_identity.split_once('_').map(|(node, _)| node);
        self.node_name().is_some_and(|node| named == Some(node))
    }
}

/// The bearer token of an `Authorization` header; an empty one counts as absent.
#[must_use]
pub(crate) fn bearer(authorization: Option<&str>) -> Option<&str> {
    let (scheme, token) = authorization?.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// Authenticates the sender of a request. A good certificate wins over a bearer token, as in kube-apiserver. A bad
/// one (`is_refused`) is ignored when the token is good. `check` returns the user of a token.
///
/// # Errors
/// 401 for a credential that identifies no user: treating its bearer as anonymous would hide that.
pub(crate) fn authenticate(
    identity: Option<&PeerIdentity>,
    is_refused: bool,
    authorization: Option<&str>,
    check: impl FnOnce(&str) -> Option<User>,
) -> Result<User, Status> {
    if let Some(identity) = identity.filter(|identity| !identity.common_name.is_empty()) {
        return Ok(User::of_certificate(identity));
    }
    match bearer(authorization) {
        Some(token) => check(token).ok_or_else(Status::unauthorized),
        None if is_refused => Err(Status::unauthorized()),
        None => Ok(User::anonymous()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(cn: &str, o: &[&str]) -> PeerIdentity {
        PeerIdentity {
            common_name: cn.into(),
            organizations: o.iter().map(|o| (*o).to_owned()).collect(),
            uid: "u1".into(),
            sha256: "a5".repeat(32),
        }
    }

    fn good(token: &str) -> Option<User> {
        (token == "good").then(|| User::service_account("ns", "sa"))
    }

    #[test]
    fn certificate_wins_over_token() {
        let identity = certificate("system:node:a", &["system:nodes"]);
        let user = authenticate(Some(&identity), false, Some("Bearer x"), good).unwrap();
        assert_eq!(user.node_name(), Some("a"));
        assert_eq!(user.groups, ["system:nodes", "system:authenticated"]);
        assert_eq!(user.uid, "u1");
        assert_eq!(user.extra[CREDENTIAL_ID], [format!("X509SHA256={}", "a5".repeat(32))]);
    }

    /// Conformance: 6.02, 6.03
    #[test]
    fn wrong_token_is_refused_and_nothing_is_anonymous() {
        assert_eq!(
            authenticate(None, false, Some("bEARER x"), good).unwrap_err().code(),
            401
        );
        for none in [None, Some("Bearer "), Some("Bearer"), Some("Basic good"), Some("")] {
            assert_eq!(
                authenticate(None, false, none, good).unwrap(),
                User::anonymous(),
                "{none:?}"
            );
        }
        assert_eq!(
            authenticate(Some(&certificate("", &[])), false, None, good).unwrap(),
            User::anonymous()
        );
        for bearer in ["Bearer good", "bearer  good ", "BEARER good"] {
            let user = authenticate(None, false, Some(bearer), good).unwrap();
            assert_eq!(user.name, "system:serviceaccount:ns:sa");
            let groups = [
                "system:serviceaccounts",
                "system:serviceaccounts:ns",
                "system:authenticated",
            ];
            assert_eq!(user.groups, groups);
        }
    }

    #[test]
    fn node_needs_its_group_and_owns_only_its_own_identity() {
        assert_eq!(User::new("system:node:a", &[]).node_name(), None);
        let user = User::new("system:node:edge-1", &[NODES]);
        assert!(user.owns_identity("edge-1_0af3"));
        assert!(!user.owns_identity("edge-10_0af3") && !user.owns_identity("edge-1") && !user.owns_identity(""));
    }
}
