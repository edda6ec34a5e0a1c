//! Names of clients in ConfigMap `yurt-hub-cfg`: components and service accounts. Pure.

/// Maximum length of a component's name: the first part of a User-Agent, bytes.
pub const COMPONENT_MAX: usize = 63;
/// Begin of the user name of a service account; its namespace and its name follow, separated by a colon.
pub const ACCOUNT_PREFIX: &str = "system:serviceaccount:";
/// Maximum length of the namespace and of the name of a service account, bytes.
const ACCOUNT_MAX: (usize, usize) = (63, 253);

/// True if `name` is the name of a component: the begin of a User-Agent, in lower case. It is no path of a file.
#[must_use]
pub fn is_component(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
    let begins = name.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric());
    begins && name.len() <= COMPONENT_MAX && name.bytes().all(is_part)
}

/// True if `name` is the user name of a service account. No component has such a name, because it has colons.
#[must_use]
pub fn is_account(name: &str) -> bool {
    let is_part = |part: &str, max| {
        let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
        (1..=max).contains(&part.len()) && part.bytes().all(is_inner)
    };
    let account = name.strip_prefix(ACCOUNT_PREFIX).and_then(|rest| rest.split_once(':'));
    account.is_some_and(|(namespace, name)| is_part(namespace, ACCOUNT_MAX.0) && is_part(name, ACCOUNT_MAX.1))
}
