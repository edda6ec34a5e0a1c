//! Identity reviews: the caller itself, and the owner of a token.

use serde_json::{Value, json};
use yurt_apimachinery::Status;
use yurt_apimachinery::time::Time;

use super::ReviewRequest;

/// The caller after authentication and impersonation.
pub(super) fn who_am_i(question: &ReviewRequest<'_>) -> Result<Value, Status> {
    let metadata = json!({ "creationTimestamp": Time::from_unix(question.app.clock.unix().secs) });
    Ok(json!({ "metadata": metadata, "status": { "userInfo": question.user.info() } }))
}

/// Checks a token as that of a request is checked; it may be for another audience.
pub(super) fn whose_token(question: &ReviewRequest<'_>) -> Result<Value, Status> {
    let spec = &question.review["spec"];
    let token = spec["token"].as_str().unwrap_or_default();
    if token.is_empty() {
        return Err(Status::bad_request(
            "token is required for TokenReview in authentication",
        ));
    }
    let named = spec["audiences"].as_array().into_iter().flatten();
    let named: Vec<String> = named.filter_map(|one| one.as_str().map(str::to_owned)).collect();
    let tokens = &question.app.filters.tokens;
    let audiences = if named.is_empty() { tokens.audiences() } else { &named };
    let now = question.app.clock.unix().secs;
    let served = question.app.served();
    let objects = |plural: &str, namespace: Option<&str>, name: &str| served.bound_object(plural, namespace, name);
    let status = match tokens.check(token.trim(), audiences, now, &objects) {
        Ok(found) => json!({
            "authenticated": true,
            "user": found.user.info(),
            "audiences": found.audiences,
        }),
        Err(why) if why.is_empty() => json!({ "user": {}, "error": "invalid bearer token" }),
        Err(why) => json!({ "user": {}, "error": format!("[invalid bearer token, {why}]") }),
    };
    Ok(json!({ "metadata": question.metadata(), "spec": spec, "status": status }))
}
