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
pub fn skip_blank(bytes: &[u8], at: usize) -> usize {
    let rest = bytes.get(at..).unwrap_or_default();
    at + rest
        .iter()
        .take_while(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n'))
        .count()
}

/// The end of the string that starts at `at`.
fn skip_string(bytes: &[u8], at: usize) -> Option<usize> {
    if bytes.get(at) != Some(&b'"') {
        return None;
    }
    let mut at = at + 1;
    loop {
        at += bytes.get(at..)?.iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
        if bytes[at] == b'"' {
            return Some(at + 1);
        }
        at += 2;
    }
}

/// The end of the value that starts at `at`. Counts brackets instead of recursing.
pub fn skip_value(bytes: &[u8], at: usize) -> Option<usize> {
    match bytes.get(at)? {
        b'"' => skip_string(bytes, at),
        b'{' | b'[' => skip_container(bytes, at),
        _ => {
            let is_scalar = |byte: &&u8| !b",:]}[{\" \t\r\n".contains(byte);
            let len = bytes[at..].iter().take_while(is_scalar).count();
            (len > 0).then_some(at + len)
        }
    }
}

/// The end of the object or array that starts at `at`.
fn skip_container(bytes: &[u8], mut at: usize) -> Option<usize> {
    let mut depth = 0_usize;
    loop {
        at += bytes
            .get(at..)?
            .iter()
            .position(|byte| matches!(byte, b'"' | b'{' | b'[' | b'}' | b']'))?;
        match bytes[at] {
            b'"' => {
                at = skip_string(bytes, at)?;
                continue;
            }
            b'{' | b'[' => depth += 1,
            _ => depth -= 1,
        }
        at += 1;
        if depth == 0 {
            return Some(at);
        }
    }
}
