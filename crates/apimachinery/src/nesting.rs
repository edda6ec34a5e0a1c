//! Limit on the nesting of JSON from the network.
//!
//! serde's own limit covers only values that are decoded. Skipped values, such as a field that the kind does not have,
//! may be nested to any depth. kube-apiserver rejects, at any place, nesting that Go's parser rejects.

/// Go's limit of arrays and objects within each other.
pub const MAX_NESTING: usize = 10_000;

/// JSON that is nested deeper than [`MAX_NESTING`]. The error has Go's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid character '{}' exceeded max depth", char::from(self.0))]
pub struct TooDeep(u8);

/// Rejects JSON that is nested too deeply. Other faults are left to the parser of the text.
///
/// # Errors
/// [`TooDeep`] with the first bracket beyond the limit.
pub fn check(json: &[u8]) -> Result<(), TooDeep> {
    let opens = |byte: &u8| matches!(byte, b'[' | b'{');
    // Few texts have so many brackets at all, and counting is much faster than following them.
    if json.len() <= MAX_NESTING || json.iter().filter(|byte| opens(byte)).count() <= MAX_NESTING {
        return Ok(());
    }
    let (mut at, mut depth) = (0, 0_usize);
    while let Some(&byte) = json.get(at) {
        at += 1;
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            b'"' => at = end_of_string(json, at),
            _ => {}
        }
        if depth > MAX_NESTING {
            return Err(TooDeep(byte));
        }
    }
    Ok(())
}

/// Position after the closing quote of the string whose content begins at `at`.
pub fn end_of_string(json: &[u8], mut at: usize) -> usize {
    loop {
        let rest = json.get(at..).unwrap_or_default();
        let Some(len) = memchr::memchr2(b'"', b'\\', rest) else {
            return json.len();
        };
        at += len + 1;
        match rest[len] {
            b'"' => return at,
            // What it escapes is no quote.
            _ => at += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(depth: usize) -> String {
        format!("{}{}", "[".repeat(depth), "]".repeat(depth))
    }

    #[test]
    fn limit_is_gos() {
        assert_eq!(check(nested(MAX_NESTING).as_bytes()), Ok(()));
        let refused = check(nested(MAX_NESTING + 1).as_bytes()).expect_err("one too many");
        assert_eq!(refused.to_string(), "invalid character '[' exceeded max depth");
        let objects = r#"{"a":"#.repeat(MAX_NESTING + 1);
        assert_eq!(check(objects.as_bytes()), Err(TooDeep(b'{')), "closed or not");
    }

    #[test]
    fn only_brackets_that_nest_count() {
        let siblings = format!("[{}[]]", "[],".repeat(3 * MAX_NESTING));
        assert_eq!(check(siblings.as_bytes()), Ok(()));
        let text = format!(r#"["{}\"[","\\",{}]"#, "[{".repeat(MAX_NESTING), nested(9));
        assert_eq!(check(text.as_bytes()), Ok(()), "what is in strings is text");
        let behind = format!(r#"["\\\"","\\",{}"#, "[".repeat(MAX_NESTING));
        assert!(check(behind.as_bytes()).is_err(), "what is behind them is not");
        assert_eq!(
            check(format!("\"{}", nested(MAX_NESTING + 1)).as_bytes()),
            Ok(()),
            "no end"
        );
    }
}
