//! Claims of a service account token, and their validation. Pure: the clock and the objects come in.

use serde_json::{Value, json};
use yurt_apimachinery::json_text;

use super::{CREDENTIAL_ID, User};

/// Maximum difference between the clocks of issuer and server, in seconds.
const LEEWAY_SECONDS: i64 = 60;

const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
const NODE_UID: &str = "authentication.kubernetes.io/node-uid";

/// The claims of a token whose signature was verified.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claims {
    /// Issuer of the token.
    pub(crate) issuer: String,
    /// Its audiences.
    pub(crate) audiences: Vec<String>,
    /// Last second of its validity, since 1970.
    pub(crate) expires: i64,
    /// First second of its validity.
    pub(crate) not_before: i64,
    /// Second of its signing.
    pub(crate) issued: i64,
    /// Random id of the token; empty for old ones.
    pub(crate) id: String,
    /// Namespace of the service account.
    pub(crate) namespace: String,
    /// The service account.
    pub(crate) account: Bound,
    /// The pod the token is bound to.
    pub(crate) pod: Option<Bound>,
    /// The node it is bound to, or that its pod runs on.
    pub(crate) node: Option<Bound>,
    /// The Secret it is bound to.
    pub(crate) secret: Option<Bound>,
}

/// An object by name and uid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bound {
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// State of an object that a token is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BoundState {
    /// This server does not own objects of this kind: their state is unknown.
    Unserved,
    /// It does not exist.
    Missing,
    /// It exists; `gone_at` is its deletionTimestamp.
    There { uid: String, gone_at: Option<i64> },
}

/// Finds an object: plural, namespace, name.
pub(crate) type BoundObjects<'a> = &'a dyn Fn(&str, Option<&str>, &str) -> BoundState;

// === impl Claims ===

impl Claims {
    /// Parses the payload of a token; `None` when it is not one of a service account.
    pub(crate) fn read(payload: &[u8]) -> Option<Self> {
        let claims = json_text::parse_object(payload).ok()?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let audiences = match claims.get("aud") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::String(one)) => vec![one.clone()],
            Some(Value::Array(many)) => many.iter().map(text).collect::<Option<_>>()?,
            Some(_) => return None,
        };
        let moment = |name: &str| match claims.get(name) {
            None => Some(None),
            // Fractions are allowed; only whole seconds count here.
            Some(value) => value
                .as_i64()
                .or_else(|| value.as_f64().map(|secs| secs as i64))
                .map(Some),
        };
        let private = claims.get("kubernetes.io")?;
        let bound = |name: &str| {
            let bound = private.get(name).filter(|bound| bound.is_object())?;
            Some(Bound {
                name: text(&bound["name"])?,
                uid: text(&bound["uid"]).unwrap_or_default(),
            })
        };
        Some(Self {
            issuer: text(claims.get("iss")?)?,
            audiences,
            // A token without an end is never valid.
            expires: moment("exp")??,
            not_before: moment("nbf")?.unwrap_or(i64::MIN),
            issued: moment("iat")?.unwrap_or(i64::MIN),
            id: claims.get("jti").and_then(text).unwrap_or_default(),
            namespace: text(&private["namespace"]).filter(|namespace| !namespace.is_empty())?,
            account: bound("serviceaccount").filter(|account| !account.name.is_empty())?,
            pod: bound("pod"),
            node: bound("node"),
            secret: bound("secret"),
        })
    }

    /// Encodes the claims as the payload of a token.
    pub(crate) fn payload(&self) -> String {
        let bound = |bound: &Bound| {
            let mut object = json!({ "name": bound.name });
            if !bound.uid.is_empty() {
                object["uid"] = json!(bound.uid);
            }
            object
        };
        let mut private = json!({ "namespace": self.namespace, "serviceaccount": bound(&self.account) });
        for (name, object) in [("pod", &self.pod), ("node", &self.node), ("secret", &self.secret)] {
            if let Some(object) = object {
                private[name] = bound(object);
            }
        }
        let claims = json!({
            "aud": self.audiences, "exp": self.expires, "iat": self.issued, "iss": self.issuer, "jti": self.id,
            "kubernetes.io": private, "nbf": self.not_before,
            "sub": format!("system:serviceaccount:{}:{}", self.namespace, self.account.name),
        });
        claims.to_string()
    }

    /// The user of the token, if it is valid at `now`.
    ///
    /// # Errors
    /// The reason of its invalidity, with kube-apiserver's message.
    pub(crate) fn validate(&self, now: i64, lookup: BoundObjects<'_>) -> Result<User, String> {
        if now.saturating_sub(LEEWAY_SECONDS) > self.expires {
            return Err("service account token has expired".to_owned());
        }
        if now.saturating_add(LEEWAY_SECONDS) < self.not_before {
            return Err("service account token is not valid yet".to_owned());
        }
        if now.saturating_add(LEEWAY_SECONDS) < self.issued {
            return Err("service account token is issued in the future".to_owned());
        }
        self.check_bound(now, lookup)?;
        Ok(self.user())
    }

    fn check_bound(&self, now: i64, lookup: BoundObjects<'_>) -> Result<(), String> {
        let (namespace, account) = (self.namespace.as_str(), &self.account);
        let is_gone = |gone_at: Option<i64>| gone_at.is_some_and(|at| at < now.saturating_sub(LEEWAY_SECONDS));
        match lookup("serviceaccounts", Some(namespace), &account.name) {
            BoundState::Unserved => {}
            BoundState::Missing => return Err(format!("serviceaccounts \"{}\" not found", account.name)),
            BoundState::There { uid, .. } if uid != account.uid => {
                return Err(format!(
                    "service account UID ({uid}) does not match claim ({})",
                    account.uid
                ));
            }
            BoundState::There { gone_at, .. } if is_gone(gone_at) => {
                return Err(format!("service account {namespace}/{} has been deleted", account.name));
            }
            BoundState::There { .. } => {}
        }
        // In a token with a pod, the node is only the one where the pod runs.
        let node = self.node.as_ref().filter(|_| self.pod.is_none());
        for (plural, what, namespace, bound) in [
            ("secrets", "secret", Some(namespace), self.secret.as_ref()),
            ("pods", "pod", Some(namespace), self.pod.as_ref()),
            ("nodes", "node", None, node),
        ] {
            let Some(bound) = bound else { continue };
            match lookup(plural, namespace, &bound.name) {
                BoundState::Unserved => {}
                BoundState::There { uid, .. } if uid != bound.uid => {
                    return Err(format!(
                        "{what} UID ({uid}) does not match service account {what} ref claim ({})",
                        bound.uid
                    ));
                }
                BoundState::There { gone_at, .. } if !is_gone(gone_at) => {}
                BoundState::Missing | BoundState::There { .. } => {
                    return Err("service account token has been invalidated".to_owned());
                }
            }
        }
        Ok(())
    }

    fn user(&self) -> User {
        let mut user = User::service_account(&self.namespace, &self.account.name);
        user.uid.clone_from(&self.account.uid);
        let mut add = |key: &str, value: &str| {
            if !value.is_empty() {
                user.extra.insert(key.to_owned(), vec![value.to_owned()]);
            }
        };
        if !self.id.is_empty() {
            add(CREDENTIAL_ID, &format!("JTI={}", self.id));
        }
        if let Some(pod) = self.pod.as_ref().filter(|pod| !pod.uid.is_empty()) {
            add(POD_NAME, &pod.name);
            add(POD_UID, &pod.uid);
        }
        if let Some(node) = &self.node {
            add(NODE_NAME, &node.name);
            add(NODE_UID, &node.uid);
        }
        user
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000;

    fn claims() -> Claims {
        let bound = |name: &str| Bound {
            name: name.to_owned(),
            uid: format!("uid-{name}"),
        };
        Claims {
            issuer: "https://issuer".to_owned(),
            audiences: vec!["a".to_owned(), "b".to_owned()],
            expires: NOW + 600,
            not_before: NOW,
            issued: NOW,
            id: "random".to_owned(),
            namespace: "ns".to_owned(),
            account: bound("robot"),
            pod: Some(bound("web")),
            node: Some(bound("n1")),
            secret: None,
        }
    }

    /// Every object exists, with the right uid.
    fn all_there(_: &str, _: Option<&str>, name: &str) -> BoundState {
        BoundState::There {
            uid: format!("uid-{name}"),
            gone_at: None,
        }
    }

    #[test]
    fn claims_survive_their_own_writing() {
        assert_eq!(Claims::read(claims().payload().as_bytes()), Some(claims()));
    }

    /// Conformance: 6.04
    #[test]
    fn user_is_the_account_with_its_pod_and_node() {
        let user = claims().validate(NOW, &all_there).unwrap();
        assert_eq!(
            (user.name.as_str(), user.uid.as_str()),
            ("system:serviceaccount:ns:robot", "uid-robot")
        );
        for (key, value) in [
            (POD_NAME, "web"),
            (POD_UID, "uid-web"),
            (NODE_NAME, "n1"),
            (NODE_UID, "uid-n1"),
            (CREDENTIAL_ID, "JTI=random"),
        ] {
            assert_eq!(user.extra[key], [value]);
        }
    }

    /// Conformance: 6.04
    #[test]
    fn token_ends_with_its_time_and_with_what_it_is_bound_to() {
        let at = |now: i64| claims().validate(now, &all_there).map(|_| ());
        assert_eq!(at(NOW + 660), Ok(()));
        assert_eq!(at(NOW + 661).unwrap_err(), "service account token has expired");
        assert_eq!(at(NOW - 60), Ok(()));
        assert_eq!(at(NOW - 61).unwrap_err(), "service account token is not valid yet");
        for gone in ["serviceaccounts", "pods"] {
            for (found, holds) in [
                (BoundState::Missing, false),
                (BoundState::Unserved, true),
                (
                    BoundState::There {
                        uid: "other".to_owned(),
                        gone_at: None,
                    },
                    false,
                ),
            ] {
                let lookup = |plural: &str, namespace: Option<&str>, name: &str| {
                    if plural == gone {
                        found.clone()
                    } else {
                        all_there(plural, namespace, name)
                    }
                };
                assert_eq!(claims().validate(NOW, &lookup).is_ok(), holds, "{gone} {found:?}");
            }
            for (gone_at, holds) in [(NOW + 30, true), (NOW - 60, true), (NOW - 61, false)] {
                let lookup = |plural: &str, _: Option<&str>, name: &str| BoundState::There {
                    uid: format!("uid-{name}"),
                    gone_at: (plural == gone).then_some(gone_at),
                };
                assert_eq!(claims().validate(NOW, &lookup).is_ok(), holds, "{gone} {gone_at}");
            }
        }
        let no_node = |plural: &str, namespace: Option<&str>, name: &str| {
            if plural == "nodes" {
                BoundState::Missing
            } else {
                all_there(plural, namespace, name)
            }
        };
        assert!(
            claims().validate(NOW, &no_node).is_ok(),
            "the pod is what the token is bound to"
        );
        let on_node = Claims { pod: None, ..claims() };
        assert!(on_node.validate(NOW, &no_node).is_err());
    }

    #[test]
    fn what_is_not_a_service_accounts_token_is_not_read() {
        let good: Value = serde_json::from_str(&claims().payload()).unwrap();
        let spoil = |change: &dyn Fn(&mut Value)| {
            let mut claims = good.clone();
            change(&mut claims);
            Claims::read(claims.to_string().as_bytes())
        };
        assert!(spoil(&|_| {}).is_some());
        assert!(spoil(&|claims| claims["exp"] = json!(1.5e9)).is_some());
        assert!(spoil(&|claims| claims["exp"] = Value::Null).is_none());
        assert!(spoil(&|claims| claims["exp"] = json!("soon")).is_none());
        assert!(spoil(&|claims| claims["nbf"] = json!("soon")).is_none());
        assert!(spoil(&|claims| claims["aud"] = json!([1])).is_none());
        assert!(spoil(&|claims| claims["kubernetes.io"] = Value::Null).is_none());
        assert!(spoil(&|claims| claims["kubernetes.io"]["namespace"] = json!("")).is_none());
        assert!(spoil(&|claims| claims["kubernetes.io"]["serviceaccount"] = json!({})).is_none());
        assert!(Claims::read(b"[]").is_none() && Claims::read(b"").is_none());
    }
}
