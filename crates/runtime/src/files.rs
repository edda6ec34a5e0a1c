//! Limit of open files, which every connection counts against, and access to files on a disk that may hang.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files of a process other than the connections of its servers: stores, certificates, the log, outgoing connections.
pub const OTHER_FILES: usize = 256;
/// Value used for "unlimited".
const UNLIMITED: u64 = 1 << 20;

/// Raises the soft limit to the hard limit, since many processes begin with 1,024 although more is allowed. Returns the
/// limit.
///
/// # Errors
/// The kernel's reason; the limit is unchanged.
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

/// The present limit.
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

/// Runs `access` to its end on a thread apart from the runtime's, also if the returned future is dropped: a disk may
/// hang. A panic continues in the caller.
pub async fn access<T: Send + 'static>(access: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(access).await {
        Ok(result) => result,
        Err(lost) => match lost.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime ends, and the caller with it.
            Err(_) => std::future::pending().await,
        },
    }
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
