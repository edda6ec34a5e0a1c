//! Translation of etcd's errors into those of the storage trait.

use super::grpc::CallError;
use crate::backend::StorageError;

/// gRPC code INVALID_ARGUMENT.
const INVALID_ARGUMENT: u32 = 3;
/// gRPC code RESOURCE_EXHAUSTED.
const RESOURCE_EXHAUSTED: u32 = 8;
/// gRPC code DATA_LOSS.
const DATA_LOSS: u32 = 15;

/// Translates a failed write, and distinguishes whether it may have happened.
pub(super) fn of_write(error: &CallError) -> StorageError {
    match error {
        // The second text is gRPC's own limit, just above etcd's.
        CallError::Refused {
            code: INVALID_ARGUMENT | RESOURCE_EXHAUSTED,
            message,
        } if message.contains("too large") || message.contains("larger than max") => {
            StorageError::TooManyBytes(message.clone())
        }
        CallError::Refused {
            code: RESOURCE_EXHAUSTED,
            message,
        } if message.contains("space exceeded") => StorageError::Full(message.clone()),
        CallError::Refused {
            code: DATA_LOSS,
            message,
        } => StorageError::Corrupt(message.clone()),
        error if error.never_applied() => StorageError::Unavailable(error.to_string()),
        error => StorageError::Unknown(error.to_string()),
    }
}

/// Translates a failed read.
pub(super) fn of_read(error: &CallError) -> StorageError {
    match error {
        CallError::Refused {
            code: DATA_LOSS,
            message,
        } => StorageError::Corrupt(message.clone()),
        error => StorageError::Unavailable(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_may_have_happened_is_never_called_undone() {
        let refused = |code, message: &str| {
            of_write(&CallError::Refused {
                code,
                message: message.into(),
            })
        };
        assert!(matches!(
            refused(14, "etcdserver: no leader"),
            StorageError::Unavailable(_)
        ));
        assert!(matches!(
            refused(14, "etcdserver: request timed out"),
            StorageError::Unknown(_)
        ));
        assert!(matches!(
            refused(14, "etcdserver: leader changed"),
            StorageError::Unknown(_)
        ));
        assert!(matches!(
            refused(8, "etcdserver: mvcc: database space exceeded"),
            StorageError::Full(_)
        ));
        assert!(matches!(
            refused(8, "etcdserver: too many requests"),
            StorageError::Unavailable(_)
        ));
        assert!(matches!(
            refused(3, "etcdserver: request is too large"),
            StorageError::TooManyBytes(_)
        ));
        assert!(matches!(
            refused(8, "grpc: received message larger than max (2097308 vs. 2097152)"),
            StorageError::TooManyBytes(_)
        ));
        assert!(matches!(
            of_write(&CallError::Malformed(String::new())),
            StorageError::Unknown(_)
        ));
    }
}
