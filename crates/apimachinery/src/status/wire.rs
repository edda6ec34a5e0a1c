//! Field order of a Status on the wire, and which fields are omitted.

use serde::{Deserialize, Serialize};

use super::{Status, StatusDetails};

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Wire {
    kind: String,
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    metadata: WireMeta,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    status: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    message: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    details: Option<Box<StatusDetails>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    code: Option<u16>,
}

#[derive(Default, Serialize, Deserialize)]
struct WireMeta {
    #[serde(rename = "continue", default, skip_serializing_if = "Option::is_none")]
    continue_token: Option<Box<str>>,
}

impl Wire {
    pub(super) fn is_status(&self) -> bool {
        self.kind == "Status"
    }
}

impl From<Status> for Wire {
    fn from(status: Status) -> Self {
        Self {
            kind: "Status".to_owned(),
            api_version: "v1".to_owned(),
            metadata: WireMeta {
                continue_token: status.continue_token,
            },
            status: if status.success { "Success" } else { "Failure" }.to_owned(),
            message: status.message,
            reason: status.reason,
            details: status.details,
            // Answers to deletes carry no code, those to creates do.
            code: (!status.success || status.code != 200).then_some(status.code),
        }
    }
}

impl From<Wire> for Status {
    fn from(wire: Wire) -> Self {
        let success = wire.status == "Success";
        Self {
            success,
            code: wire
                .code
                .filter(|code| *code > 0)
                .unwrap_or(if success { 200 } else { 500 }),
            reason: wire.reason,
            message: wire.message,
            continue_token: wire.metadata.continue_token,
            details: wire.details,
            is_denial: false,
        }
    }
}
