//! A shallow scanner: the members of one JSON object and where their values lie.

use std::ops::Range;

/// One member of an object.
pub(crate) struct Member {
    /// The name with its quotes.
    pub(crate) name: Range<usize>,
    pub(crate) value: Range<usize>,
}

/// Walks the members of one object.
pub(crate) struct Members<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// The members of the object that starts at or after `at`; `None` if there is no object.
pub(crate) fn members(bytes: &[u8], at: usize) -> Option<Members<'_>> {
    let at = skip_blank(bytes, at);
    (bytes.get(at) == Some(&b'{')).then(|| Members { bytes, at: at + 1 })
}

/// The last member of that name, which is the one that counts; outer `None` if there is no object.
pub(crate) fn last_member(bytes: &[u8], at: usize, name: &str) -> Option<Option<Member>> {
    Some(
        members(bytes, at)?
            .filter(|member| is_named(bytes, member, name))
            .last(),
    )
}

/// The first member of that name.
pub(crate) fn first_member(bytes: &[u8], at: usize, name: &str) -> Option<Member> {
    members(bytes, at)?.find(|member| is_named(bytes, member, name))
}

fn is_named(bytes: &[u8], member: &Member, name: &str) -> bool {
    let quoted = &bytes[member.name.clone()];
    if quoted.contains(&b'\\') {
        return serde_json::from_slice::<String>(quoted).is_ok_and(|text| text == name);
    }
    quoted.get(1..quoted.len().saturating_sub(1)) == Some(name.as_bytes())
}

impl Iterator for Members<'_> {
    type Item = Member;

    fn next(&mut self) -> Option<Member> {
        let bytes = self.bytes;
        let mut start = skip_blank(bytes, self.at);
        if bytes.get(start) == Some(&b',') {
            start = skip_blank(bytes, start + 1);
        }
        let end = skip_string(bytes, start)?;
        let colon = skip_blank(bytes, end);
        if bytes.get(colon) != Some(&b':') {
            return None;
        }
        let value_start = skip_blank(bytes, colon + 1);
        let value_end = skip_value(bytes, value_start)?;
        self.at = value_end;
        Some(Member {
            name: start..end,
            value: value_start..value_end,
        })
    }
}

/// The first place at or after `at` that is no whitespace.
#[inline]
pub fn skip_blank(bytes: &[u8], mut at: usize) -> usize {
    while let Some(b' ' | b'\t' | b'\r' | b'\n') = bytes.get(at) {
        at += 1;
    }
    at
}

/// The end of the string that starts at `at`.
#[inline]
fn skip_string(bytes: &[u8], at: usize) -> Option<usize> {
    if bytes.get(at) != Some(&b'"') {
        return None;
    }
    let mut at = at + 1;
    loop {
        at = find_quote_or_escape(bytes, at)?;
        if bytes[at] == b'"' {
            return Some(at + 1);
        }
        at += 2;
    }
}

/// The first place at or after `at` with a quote or a backslash. Eight bytes at a time: most strings are too short for
/// a call of `memchr`.
#[inline]
pub fn find_quote_or_escape(bytes: &[u8], mut at: usize) -> Option<usize> {
    const LOW: u64 = u64::from_le_bytes([1; 8]);
    const HIGH: u64 = LOW << 7;
    // The lowest byte that it marks is zero (Hacker's Delight, 6-1); higher ones may be wrong.
    let zeros = |word: u64| word.wrapping_sub(LOW) & !word & HIGH;
    while let Some(eight) = bytes.get(at..).and_then(|rest| rest.first_chunk()) {
        let word = u64::from_le_bytes(*eight);
        let found = zeros(word ^ (LOW * u64::from(b'"'))) | zeros(word ^ (LOW * u64::from(b'\\')));
        if found != 0 {
            return Some(at + found.trailing_zeros() as usize / 8);
        }
        at += 8;
    }
    let rest = bytes.get(at..)?;
    let found = rest.iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
    Some(at + found)
}

/// The end of the value that starts at `at`. Counts brackets instead of recursing.
pub fn skip_value(bytes: &[u8], at: usize) -> Option<usize> {
    match bytes.get(at)? {
        b'"' => skip_string(bytes, at),
        b'{' | b'[' => skip_container(bytes, at),
        _ => {
            // Not `contains`: it calls `memchr` for each byte.
            let ends = |byte: &u8| {
                matches!(
                    byte,
                    b',' | b':' | b']' | b'}' | b'[' | b'{' | b'"' | b' ' | b'\t' | b'\r' | b'\n'
                )
            };
            let len = bytes[at..].iter().take_while(|byte| !ends(byte)).count();
            (len > 0).then_some(at + len)
        }
    }
}

/// The end of the object or array that starts at `at`.
fn skip_container(bytes: &[u8], mut at: usize) -> Option<usize> {
    let mut depth = 0_usize;
    loop {
        match bytes.get(at)? {
            b'"' => {
                at = skip_string(bytes, at)?;
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        at += 1;
        if depth == 0 {
            return Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The eight bytes at a time give the place that one byte at a time gives.
        #[test]
        fn first_quote_or_escape_is_found(
            bytes in prop::collection::vec(prop_oneof![8 => any::<u8>(), 1 => Just(b'"'), 1 => Just(b'\\'), 1 => 0x20_u8..0x24], 0..80),
            at in 0_usize..90,
        ) {
            let rest = bytes.get(at..).unwrap_or_default();
            let want = rest.iter().position(|byte| matches!(byte, b'"' | b'\\')).map(|found| at + found);
            prop_assert_eq!(find_quote_or_escape(&bytes, at), want);
        }

        #[test]
        fn end_of_a_value_is_found(value in json(), rest in ",?[ x\\]}\"]{0,9}") {
            let text = serde_json::to_vec(&value).unwrap();
            let more = [&text[..], rest.as_bytes()].concat();
            let is_open = matches!(value, serde_json::Value::Number(_) | serde_json::Value::Bool(_) | serde_json::Value::Null);
            if !is_open {
                prop_assert_eq!(skip_value(&more, 0), Some(text.len()));
                prop_assert_eq!(skip_value(&text[..text.len() - 1], 0), None, "it is not closed");
            }
        }
    }

    fn json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            any::<i32>().prop_map(Into::into),
            any::<bool>().prop_map(Into::into),
            "[a-z\"\\\\{}\\[\\],é]{0,20}".prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(serde_json::Value::from),
                prop::collection::btree_map("[a-z\"\\\\]{0,5}", inner, 0..6)
                    .prop_map(|members| members.into_iter().collect()),
            ]
        })
    }
}
