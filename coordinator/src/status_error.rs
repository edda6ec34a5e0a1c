//! The only place where an error of a lower layer becomes an answer of the API.

use yurt_apimachinery::Status;
use yurt_apimachinery::status::{StatusDetails, reason};
use yurt_storage::StorageError;

/// Seconds of `Retry-After` for a store that cannot write now.
const RETRY_SECONDS: u32 = 5;

/// The answer for a storage error. Conflicts are handled earlier: here they are a programming error.
pub(crate) fn of_storage(error: &StorageError) -> Status {
    match error {
        StorageError::Conflict { key, .. } => {
            tracing::warn!(key, "Unexpected conflict");
            Status::internal("the write lost a race")
        }
        // The store itself logs the first of them.
        StorageError::Full(why) => Status::service_unavailable(
            format!("the server's disk is full: reads go on, writes are refused ({why})"),
            RETRY_SECONDS,
        ),
        StorageError::Unavailable(why) => Status::service_unavailable(
            format!("the server's store is not available: reads go on, writes are refused ({why})"),
            RETRY_SECONDS,
        ),
        StorageError::Corrupt(why) => Status::internal(&format!(
            "the server's store is damaged: reads go on, writes are refused ({why})"
        )),
        StorageError::Unknown(why) => {
            let message =
                format!("the outcome of the write in the server's store is unknown: it may have happened ({why})");
            // Without Retry-After: clients would repeat it, also a create that has happened.
            Status::failure(504, reason::TIMEOUT, message)
        }
        StorageError::TooManyBytes(why) => Status::too_large(why),
        StorageError::Oversized { collection, key, .. } => {
            let details = StatusDetails {
                name: key.clone(),
                kind: collection.clone(),
                ..StatusDetails::default()
            };
            Status::too_large(&error.to_string()).with_details(details)
        }
        StorageError::TooLarge(operations) => Status::too_large(&format!("transaction of {operations} operations")),
    }
}

/// The answer for a storage error of a read of the present state.
pub(crate) fn of_storage_read(error: &StorageError) -> Status {
    match error {
        StorageError::Unavailable(why) => Status::service_unavailable(
            format!("the server's store is not available: its present state is unknown ({why})"),
            RETRY_SECONDS,
        ),
        StorageError::Corrupt(why) => Status::internal(&format!(
            "the server's store is damaged: its present state is unknown ({why})"
        )),
        error => of_storage(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients repeat any request with it, also the create of a generated name.
    #[test]
    fn clients_repeat_only_what_was_certainly_not_written() {
        let answer = |error: StorageError| {
            let status = of_storage(&error);
            (status.code(), status.retry_after())
        };
        let why = || "why".to_owned();
        assert_eq!(answer(StorageError::Full(why())), (503, Some(RETRY_SECONDS)));
        assert_eq!(answer(StorageError::Unavailable(why())), (503, Some(RETRY_SECONDS)));
        assert_eq!(answer(StorageError::Unknown(why())), (504, None));
    }

    /// Conformance: 4.14
    #[test]
    fn what_is_our_fault_says_so_with_its_cause() {
        let why = "the server's store is damaged: reads go on, writes are refused (page 7)";
        let status = of_storage(&StorageError::Corrupt("page 7".into()));
        let body: serde_json::Value = serde_json::from_slice(&status.to_json()).unwrap();
        assert_eq!((&body["code"], &body["reason"]), (&500.into(), &"InternalError".into()));
        assert_eq!(body["message"], format!("Internal error occurred: {why}"));
        assert_eq!(body["details"]["causes"], serde_json::json!([{ "message": why }]));
    }
}
