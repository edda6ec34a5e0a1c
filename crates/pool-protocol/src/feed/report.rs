//! A member's report of forged pool data, or its denial of another member's report.

use serde::{Deserialize, Serialize};
use yurt_apimachinery::ResourceVersion;

/// Body of `POST /yurt/v1/reports`.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Name of the collection.
    pub collection: String,
    /// Generation of the collection.
    pub generation: u64,
    /// Key of the object.
    pub key: String,
    /// RV of the object at the coordinator; zero if the coordinator lacks it.
    pub resource_version: ResourceVersion,
    /// Kind of the forgery; empty in a denial.
    #[serde(default)]
    pub reason: String,
    /// Finding of the member.
    pub verdict: ReportVerdict,
    /// Member whose report the verdict `honest` denies.
    #[serde(default)]
    pub accuser: String,
}

/// Finding of a member.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum ReportVerdict {
    /// The object contradicts the cloud.
    Forged,
    /// The object is the cloud's.
    Honest,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn report_is_read_as_it_was_written() {
        let report = Report {
            collection: "services".to_owned(),
            generation: 7,
            key: "x/a".to_owned(),
            resource_version: ResourceVersion(5),
            reason: "changed".to_owned(),
            verdict: ReportVerdict::Honest,
            accuser: "b".to_owned(),
        };
        let written = serde_json::to_value(&report).unwrap();
        assert_eq!(
            (&written["resourceVersion"], &written["verdict"]),
            (&json!("5"), &json!("honest"))
        );
        assert_eq!(serde_json::from_value::<Report>(written).unwrap(), report);
    }
}
