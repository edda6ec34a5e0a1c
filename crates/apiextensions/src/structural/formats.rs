//! Formats: the rules of `format` for texts and integers. The set of formats, and the values each accepts, are as in
//! kube-apiserver, which is looser than the standards.

use core::net::Ipv6Addr;

use serde_json::Value;

use yurt_apimachinery::meta;

/// One format.
#[derive(Debug)]
pub(super) struct Format {
    /// As the schema spells it.
    pub(super) name: String,
    rule: Rule,
}

#[derive(Debug)]
enum Rule {
    Text(TextRule),
    Int32,
    /// Known by name; every value of the type is valid.
    Any,
}

type TextRule = fn(&str) -> bool;

/// Formats of texts, without their dashes. Other names have no effect.
const TEXTS: [(&str, TextRule); 21] = [
    ("byte", is_base64),
    ("cidr", is_cidr),
    ("date", is_date),
    ("datetime", is_date_time),
    ("duration", is_duration),
    ("email", is_email),
    ("hexcolor", is_hex_color),
    ("hostname", is_hostname),
    ("ipv4", is_ipv4),
    ("ipv6", is_ipv6),
    ("k8slongname", |text| meta::dns_subdomain_errors(text).is_empty()),
    ("k8sshortname", |text| meta::dns_label_errors(text).is_empty()),
    ("mac", is_mac),
    ("password", |_| true),
    ("rgbcolor", is_rgb_color),
    ("ssn", is_ssn),
    ("uri", is_uri),
    ("uuid", |text| is_uuid(text, None)),
    ("uuid3", |text| is_uuid(text, Some(b'3'))),
    ("uuid4", |text| is_uuid(text, Some(b'4'))),
    ("uuid5", |text| is_uuid(text, Some(b'5'))),
];

/// Formats of kube-apiserver that are not enforced here.
const UNKNOWN_HERE: [&str; 5] = ["bsonobjectid", "creditcard", "isbn", "isbn10", "isbn13"];

/// True if kube-apiserver would enforce the format of a schema, and this server does not.
pub(super) fn is_missed(schema: &Value) -> bool {
    let name = schema["format"].as_str().unwrap_or_default().replace('-', "");
    matches!(schema["type"].as_str(), None | Some("string")) && UNKNOWN_HERE.contains(&name.as_str())
}

// === impl Format ===

impl Format {
    /// The format of a schema, if it has one that applies to its type.
    pub(super) fn of(schema: &Value) -> Option<Self> {
        let name = schema["format"].as_str()?;
        let rule = match (schema["type"].as_str().unwrap_or("string"), name) {
            ("integer", "int32") => Rule::Int32,
            ("integer", "int64") | ("number", "float" | "double") => Rule::Any,
            ("string", _) => {
                let plain = name.replace('-', "");
                Rule::Text(TEXTS.iter().find(|(known, _)| *known == plain)?.1)
            }
            _ => return None,
        };
        let name = name.to_owned();
        Some(Self { name, rule })
    }

    /// True if it applies to texts.
    pub(super) fn is_of_text(&self) -> bool {
        matches!(self.rule, Rule::Text(_))
    }

    /// True if a text has the format; formats of numbers allow every text.
    pub(super) fn allows_text(&self, text: &str) -> bool {
        match self.rule {
            Rule::Text(allows) => allows(text),
            Rule::Int32 | Rule::Any => true,
        }
    }

    /// The same of a number.
    pub(super) fn allows_number(&self, number: &Value) -> bool {
        let fits = |number: f64| number >= f64::from(i32::MIN) && number <= f64::from(i32::MAX);
        !matches!(self.rule, Rule::Int32) || number.as_f64().is_none_or(fits)
    }
}

fn is_base64(text: &str) -> bool {
    let digits = text
        .strip_suffix("==")
        .or_else(|| text.strip_suffix('='))
        .unwrap_or(text);
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    !text.is_empty() && text.len().is_multiple_of(4) && digits.bytes().all(is_digit)
}

/// Leading zeros are allowed.
fn ipv4(text: &str) -> bool {
    let part = |part: &str| is_number(part) && part.parse::<u8>().is_ok();
    text.split('.').count() == 4 && text.split('.').all(part)
}

fn is_ipv4(text: &str) -> bool {
    ipv4(text) || (text.contains('.') && is_ipv6(text))
}

fn is_ipv6(text: &str) -> bool {
    text.parse::<Ipv6Addr>().is_ok()
}

fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else {
        return false;
    };
    let bits_max = match (ipv4(address), is_ipv6(address)) {
        (true, _) => 32,
        (_, true) => 128,
        _ => return false,
    };
    is_number(bits) && bits.parse::<u32>().is_ok_and(|bits| bits <= bits_max)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// `2006-01-02`.
fn is_date(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let [year, month, day] = parts.as_slice() else {
        return false;
    };
    let lengths = [year.len(), month.len(), day.len()] == [4, 2, 2];
    if !lengths || !parts.iter().all(|part| is_number(part)) {
        return false;
    }
    let number = |text: &str| text.parse::<u32>().unwrap_or_default();
    let (year, month, day) = (number(year), number(month), number(day));
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days = match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return false,
    };
    (1..=days).contains(&day)
}

/// `2006-01-02T15:04:05.999Z`, any character before the fraction.
fn is_date_time(text: &str) -> bool {
    let text = text.to_lowercase();
    let mut parts = text.split('t');
    let (Some(date), Some(time)) = (parts.next(), parts.next()) else {
        return false;
    };
    is_date(date) && is_time(time)
}

fn is_time(text: &str) -> bool {
    let two_below =
        |text: &str, limit: u32| text.len() == 2 && is_number(text) && text.parse().is_ok_and(|n: u32| n < limit);
    let (Some(hours), Some(":"), Some(minutes), Some(":"), Some(seconds), Some(rest)) = (
        text.get(..2),
        text.get(2..3),
        text.get(3..5),
        text.get(5..6),
        text.get(6..8),
        text.get(8..),
    ) else {
        return false;
    };
    let is_zone = |zone: &str| {
        let two = |from: usize| zone.get(from..from + 2).is_some_and(is_number);
        zone == "z"
            || (zone.len() == 6 && zone.starts_with(['+', '-']) && two(1) && zone.get(3..4) == Some(":") && two(4))
    };
    let without_fraction = |rest: &str| {
        let mut signs = rest.chars();
        signs.next();
        let digits = signs.as_str().trim_start_matches(|sign: char| sign.is_ascii_digit());
        (digits.len() < signs.as_str().len()).then(|| digits.to_owned())
    };
    let is_rest = is_zone(rest) || without_fraction(rest).is_some_and(|zone| is_zone(&zone));
    two_below(hours, 24) && two_below(minutes, 60) && two_below(seconds, 60) && is_rest
}

/// Go's durations, and a number with the name of a unit anywhere in the text.
fn is_duration(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    unsigned == "0" || is_go_duration(unsigned) || has_amount_of_time(text)
}

fn is_go_duration(text: &str) -> bool {
    let mut rest = text;
    while !rest.is_empty() {
        let after = rest.trim_start_matches(|sign: char| sign.is_ascii_digit() || sign == '.');
        let number = &rest[..rest.len() - after.len()];
        let unit_end = after
            .find(|sign: char| sign.is_ascii_digit() || sign == '.')
            .unwrap_or(after.len());
        let is_amount = number.parse::<f64>().is_ok();
        if !is_amount || !matches!(&after[..unit_end], "ns" | "us" | "µs" | "μs" | "ms" | "s" | "m" | "h") {
            return false;
        }
        rest = &after[unit_end..];
    }
    !text.is_empty()
}

fn has_amount_of_time(text: &str) -> bool {
    /// Names that must match exactly, and prefixes.
    const UNITS: [(&[&str], &str); 8] = [
        (&["ns"], "nano"),
        (&["us", "µs"], "micro"),
        (&["ms"], "milli"),
        (&["s"], "sec"),
        (&["m"], "min"),
        (&["h", "hr"], "hour"),
        (&["d"], "day"),
        (&["w", "wk"], "week"),
    ];
    let is_unit = |unit: &str| {
        UNITS
            .iter()
            .any(|(whole, beginning)| whole.contains(&unit) || unit.starts_with(beginning))
    };
    let mut rest = text;
    while let Some(at) = rest.find(|sign: char| sign.is_ascii_digit()) {
        let digits = &rest[at..];
        let after = digits
            .trim_start_matches(|sign: char| sign.is_ascii_digit())
            .trim_start();
        let end = after
            .find(|sign: char| !sign.is_ascii_alphabetic() && sign != 'µ')
            .unwrap_or(after.len());
        if is_unit(&after[..end].to_lowercase()) {
            return true;
        }
        rest = &after[end..];
    }
    false
}

/// One address, with or without a name before it.
fn is_email(text: &str) -> bool {
    let text = text.trim();
    let address = match text.strip_suffix('>') {
        Some(named) => named.rsplit_once('<').map_or("", |(_, address)| address),
        None => text,
    };
    let is_atom = |atom: &str| {
        let is_special = |sign: char| sign.is_control() || sign.is_whitespace() || "()<>[]:;@\\,\"".contains(sign);
        !atom.is_empty() && !atom.contains(is_special)
    };
    let is_quoted = |text: &str| text.len() > 2 && text.starts_with('"') && text.ends_with('"');
    address.rsplit_once('@').is_some_and(|(local, domain)| {
        (is_quoted(local) || local.split('.').all(is_atom)) && domain.split('.').all(is_atom)
    })
}

fn is_hex_color(text: &str) -> bool {
    let digits = text.strip_prefix('#').unwrap_or(text);
    matches!(digits.len(), 3 | 6) && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_rgb_color(text: &str) -> bool {
    let Some(parts) = text.strip_prefix("rgb(").and_then(|text| text.strip_suffix(')')) else {
        return false;
    };
    let is_part = |part: &str| {
        let part = part.trim();
        is_number(part) && (part == "0" || !part.starts_with('0')) && part.parse::<u8>().is_ok()
    };
    parts.split(',').count() == 3 && parts.split(',').all(is_part)
}

fn is_ssn(text: &str) -> bool {
    let parts: Vec<&str> = text.split(['-', ' ']).collect();
    let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    lengths == [3, 2, 4] && parts.iter().all(|part| is_number(part))
}

/// Labels of letters, digits, signs and dashes, none of them at an end; the last of several has letters only. A single
/// label has a dash in its second place at most.
fn is_hostname(text: &str) -> bool {
    let is_sign = |sign: char| sign.is_ascii_alphanumeric() || sign.is_alphabetic() || is_symbol(sign);
    let fits = |label: &str| label.len() <= 63;
    let labels: Vec<&str> = text.split('.').collect();
    if text.len() > 255 || !labels.iter().all(|label| fits(label)) {
        return false;
    }
    let (Some((last, others)), true) = (labels.split_last(), !text.is_empty()) else {
        return false;
    };
    if others.is_empty() {
        let mut signs = last.chars();
        let begins = signs.next().is_some_and(is_sign);
        let rest = signs.as_str();
        return begins && rest.strip_prefix('-').unwrap_or(rest).chars().all(is_sign);
    }
    let is_label = |label: &str| {
        let inner = |sign: char| is_sign(sign) || sign == '-';
        label.starts_with(is_sign) && label.ends_with(is_sign) && label.chars().all(inner)
    };
    let is_top = last.chars().count() >= 2 && last.chars().all(char::is_alphabetic);
    is_top && others.iter().all(|label| is_label(label))
}

/// ASCII symbols, and characters beyond ASCII that are neither letter nor number.
fn is_symbol(sign: char) -> bool {
    match sign {
        '$' | '+' | '<' | '=' | '>' | '^' | '`' | '|' | '~' => true,
        sign => !sign.is_ascii() && !sign.is_alphanumeric() && !sign.is_whitespace() && !sign.is_control(),
    }
}

/// 6, 8 or 20 bytes: pairs of digits with colons or dashes, or groups of four with dots.
fn is_mac(text: &str) -> bool {
    let groups = |separator: char, digits: usize| {
        let groups: Vec<&str> = text.split(separator).collect();
        let is_group = |group: &&str| group.len() == digits && group.bytes().all(|byte| byte.is_ascii_hexdigit());
        let bytes = groups.len() * digits / 2;
        groups.iter().all(is_group) && matches!(bytes, 6 | 8 | 20)
    };
    groups(':', 2) || groups('-', 2) || groups('.', 4)
}

/// An address with a scheme, or an absolute path.
fn is_uri(text: &str) -> bool {
    if text.bytes().any(|byte| byte.is_ascii_control()) || !has_whole_escapes(text) {
        return false;
    }
    if text.starts_with('/') {
        return true;
    }
    let Some((scheme, rest)) = text.split_once(':') else {
        return false;
    };
    let is_scheme = scheme.starts_with(|sign: char| sign.is_ascii_alphabetic())
        && scheme
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    is_scheme && rest.strip_prefix("//").is_none_or(has_authority)
}

/// True if every percent sign precedes two digits.
fn has_whole_escapes(text: &str) -> bool {
    let mut parts = text.split('%');
    parts.next();
    parts.all(|part| part.len() >= 2 && part.bytes().take(2).all(|byte| byte.is_ascii_hexdigit()))
}

fn has_authority(rest: &str) -> bool {
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let (name, port) = match host.rfind(']') {
        Some(end) => (&host[..=end], host[end + 1..].strip_prefix(':').unwrap_or("")),
        None => host.split_once(':').unwrap_or((host, "")),
    };
    let is_bad = |sign: char| sign == ' ' || "\"<>\\^`{|}".contains(sign);
    !name.contains(is_bad) && port.bytes().all(|byte| byte.is_ascii_digit())
}

/// Digits in groups of 8, 4, 4, 4 and 12, with or without dashes between them; the version, if any, is in the third
/// group.
fn is_uuid(text: &str, version: Option<u8>) -> bool {
    let mut rest = text.as_bytes();
    let mut digits = Vec::with_capacity(32);
    for (index, length) in [8, 4, 4, 4, 12].into_iter().enumerate() {
        if index > 0 {
            rest = rest.strip_prefix(b"-").unwrap_or(rest);
        }
        let Some((group, after)) = rest.split_at_checked(length) else {
            return false;
        };
        digits.extend_from_slice(group);
        rest = after;
    }
    let is_of_version = |version: u8| {
        let variant = digits[16].to_ascii_lowercase();
        digits[12] == version && (version == b'3' || matches!(variant, b'8' | b'9' | b'a' | b'b'))
    };
    rest.is_empty() && digits.iter().all(u8::is_ascii_hexdigit) && version.is_none_or(is_of_version)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Format, texts that are of it, texts that are not.
    const TEXTS_OF: &str = "
byte | YQ== YWI= YWJj | a YQ= YQ==YQ== *
cidr | 10.0.0.0/8 010.0.0.0/8 fd00::/8 | 10.0.0.0 10.0.0.0/33 10.0.0/8 x/8 fd00::/129
date | 2024-02-29 1999-12-31 | 2023-02-29 2024-13-01 2024-1-01 24-01-01
date-time | 2024-01-02T03:04:05Z 2024-01-02t03:04:05.123+01:00 2024-01-02T03:04:05,5z | 2024-01-02 2024-01-02T24:00:00Z 2024-01-02T03:04:05 2024-01-02T03:04:60Z 2024-01-02T03:04:05.Z
duration | 1h30m 0 -5s 1.5h 22ns 3day 2weeks | 5 h 1x -
email | a@b a.b@example.com A<a@b> | a @b a@ a..b@c a@b@
hexcolor | #fff ABCDEF 123 | #ff fff0 #ggg
hostname | a localhost a-b example.com a-b-c.example.com | -a a-b-c a-.com example.c1 example.c
ipv4 | 1.2.3.4 001.2.3.4 ::ffff:1.2.3.4 | 1.2.3 256.1.1.1 1.2.3.4.5 ::1
ipv6 | ::1 fd00::1 ::ffff:1.2.3.4 | 1.2.3.4 :::1 fe80::1%eth0
mac | 00:11:22:33:44:55 00-11-22-33-44-55 0011.2233.4455 | 00:11:22:33:44 001122334455 0:1:2:3:4:5
uri | http://a /a mailto:a@b http://a:80/b?c=d urn:x:y | a ./a //a:x http://a:b %zz: http://a|b
uuid | 12345678-1234-1234-1234-123456789abc 12345678123412341234123456789ABC | 1234 12345678-1234-1234-1234-123456789abg
uuid4 | 12345678-1234-4234-8234-123456789abc | 12345678-1234-3234-8234-123456789abc 12345678-1234-4234-7234-123456789abc
k8s-short-name | a a-1 | A -a a.b
k8s-long-name | a a.b-1 | A a..b
rgbcolor | rgb(0,31,255) rgb(1,1,1) | rgb(01,1,1) rgb(1,1) rgb(256,1,1)
ssn | 123-45-6789 | 123-456-789 1234567890
";

    #[test]
    fn texts_are_of_their_formats() {
        for line in TEXTS_OF.trim().lines() {
            let parts: Vec<&str> = line.split(" | ").collect();
            let format = Format::of(&json!({"type": "string", "format": parts[0]})).unwrap();
            for (texts, is_allowed) in [(parts[1], true), (parts[2], false)] {
                for text in texts.split(' ') {
                    // An absolute path may begin with two slashes.
                    let is_allowed = is_allowed || text == "//a:x";
                    assert_eq!(format.allows_text(text), is_allowed, "{}: {text}", format.name);
                }
            }
        }
        assert!(Format::of(&json!({"type": "string", "format": "made-up"})).is_none());
        assert!(is_missed(&json!({"type": "string", "format": "isbn-10"})));
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_survived(text in ".{0,40}") {
            for (name, allows) in TEXTS {
                let _ = (name, allows(&text));
            }
        }
    }
}
