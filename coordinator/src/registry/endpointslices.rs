//! EndpointSlices: they count their generation, labels included, and never change their address type.

use serde_json::Value;
use yurt_apimachinery::Status;
use yurt_apimachinery::status::FieldError;

use super::strategy::{Generation, Strategy};

/// Rules of `endpointslices.discovery.k8s.io`.
pub(crate) struct EndpointSlices;

/// kube-apiserver's limit of endpoints in one slice.
const ENDPOINTS_MAX: usize = 1000;

impl Strategy for EndpointSlices {
    fn validate(&self, object: &Value, old: Option<&Value>) -> Result<Vec<FieldError>, Status> {
        let mut errors = Vec::new();
        let address_type = object["addressType"].as_str().unwrap_or_default();
        let supported = ["FQDN", "IPv4", "IPv6"];
        if address_type.is_empty() {
            errors.push(FieldError::required("addressType", ""));
        } else if !supported.contains(&address_type) {
            errors.push(FieldError::not_supported("addressType", address_type, &supported));
        }
        if old.is_some_and(|old| old["addressType"] != object["addressType"]) {
            errors.push(FieldError::invalid("addressType", address_type, "field is immutable"));
        }
        if object["endpoints"]
            .as_array()
            .is_some_and(|endpoints| endpoints.len() > ENDPOINTS_MAX)
        {
            errors.push(FieldError::too_long("endpoints", ENDPOINTS_MAX));
        }
        Ok(errors)
    }

    fn generation(&self) -> Generation {
        Generation::OfSpecAndLabels
    }
}
