//! The limit of open files, which every connection counts against.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files of a process beside those of its servers: stores, certificates, the log, connections that it opens.
pub const OTHER_FILES: usize = 256;
/// What no limit at all comes to.
const UNLIMITED: u64 = 1 << 20;

/// Raises the limit to what the process may have at most: many begin with 1,024 although they may have more. Returns the
/// limit.
///
/// # Errors
/// The kernel's reason; the limit is as it was.
pub fn raise() -> std::io::Result<usize> {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.unwrap_or(UNLIMITED);
    if limit.current.is_some_and(|current| current < wanted) {
        let raised = Rlimit {
            current: Some(wanted),
            maximum: limit.maximum,
        };
        setrlimit(Resource::Nofile, raised)?;
    }
    Ok(self::limit())
}

/// The limit at present.
#[must_use]
pub fn limit() -> usize {
    let current = getrlimit(Resource::Nofile).current.unwrap_or(UNLIMITED);
    usize::try_from(current).unwrap_or(usize::MAX)
}

/// Number of open files that servers may use.
#[must_use]
pub fn for_servers() -> usize {
    let limit = limit();
    limit.saturating_sub(OTHER_FILES.min(limit / 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_is_raised_as_far_as_it_may_be() {
        let hard = getrlimit(Resource::Nofile).maximum.unwrap_or(UNLIMITED);
        assert_eq!(u64::try_from(raise().unwrap()).unwrap(), hard);
        assert_eq!(raise().unwrap(), limit());
        assert!(for_servers() < limit());
    }
}
