//! Impersonation: the `Impersonate-*` headers, and the rights they need.
//!
//! As kube-apiserver 1.36: first the constrained modes (`impersonate-on:<mode>:<verb>` for the request and
//! `impersonate:<mode>` for the user), then the old verb `impersonate`. The mode in which a node's agent acts as its own
//! node is left out; it can only allow more.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName};
use percent_encoding::percent_decode_str;
use tracing::debug;
use yurt_apimachinery::Status;
use yurt_apimachinery::meta::{dns_label_errors, dns_subdomain_errors};
use yurt_apimachinery::status::Denial;

use super::audit::AuditContext;
use crate::app::App;
use crate::authn::{MASTERS, NODE_PREFIX, NODES, SERVICE_ACCOUNT_PREFIX, SERVICE_ACCOUNTS, User};
use crate::authz::{Attributes, Decision};

const USER: HeaderName = HeaderName::from_static("impersonate-user");
const GROUP: HeaderName = HeaderName::from_static("impersonate-group");
const UID: HeaderName = HeaderName::from_static("impersonate-uid");
const EXTRA_PREFIX: &str = "impersonate-extra-";
const AUTHENTICATION: &str = "authentication.k8s.io";

/// Maximum number of values of these headers in one request.
const VALUES_MAX: usize = 256;

/// Checks if the real caller may do something.
type Authorize<'a> = &'a dyn Fn(&Attributes<'_>) -> Decision;

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

/// The user on whose behalf `requestor` asks. Removes the headers.
///
/// # Errors
/// 400 or 403 for a user it may not impersonate.
pub(super) fn impersonate(
    app: &App,
    headers: &mut HeaderMap,
    requestor: User,
    attributes: &Attributes<'_>,
    audit: &mut AuditContext<'_>,
) -> Result<User, Status> {
    let wanted = wanted(headers)?;
    strip(headers);
    let Some(wanted) = wanted else {
        return Ok(requestor);
    };
    let authorize = |attributes: &Attributes<'_>| app.authorize(&requestor, attributes);
    let user = permit(&requestor, &wanted, attributes, &authorize)?;
    debug!(requestor = requestor.name, user = user.name, "User impersonated");
    audit.impersonated(&user);
    Ok(user)
}

/// The user in the headers of a request; `None` without such headers.
///
/// # Errors
/// 400 for headers without a user, for values that are no text, and for too many values.
fn wanted(headers: &HeaderMap) -> Result<Option<User>, Status> {
    let unreadable = || Status::bad_request("impersonation headers must be text");
    let text = |name: &HeaderName| {
        let value = headers.get(name).map(|value| value.to_str().map_err(|_| unreadable()));
        value.transpose().map(Option::unwrap_or_default)
    };
    let mut user = User {
        name: text(&USER)?.to_owned(),
        uid: text(&UID)?.to_owned(),
        ..User::default()
    };
    let mut count = 0;
    for (name, value) in headers {
        let key = name.as_str().strip_prefix(EXTRA_PREFIX);
        if key.is_none() && *name != GROUP {
            continue;
        }
        count += 1;
        let value = value.to_str().map_err(|_| unreadable())?.to_owned();
        match key {
            None => user.groups.push(value),
            Some(key) => user.extra.entry(decoded(key)).or_default().push(value),
        }
    }
    if count > VALUES_MAX {
        return Err(Status::bad_request(format!(
            "more than {VALUES_MAX} impersonation headers"
        )));
    }
    if !user.name.is_empty() {
        return Ok(Some(user));
    }
    if count > 0 || !user.uid.is_empty() {
        return Err(Status::bad_request(format!(
            "requested {} without impersonating a user name",
            user.info()
        )));
    }
    Ok(None)
}

/// Decodes a percent-encoded key; an invalid one stays unchanged.
fn decoded(key: &str) -> String {
    if !yurt_apimachinery::query::escapes_are_valid(key) {
        return key.to_owned();
    }
    percent_decode_str(key)
        .decode_utf8()
        .map_or_else(|_| key.to_owned(), std::borrow::Cow::into_owned)
}

/// Removes the headers from a request, so that later code can neither read nor forward them.
fn strip(headers: &mut HeaderMap) {
    let is_ours = |name: &HeaderName| [USER, GROUP, UID].contains(name) || name.as_str().starts_with(EXTRA_PREFIX);
    let names: Vec<HeaderName> = headers.keys().filter(|name| is_ours(name)).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

/// Checks if `requestor` may make the request of `attributes` as `wanted`. Returns the resulting user.
///
/// # Errors
/// 403 with the first missing right.
fn permit(
    requestor: &User,
    wanted: &User,
    attributes: &Attributes<'_>,
    authorize: Authorize<'_>,
) -> Result<User, Status> {
    let mut first = None;
    for mode in MODES.into_iter().filter(|mode| mode.applies(wanted)) {
        let check = Check {
            mode,
            requestor,
            authorize,
        };
        match check.run(wanted, attributes) {
            Ok(user) => return Ok(user),
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
        let verb = match self.mode {
            Mode::Legacy => "impersonate".to_owned(),
            mode => format!("impersonate:{}", mode.name()),
        };
        let mut user = self.named(wanted, &verb)?;
        if !wanted.uid.is_empty() {
            self.require(&about(&verb, AUTHENTICATION, "uids", &wanted.uid))?;
        }
        self.check_groups(&verb, &wanted.groups)?;
        self.check_extra(&verb, &wanted.extra)?;
        user.complete_groups();
        Ok(user)
    }

    /// The user with the groups that follow from its name.
    fn named(&self, wanted: &User, verb: &str) -> Result<User, Status> {
        let mut user = wanted.clone();
        let mut attributes = about(verb, self.mode.group(), "users", &wanted.name);
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

    fn check_groups(&self, verb: &str, groups: &[String]) -> Result<(), Status> {
        for group in groups {
            let attributes = about(verb, self.mode.group(), "groups", group);
            // The constrained modes never grant these.
            let refused = match group.as_str() {
                "" => "impersonating the empty string group is not allowed",
                MASTERS => "impersonating the system:masters group is not allowed",
                _ => "",
            };
            if self.mode != Mode::Legacy && !refused.is_empty() {
                return Err(self.denied(&attributes, refused));
            }
            self.require(&attributes)?;
        }
        Ok(())
    }

    fn check_extra(&self, verb: &str, extra: &BTreeMap<String, Vec<String>>) -> Result<(), Status> {
        for (key, values) in extra {
            for value in values {
                let mut attributes = about(verb, AUTHENTICATION, "userextras", value);
                attributes.subresource = key;
                if self.mode != Mode::Legacy && (key.is_empty() || value.is_empty()) {
                    let why = "impersonating the empty string in extra is not allowed";
                    return Err(self.denied(&attributes, why));
                }
                self.require(&attributes)?;
            }
        }
        Ok(())
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

fn about<'a>(verb: &'a str, group: &'a str, resource: &'a str, name: &'a str) -> Attributes<'a> {
    Attributes {
        verb,
        group,
        resource,
        name,
        ..Attributes::default()
    }
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
    use http::HeaderValue;

    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            let name: HeaderName = name.parse().unwrap();
            headers.append(name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    /// Result for a caller with exactly these rights (`verb resource[/sub][.group] [ns/]name`).
    fn permitted(rights: &[&str], pairs: &[(&str, &str)]) -> Result<User, String> {
        let wanted = wanted(&headers(pairs)).unwrap().unwrap();
        let request = about("list", "", "pods", "");
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

    /// Conformance: 6.10
    #[test]
    fn headers_without_a_user_are_refused_and_all_are_taken_out() {
        for alone in [
            ("impersonate-group", "a"),
            ("impersonate-uid", "a"),
            ("impersonate-extra-a", "b"),
        ] {
            assert_eq!(wanted(&headers(&[alone])).unwrap_err().code(), 400, "{alone:?}");
        }
        assert_eq!(wanted(&headers(&[("x-remote-user", "a")])).unwrap(), None);
        let many = vec![("impersonate-group", "a"); VALUES_MAX + 1];
        let user = [("impersonate-user", "a")];
        assert!(wanted(&headers(&[&many[1..], &user].concat())).is_ok());
        assert_eq!(wanted(&headers(&[&many[..], &user].concat())).unwrap_err().code(), 400);
        let mut all = headers(&[
            ("impersonate-user", "a"),
            ("impersonate-extra-X", "b"),
            ("impersonate-group", "c"),
            ("accept", "*"),
        ]);
        strip(&mut all);
        assert_eq!(all.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["accept"]);
    }
}
