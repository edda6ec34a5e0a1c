//! Modes of impersonation, and the rights that each needs.
//!
//! As kube-apiserver 1.36: first the constrained modes (`impersonate-on:<mode>:<verb>` for the request and
//! `impersonate:<mode>` for the user), then the old verb `impersonate`. The mode in which a node's agent acts as its
//! own node is left out; it can only allow more.

use std::collections::BTreeMap;

use yurt_apimachinery::Status;
use yurt_apimachinery::meta::{dns_label_errors, dns_subdomain_errors, domain_prefixed_path_errors};
use yurt_apimachinery::status::Denial;
use yurt_apimachinery::text::go_quote;

use crate::authn::{MASTERS, NODE_PREFIX, NODES, SERVICE_ACCOUNT_PREFIX, SERVICE_ACCOUNTS, User};
use crate::authz::{Attributes, Decision};

const AUTHENTICATION: &str = "authentication.k8s.io";

/// Number of groups, or of values of `extra`, from which a constrained mode asks first for the right to all of them.
const MANY: usize = 4;

/// Checks if the real caller may do something.
pub(super) type Authorize<'a> = &'a dyn Fn(&Attributes<'_>) -> Decision;

/// Mode of an impersonation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// A node, by its name alone.
    Node,
    /// A service account, by its name alone.
    ServiceAccount,
    /// Any other user.
    UserInfo,
    /// The verb `impersonate`, for every request of the impersonated user.
    Legacy,
}

const MODES: [Mode; 4] = [Mode::Node, Mode::ServiceAccount, Mode::UserInfo, Mode::Legacy];

/// A user who may be impersonated.
#[derive(Debug)]
pub(super) struct Permitted {
    pub(super) user: User,
    /// Verb of the constrained mode that permits it; `None` for the old verb.
    pub(super) constraint: Option<&'static str>,
}

/// Checks if `requestor` may make the request of `attributes` as `wanted`. Returns the resulting user.
///
/// # Errors
/// 403 with the first missing right.
pub(super) fn permit(
    requestor: &User,
    wanted: &User,
    attributes: &Attributes<'_>,
    authorize: Authorize<'_>,
) -> Result<Permitted, Status> {
    let mut first = None;
    for mode in MODES.into_iter().filter(|mode| mode.applies(wanted)) {
        let check = Check {
            mode,
            requestor,
            authorize,
        };
        match check.run(wanted, attributes) {
            Ok(user) => {
                let constraint = (mode != Mode::Legacy).then(|| mode.verb());
                return Ok(Permitted { user, constraint });
            }
            Err(status) => first = first.or(Some(status)),
        }
    }
    Err(first.unwrap_or_else(|| Status::internal("all impersonation modes failed")))
}

// === impl Mode ===

impl Mode {
    fn applies(self, wanted: &User) -> bool {
        let name_only = wanted.uid.is_empty() && wanted.groups.is_empty() && wanted.extra.is_empty();
        let (node, account) = (node_of(&wanted.name), account_of(&wanted.name));
        match self {
            Self::Node => name_only && node.is_some(),
            Self::ServiceAccount => name_only && account.is_some(),
            Self::UserInfo => node.is_none() && account.is_none(),
            Self::Legacy => true,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Node => "arbitrary-node",
            Self::ServiceAccount => "serviceaccount",
            Self::UserInfo => "user-info",
            Self::Legacy => "",
        }
    }

    /// Verb of the right to impersonate.
    fn verb(self) -> &'static str {
        match self {
            Self::Node => "impersonate:arbitrary-node",
            Self::ServiceAccount => "impersonate:serviceaccount",
            Self::UserInfo => "impersonate:user-info",
            Self::Legacy => "impersonate",
        }
    }

    /// Group of the pseudo-resources users and groups.
    fn group(self) -> &'static str {
        if self == Self::Legacy { "" } else { AUTHENTICATION }
    }
}

/// One mode, for one caller.
struct Check<'a> {
    mode: Mode,
    requestor: &'a User,
    authorize: Authorize<'a>,
}

// === impl Check ===

impl Check<'_> {
    fn run(&self, wanted: &User, request: &Attributes<'_>) -> Result<User, Status> {
        if self.mode != Mode::Legacy {
            let verb = format!("impersonate-on:{}:{}", self.mode.name(), request.verb);
            self.require(&Attributes {
                verb: &verb,
                ..request.clone()
            })?;
        }
        let mut user = self.named(wanted)?;
        if !wanted.uid.is_empty() {
            self.require(&self.about(AUTHENTICATION, "uids", &wanted.uid))?;
        }
        self.check_groups(&wanted.groups)?;
        self.check_extra(&wanted.extra)?;
        user.complete_groups();
        Ok(user)
    }

    /// The user with the groups that follow from its name.
    fn named(&self, wanted: &User) -> Result<User, Status> {
        let mut user = wanted.clone();
        let mut attributes = self.about(self.mode.group(), "users", &wanted.name);
        if self.mode == Mode::Node
            && let Some(node) = node_of(&wanted.name)
        {
            (attributes.resource, attributes.name) = ("nodes", node);
            user.groups = vec![NODES.to_owned()];
        }
        if let Some((namespace, name)) = account_of(&wanted.name) {
            (attributes.resource, attributes.namespace, attributes.name) = ("serviceaccounts", namespace, name);
            if wanted.groups.is_empty() {
                user.groups = vec![SERVICE_ACCOUNTS.to_owned(), format!("{SERVICE_ACCOUNTS}:{namespace}")];
            }
        }
        self.require(&attributes)?;
        Ok(user)
    }

    fn check_groups(&self, groups: &[String]) -> Result<(), Status> {
        let about = |name| self.about(self.mode.group(), "groups", name);
        if self.mode != Mode::Legacy {
            if groups.iter().any(String::is_empty) {
                return Err(self.denied(&about(""), "impersonating the empty string group is not allowed"));
            }
            if groups.iter().any(|group| group == MASTERS) {
                let why = "impersonating the system:masters group is not allowed";
                return Err(self.denied(&about(MASTERS), why));
            }
            if groups.len() >= MANY && self.require(&about("*")).is_ok() {
                return Ok(());
            }
        }
        groups.iter().try_for_each(|group| self.require(&about(group)))
    }

    fn check_extra(&self, extra: &BTreeMap<String, Vec<String>>) -> Result<(), Status> {
        let about = |key, value| Attributes {
            subresource: key,
            ..self.about(AUTHENTICATION, "userextras", value)
        };
        if self.mode != Mode::Legacy {
            for (key, values) in extra {
                extra_fault(key, values).map_or(Ok(()), |why| Err(self.denied(&about("", ""), &why)))?;
            }
            let is_large = extra.values().map(Vec::len).sum::<usize>() >= MANY;
            if is_large && self.require(&about("*", "*")).is_ok() {
                return Ok(());
            }
        }
        let mut values = extra
            .iter()
            .flat_map(|(key, values)| values.iter().map(move |value| (key, value)));
        values.try_for_each(|(key, value)| self.require(&about(key, value)))
    }

    fn about<'a>(&self, group: &'a str, resource: &'a str, name: &'a str) -> Attributes<'a> {
        Attributes {
            verb: self.mode.verb(),
            group,
            resource,
            name,
            ..Attributes::default()
        }
    }

    fn require(&self, attributes: &Attributes<'_>) -> Result<(), Status> {
        match (self.authorize)(attributes) {
            Decision::Allowed(_) => Ok(()),
            Decision::Denied(why) => Err(self.denied(attributes, &why)),
        }
    }

    fn denied(&self, attributes: &Attributes<'_>, why: &str) -> Status {
        Status::denied(&Denial {
            user: &self.requestor.name,
            verb: attributes.verb,
            path: attributes.path,
            group: attributes.group,
            resource: attributes.resource,
            subresource: attributes.subresource,
            namespace: attributes.namespace,
            name: attributes.name,
            why,
        })
    }
}

/// Reason for which the constrained modes reject values of `extra`.
fn extra_fault(key: &str, values: &[String]) -> Option<String> {
    if key.is_empty() {
        return Some("impersonating the empty string key in extra is not allowed".to_owned());
    }
    let faults = domain_prefixed_path_errors("extra.key", key);
    if !faults.is_empty() {
        let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
        let why = match &faults[..] {
            [one] => one.clone(),
            all => format!("[{}]", all.join(", ")),
        };
        return Some(format!("impersonating an invalid key in extra is not allowed: {why}"));
    }
    if key.to_lowercase() != key {
        let key = go_quote(key);
        return Some(format!(
            "impersonating a non-lowercase key in extra is not allowed: {key}"
        ));
    }
    let has_empty = values.iter().any(String::is_empty);
    has_empty.then(|| "impersonating the empty string value in extra is not allowed".to_owned())
}

fn node_of(user: &str) -> Option<&str> {
    let node = user.strip_prefix(NODE_PREFIX)?;
    dns_subdomain_errors(node).is_empty().then_some(node)
}

fn account_of(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix(SERVICE_ACCOUNT_PREFIX)?.split_once(':')?;
    let is_valid = dns_label_errors(namespace).is_empty() && dns_subdomain_errors(name).is_empty();
    is_valid.then_some((namespace, name))
}

#[cfg(test)]
mod tests {
    use super::super::tests::headers;
    use super::super::wanted;
    use super::*;

    /// Result for a caller with exactly these rights (`verb resource[/sub][.group] [ns/]name`).
    fn permitted(rights: &[&str], pairs: &[(&str, &str)]) -> Result<User, String> {
        check(rights, pairs).map(|permitted| permitted.user)
    }

    /// As [`permitted`], with the mode.
    fn check(rights: &[&str], pairs: &[(&str, &str)]) -> Result<Permitted, String> {
        let wanted = wanted(&headers(pairs)).unwrap().unwrap();
        let request = Attributes {
            verb: "list",
            resource: "pods",
            ..Attributes::default()
        };
        let authorize = |asked: &Attributes<'_>| {
            let mut cell = format!("{} {}", asked.verb, asked.resource);
            for (separator, part) in [("/", asked.subresource), (".", asked.group), (" ", asked.namespace)] {
                if !part.is_empty() {
                    cell += &format!("{separator}{part}");
                }
            }
            cell += &format!(" {}", asked.name);
            if rights.contains(&cell.trim_end()) {
                Decision::allowed()
            } else {
                Decision::Denied(String::new())
            }
        };
        permit(&User::new("jane", &[]), &wanted, &request, &authorize).map_err(|status| status.to_string())
    }

    /// Conformance: 6.10
    #[test]
    fn every_part_of_the_wanted_user_needs_its_own_right() {
        let pairs = [
            ("Impersonate-User", "bob"),
            ("impersonate-GROUP", "dev"),
            ("Impersonate-Group", "ops"),
            ("impersonate-uid", "u1"),
            ("Impersonate-Extra-Acme.com%2Fproject", "x"),
        ];
        let rights = [
            "impersonate users bob",
            "impersonate groups dev",
            "impersonate groups ops",
            "impersonate uids.authentication.k8s.io u1",
            "impersonate userextras/acme.com/project.authentication.k8s.io x",
        ];
        let user = permitted(&rights, &pairs).unwrap();
        assert_eq!((user.name.as_str(), user.uid.as_str()), ("bob", "u1"));
        assert_eq!(user.groups, ["dev", "ops", "system:authenticated"]);
        assert_eq!(user.extra["acme.com/project"], ["x"]);
        for missing in 0..rights.len() {
            let mut fewer = rights.to_vec();
            fewer.remove(missing);
            let why = permitted(&fewer, &pairs).unwrap_err();
            assert!(
                why.contains("cannot impersonate-on:user-info:list resource \"pods\""),
                "{why}"
            );
        }
    }

    /// Conformance: 6.10
    #[test]
    fn groups_follow_from_the_name_where_none_are_asked_for() {
        let account = [("Impersonate-User", "system:serviceaccount:ns:robot")];
        let user = permitted(&["impersonate serviceaccounts ns robot"], &account).unwrap();
        let groups = [
            "system:serviceaccounts",
            "system:serviceaccounts:ns",
            "system:authenticated",
        ];
        assert_eq!(user.groups, groups);
        let anonymous = permitted(
            &["impersonate users system:anonymous"],
            &[("Impersonate-User", "system:anonymous")],
        );
        assert_eq!(anonymous.unwrap(), User::anonymous());
        let pairs = [
            ("Impersonate-User", "x"),
            ("Impersonate-Group", "system:unauthenticated"),
        ];
        let rights = ["impersonate users x", "impersonate groups system:unauthenticated"];
        assert_eq!(permitted(&rights, &pairs).unwrap().groups, ["system:unauthenticated"]);
    }

    /// Conformance: 6.11
    #[test]
    fn constrained_modes_come_first_and_never_give_masters() {
        let on = "impersonate-on:user-info:list pods";
        let bob = [("Impersonate-User", "bob")];
        assert!(
            permitted(&[on], &bob)
                .unwrap_err()
                .contains("cannot impersonate:user-info resource \"users\"")
        );
        let name = "impersonate:user-info users.authentication.k8s.io bob";
        assert_eq!(permitted(&[on, name], &bob).unwrap().groups, ["system:authenticated"]);
        let masters = [("Impersonate-User", "bob"), ("Impersonate-Group", "system:masters")];
        let group = "impersonate:user-info groups.authentication.k8s.io system:masters";
        assert!(
            permitted(&[on, name, group], &masters)
                .unwrap_err()
                .contains("system:masters group is not allowed")
        );
        let node = [("Impersonate-User", "system:node:n1")];
        let rights = [
            "impersonate-on:arbitrary-node:list pods",
            "impersonate:arbitrary-node nodes.authentication.k8s.io n1",
        ];
        assert_eq!(permitted(&rights, &node).unwrap().node_name(), Some("n1"));
        let legacy = permitted(&["impersonate users system:node:n1"], &node).unwrap();
        assert_eq!(legacy.node_name(), None, "the old verb gives no groups with a name");
    }

    const ON: &str = "impersonate-on:user-info:list pods";
    const BOB: &str = "impersonate:user-info users.authentication.k8s.io bob";

    /// Conformance: 6.11
    #[test]
    fn audit_gets_the_verb_of_the_constrained_mode() {
        let constraint = |rights: &[&str], user| {
            let permitted = check(rights, &[("Impersonate-User", user)]);
            permitted.map(|permitted| permitted.constraint).unwrap()
        };
        assert_eq!(constraint(&[ON, BOB], "bob"), Some("impersonate:user-info"));
        assert_eq!(constraint(&["impersonate users bob"], "bob"), None);
        let account = [
            "impersonate-on:serviceaccount:list pods",
            "impersonate:serviceaccount serviceaccounts.authentication.k8s.io ns robot",
        ];
        let robot = "system:serviceaccount:ns:robot";
        assert_eq!(constraint(&account, robot), Some("impersonate:serviceaccount"));
    }

    /// Conformance: 6.11
    #[test]
    fn one_right_to_all_is_enough_for_four_groups_or_extra_values_in_a_constrained_mode() {
        let all = "impersonate:user-info groups.authentication.k8s.io *";
        let groups = [("Impersonate-Group", "a"); 4];
        let user = [("Impersonate-User", "bob")];
        let wants = |count: usize| [&user[..], &groups[..count]].concat();
        assert!(permitted(&[ON, BOB, all], &wants(4)).is_ok());
        assert!(permitted(&[ON, BOB, all], &wants(3)).is_err());
        let each = "impersonate:user-info groups.authentication.k8s.io a";
        assert!(permitted(&[ON, BOB, each], &wants(4)).is_ok());
        let legacy = ["impersonate users bob", "impersonate groups *"];
        assert!(permitted(&legacy, &wants(4)).is_err());
        let all = "impersonate:user-info userextras/*.authentication.k8s.io *";
        let values = [("Impersonate-Extra-Acme.com%2Fproject", "x"); 4];
        let wants = |count: usize| [&user[..], &values[..count]].concat();
        assert!(permitted(&[ON, BOB, all], &wants(4)).is_ok());
        assert!(permitted(&[ON, BOB, all], &wants(3)).is_err());
    }

    /// Conformance: 6.11
    #[test]
    fn extra_keys_of_the_constrained_modes_are_paths_below_a_domain() {
        let all = "impersonate:user-info userextras/*.authentication.k8s.io *";
        let refused = |key: &str, value: &str| {
            let header = format!("Impersonate-Extra-{key}");
            let mut pairs = vec![("Impersonate-User", "bob")];
            pairs.extend([(header.as_str(), value); 4]);
            let text = permitted(&[ON, BOB, all], &pairs).err()?;
            let (_, why) = text.split_once("at the cluster scope: ")?;
            Some(why.to_owned())
        };
        assert_eq!(refused("acme.com%2Fa%2F", "x"), None);
        for (key, value, why) in [
            ("", "x", "impersonating the empty string key in extra is not allowed"),
            (
                "acme.com%2Fa",
                "",
                "impersonating the empty string value in extra is not allowed",
            ),
            (
                "project",
                "x",
                "impersonating an invalid key in extra is not allowed: extra.key: Invalid value: \"project\": must be a \
                 domain-prefixed path (such as \"acme.io/foo\")",
            ),
            (
                "acme.com%2F%20",
                "x",
                "impersonating an invalid key in extra is not allowed: extra.key: Invalid value: \" \": Invalid path (regex \
                 used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')",
            ),
            (
                "acme.com%2F%41",
                "x",
                "impersonating a non-lowercase key in extra is not allowed: \"acme.com/A\"",
            ),
        ] {
            assert_eq!(refused(key, value).as_deref(), Some(why), "{key}");
        }
        let host = refused("a_b%2Fc", "x").unwrap();
        assert!(
            host.contains("extra.key: Invalid value: \"a_b\": a lowercase RFC 1123 subdomain"),
            "{host}"
        );
        let legacy = [
            "impersonate users bob",
            "impersonate userextras/project.authentication.k8s.io x",
        ];
        let pairs = [("Impersonate-User", "bob"), ("Impersonate-Extra-Project", "x")];
        assert!(permitted(&legacy, &pairs).is_ok());
    }
}
