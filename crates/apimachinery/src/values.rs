//! Syntax of single values other than names: keys of ConfigMaps, ports, IP addresses, names of environment variables.
//! Each function lists the errors of a value, with kube-apiserver's texts.

use core::fmt::Display;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::meta::{dns_label_errors, dns_subdomain_errors};

/// Longest key of a ConfigMap or Secret.
const KEY_MAX_LEN: usize = 253;
/// Longest name of a port.
const PORT_NAME_MAX_LEN: usize = 15;
/// Protocols that a port may have, in the order messages list them.
pub const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];

/// Errors of a key of a ConfigMap or Secret.
pub fn config_key_errors(key: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if key.len() > KEY_MAX_LEN {
        errors.push(format!("must be no more than {KEY_MAX_LEN} characters"));
    }
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if key.is_empty() || !key.bytes().all(is_allowed) {
        errors.push(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or \
             'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
                .to_owned(),
        );
    }
    errors.extend(path_errors(key));
    errors
}

fn path_errors(key: &str) -> Option<String> {
    match key {
        "." | ".." => Some(format!("must not be '{key}'")),
        _ if key.starts_with("..") => Some("must not start with '..'".to_owned()),
        _ => None,
    }
}

/// Errors of the name of an environment variable: anything printable but `=`, as since 1.34.
pub fn env_name_errors(name: &str) -> Vec<String> {
    if name.is_empty() {
        return vec!["environment variable name must not be empty".to_owned()];
    }
    let is_allowed = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b'=';
    if name.bytes().all(is_allowed) {
        return Vec::new();
    }
    vec!["a valid environment variable name must consist only of printable ASCII characters other than '='".to_owned()]
}

/// Errors of a port number.
pub fn port_number_errors(port: i64) -> Vec<String> {
    range_errors(port, 1, 65535)
}

/// Errors of a number that has to be in a range.
pub fn range_errors(number: i64, low: i64, high: i64) -> Vec<String> {
    if (low..=high).contains(&number) {
        Vec::new()
    } else {
        vec![format!("must be between {low} and {high}, inclusive")]
    }
}

/// Errors of the name of a port.
pub fn port_name_errors(name: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if name.len() > PORT_NAME_MAX_LEN {
        errors.push(format!("must be no more than {PORT_NAME_MAX_LEN} characters"));
    }
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if name.is_empty() || !name.bytes().all(is_allowed) {
        errors.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !name.bytes().any(|byte| byte.is_ascii_lowercase()) {
        errors.push("must contain at least one letter (a-z)".to_owned());
    }
    if name.contains("--") {
        errors.push("must not contain consecutive hyphens".to_owned());
    }
    if name.starts_with('-') || name.ends_with('-') {
        errors.push("must not begin or end with a hyphen".to_owned());
    }
    errors
}

/// An address as accepted by fields that are older than strict parsing; leading zeros are read as decimal.
fn parse_sloppy(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse() {
        return Some(address);
    }
    let parts: Vec<u8> = text.split('.').map(decimal_octet).collect::<Option<_>>()?;
    let octets: [u8; 4] = parts.try_into().ok()?;
    Some(IpAddr::V4(Ipv4Addr::from(octets)))
}

fn decimal_octet(text: &str) -> Option<u8> {
    let is_decimal = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.trim_start_matches('0')
        .parse()
        .ok()
        .or_else(|| {
            is_decimal
                .then_some(0)
                .filter(|_| text.bytes().all(|byte| byte == b'0'))
        })
        .filter(|_| is_decimal)
}

/// Warnings about the form of an address; empty if the text is no address.
pub fn ip_warnings(field: impl Display, text: &str) -> Vec<String> {
    let Some(address) = parse_sloppy(text) else {
        return Vec::new();
    };
    let mapped = match address {
        IpAddr::V6(address) => address.to_ipv4_mapped().map(IpAddr::V4),
        IpAddr::V4(_) => None,
    };
    let quoted = || crate::text::go_quote(text);
    if text.parse::<IpAddr>().is_err() || mapped.is_some() {
        let (quoted, plain) = (quoted(), mapped.unwrap_or(address));
        return vec![format!(
            "{field}: non-standard IP address {quoted} is invalid: use \"{plain}\""
        )];
    }
    if address.is_ipv6() && address.to_string() != text {
        let quoted = quoted();
        return vec![format!(
            "{field}: IPv6 address {quoted} should be in RFC 5952 canonical format (\"{address}\")"
        )];
    }
    Vec::new()
}

/// Errors of a range of addresses in a field that is older than strict parsing.
pub fn cidr_errors(text: &str) -> Vec<String> {
    let parts = || {
        let (address, bits) = text.split_once('/')?;
        let parsed = parse_sloppy(address)?;
        let most = if parsed.is_ipv4() { 32 } else { 128 };
        let is_number = !bits.is_empty() && bits.bytes().all(|byte| byte.is_ascii_digit());
        let length = bits.parse::<u8>().ok().filter(|bits| is_number && *bits <= most)?;
        Some((address, parsed, bits, length))
    };
    let Some((address, parsed, bits, length)) = parts() else {
        return vec!["must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)".to_owned()];
    };
    if (parsed.is_ipv4() && address.parse::<Ipv4Addr>().is_err()) || (bits.len() > 1 && bits.starts_with('0')) {
        return vec!["must not have leading 0s in IP or prefix length".to_owned()];
    }
    let has_more = match parsed {
        IpAddr::V4(address) => address.to_bits().checked_shl(length.into()).unwrap_or_default() != 0,
        IpAddr::V6(address) => address.to_bits().checked_shl(length.into()).unwrap_or_default() != 0,
    };
    if has_more {
        return vec!["must not have bits set beyond the prefix length".to_owned()];
    }
    Vec::new()
}

/// True if a text is an IPv6 address in any form.
pub fn is_ipv6(text: &str) -> bool {
    parse_sloppy(text).is_some_and(|address| !counts_as_ipv4(address))
}

/// True if a text is an IPv4 address in any form.
pub fn is_ipv4(text: &str) -> bool {
    parse_sloppy(text).is_some_and(counts_as_ipv4)
}

/// An IPv4-mapped address counts as IPv4, as in Go.
fn counts_as_ipv4(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => true,
        IpAddr::V6(address) => address.to_ipv4_mapped().is_some(),
    }
}

/// Errors of an IP address in a field that is older than strict parsing.
pub fn legacy_ip_errors(text: &str) -> Vec<String> {
    match parse_sloppy(text) {
        None => vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".to_owned()],
        Some(IpAddr::V4(_)) if text.parse::<Ipv4Addr>().is_err() => vec!["must not have leading 0s".to_owned()],
        Some(IpAddr::V6(address)) if address.to_ipv4_mapped().is_some() => {
            vec!["must not be an IPv4-mapped IPv6 address".to_owned()]
        }
        Some(_) => Vec::new(),
    }
}

/// Errors of an IP address in a field that wants the canonical form.
pub fn strict_ip_errors(text: &str) -> Vec<String> {
    let errors = legacy_ip_errors(text);
    match text.parse::<Ipv6Addr>() {
        Ok(address) if errors.is_empty() && address.to_string() != text => {
            vec![format!("must be in canonical form (\"{address}\")")]
        }
        _ => errors,
    }
}

/// Errors of an address that receives traffic.
pub fn endpoint_ip_errors(text: &str) -> Vec<String> {
    let Some(address) = parse_sloppy(text) else {
        return vec!["must be a valid IP address".to_owned()];
    };
    let mapped = match address {
        IpAddr::V6(address) => address.to_ipv4_mapped().map(IpAddr::V4),
        IpAddr::V4(_) => None,
    };
    let address = mapped.unwrap_or(address);
    let (is_link_local, is_link_local_multicast) = match address {
        IpAddr::V4(v4) => (v4.is_link_local(), v4.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(v6) => (v6.is_unicast_link_local(), v6.segments()[0] & 0xff0f == 0xff02),
    };
    let mut errors = Vec::new();
    if address.is_unspecified() {
        errors.push(format!("may not be unspecified ({text})"));
    }
    if address.is_loopback() {
        errors.push("may not be in the loopback range (127.0.0.0/8, ::1/128)".to_owned());
    }
    if is_link_local {
        errors.push("may not be in the link-local range (169.254.0.0/16, fe80::/10)".to_owned());
    }
    if is_link_local_multicast {
        errors.push("may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)".to_owned());
    }
    errors
}

/// Errors of a domain name with at least two segments.
pub fn domain_name_errors(text: &str) -> Vec<String> {
    let name = text.strip_suffix('.').unwrap_or(text);
    let errors = dns_subdomain_errors(name);
    if !errors.is_empty() {
        return vec![errors.join(",")];
    }
    if !name.contains('.') {
        return vec!["should be a domain with at least two segments separated by dots".to_owned()];
    }
    let of_label = |label: &str| Some(dns_label_errors(label)).filter(|errors| !errors.is_empty());
    let bad = name.split('.').find_map(of_label);
    bad.into_iter().map(|errors| errors.join(",")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_odd_forms_of_addresses_are_told() {
        for good in ["10.1.0.0/24", "2001:db8::/64", "0.0.0.0/0", "10.1.2.3/32", "::1/128"] {
            assert!(cidr_errors(good).is_empty(), "{good}");
        }
        for bad in [
            "10.1.0.0",
            "10.1.0.0/33",
            "::/129",
            "x/1",
            "10.1.0.0/+1",
            "",
            "10.1.2.3/0",
            "::1/64",
            "010.1.0.0/24",
            "10.1.0.0/024",
        ] {
            assert_eq!(cidr_errors(bad).len(), 1, "{bad}");
        }
        let said = |text: &str| ip_warnings("f", text).join("");
        assert_eq!((said("10.0.0.1"), said("2001:db8::1"), said("x")), Default::default());
        assert_eq!(
            said("010.0.0.1"),
            "f: non-standard IP address \"010.0.0.1\" is invalid: use \"10.0.0.1\""
        );
        assert_eq!(
            said("::ffff:10.0.0.1"),
            "f: non-standard IP address \"::ffff:10.0.0.1\" is invalid: use \"10.0.0.1\""
        );
        assert_eq!(
            said("2001:DB8::1"),
            "f: IPv6 address \"2001:DB8::1\" should be in RFC 5952 canonical format (\"2001:db8::1\")"
        );
    }

    #[test]
    fn config_keys() {
        assert!(config_key_errors("a.b_C-1").is_empty() && config_key_errors(".a").is_empty());
        assert_eq!(config_key_errors(".."), ["must not be '..'"]);
        assert_eq!(config_key_errors("..a"), ["must not start with '..'"]);
        assert_eq!(config_key_errors("a b").len(), 1);
        assert_eq!(config_key_errors(&"a".repeat(253)).len(), 0);
        assert_eq!(
            config_key_errors(&"a".repeat(254)),
            ["must be no more than 253 characters"]
        );
    }

    #[test]
    fn addresses() {
        assert_eq!(legacy_ip_errors("010.1.1.1"), ["must not have leading 0s"]);
        assert_eq!(
            legacy_ip_errors("::ffff:1.2.3.4"),
            ["must not be an IPv4-mapped IPv6 address"]
        );
        for bad in ["", "x", "1.2.3", "1.2.3.4.5", "256.1.1.1", "+1.2.3.4", "1..2.3"] {
            assert_eq!(legacy_ip_errors(bad).len(), 1, "{bad}");
        }
        assert!(legacy_ip_errors("10.0.0.0").is_empty() && legacy_ip_errors("2001:db8::1").is_empty());
        assert_eq!(
            strict_ip_errors("2001:0db8::1"),
            ["must be in canonical form (\"2001:db8::1\")"]
        );
        for bad in [
            "127.0.0.1",
            "::1",
            "0.0.0.0",
            "169.254.0.9",
            "224.0.0.3",
            "fe80::1",
            "ff02::5",
        ] {
            assert_eq!(endpoint_ip_errors(bad).len(), 1, "{bad}");
        }
        assert!(endpoint_ip_errors("10.0.0.1").is_empty());
        assert!(is_ipv6("::1") && !is_ipv6("::ffff:1.2.3.4") && is_ipv4("1.2.3.4") && !is_ipv4("x"));
    }

    #[test]
    fn ports_and_domains() {
        assert!(port_number_errors(65535).is_empty() && port_number_errors(0) == port_number_errors(65536));
        assert!(port_name_errors("http-2").is_empty());
        assert_eq!(port_name_errors("8-0").len(), 1);
        assert_eq!(port_name_errors("-a--b").len(), 2);
        assert!(domain_name_errors("a.b").is_empty() && domain_name_errors("a.b.").is_empty());
        assert_eq!(
            domain_name_errors("a"),
            ["should be a domain with at least two segments separated by dots"]
        );
        assert_eq!(domain_name_errors("A.b").len(), 1);
    }
}
