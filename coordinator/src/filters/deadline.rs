//! Request deadlines: the client's `timeout=`, within the server's limit.

use std::future::Future;
use std::time::Duration;

use yurt_apimachinery::query::Query;
use yurt_apimachinery::{RequestInfo, Status, Verb};
use yurt_pool_protocol::names::FEED_PATH;
use yurt_runtime::flags::GoDuration;

/// Longest time for a request that is no watch, as kube-apiserver's `--request-timeout`.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest time for a write of one object, as in kube-apiserver.
const WRITE_TIMEOUT: Duration = Duration::from_secs(34);

/// The time a request may take until its answer begins. `None` for watches, which have lifetimes of their own, and for
/// the feed, whose batches may be large and its link slow.
///
/// # Errors
/// 400 for a `timeout` that is no duration in Go's notation, with kube-apiserver's message.
pub(super) fn of(info: &RequestInfo, query: Option<&str>) -> Result<Option<Duration>, Status> {
    if info.verb == Verb::Watch || info.path.starts_with(FEED_PATH) {
        return Ok(None);
    }
    // A deletecollection writes each object, as many as there are.
    let is_write = !info.verb.is_read_only() && info.verb != Verb::DeleteCollection;
    let most = if info.is_resource && is_write {
        WRITE_TIMEOUT
    } else {
        REQUEST_TIMEOUT
    };
    let query = Query::parse(query);
    let wish = query.get("timeout").filter(|text| !text.is_empty());
    let wish = wish.map(parse).transpose()?.filter(|wish| !wish.is_zero());
    Ok(Some(wish.map_or(most, |wish| wish.min(most))))
}

/// Answers within `limit`, or with 504. A write that has begun goes on: its outcome is unknown to the client.
///
/// # Errors
/// The error of `answer`, or 504.
pub(super) async fn within<T>(
    limit: Option<Duration>,
    answer: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    match limit {
        None => answer.await,
        Some(limit) => tokio::time::timeout(limit, answer)
            .await
            .unwrap_or_else(|_| Err(Status::timeout())),
    }
}

/// Parses a duration in Go's notation; a negative one means no limit, as zero does.
fn parse(text: &str) -> Result<Duration, Status> {
    let is_negative = text.starts_with('-');
    let number = text.strip_prefix(['-', '+']).unwrap_or(text);
    match number.parse::<GoDuration>() {
        Ok(_) if number.starts_with(['-', '+']) => Err(refused(text, number)),
        Ok(_) if is_negative => Ok(Duration::ZERO),
        Ok(GoDuration(wish)) => Ok(wish),
        Err(_) => Err(refused(text, number)),
    }
}

fn refused(text: &str, number: &str) -> Status {
    let is_numeric = |c: char| c.is_ascii_digit() || c == '.';
    let mut rest = number;
    let why = loop {
        let Some(after) = rest.strip_prefix(is_numeric) else {
            break "invalid duration".to_owned();
        };
        let units = after.trim_start_matches(is_numeric);
        let has_digit = rest[..rest.len() - units.len()].contains(|c: char| c.is_ascii_digit());
        if !has_digit {
            break "invalid duration".to_owned();
        }
        let unit = units.split(is_numeric).next().unwrap_or_default();
        rest = &units[unit.len()..];
        match unit {
            "" => break "missing unit in duration".to_owned(),
            "ns" | "us" | "µs" | "μs" | "ms" | "s" | "m" | "h" => {}
            unit => break format!("unknown unit {unit:?} in duration"),
        }
    };
    Status::bad_request(format!(
        "invalid timeout specified in the request URL - time: {why} {text:?}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "/api/v1/namespaces/default/configmaps";
    const MAP: &str = "/api/v1/namespaces/default/configmaps/a";

    fn limit(method: &str, path: &str, query: &str) -> Result<Option<Duration>, Status> {
        let info = RequestInfo::parse(method, path, Some(query))?;
        of(&info, Some(query))
    }

    /// Conformance: 2.31
    #[test]
    fn the_client_may_allow_less_than_the_server() {
        let seconds = |s| Ok(Some(Duration::from_secs(s)));
        let cases = [
            ("GET", MAPS, "", seconds(60)),
            ("GET", MAPS, "timeout=32s", seconds(32)),
            ("GET", MAPS, "timeout=0", seconds(60)),
            ("GET", MAPS, "timeout=-5s", seconds(60)),
            ("GET", MAPS, "timeout=1h", seconds(60)),
            ("POST", MAPS, "", seconds(34)),
            ("POST", MAPS, "timeout=50s", seconds(34)),
            ("POST", MAPS, "timeout=10s", seconds(10)),
            ("PUT", MAP, "", seconds(34)),
            ("DELETE", MAP, "timeout=0s", seconds(34)),
            ("DELETE", MAPS, "", seconds(60)),
            ("DELETE", MAPS, "timeout=10s", seconds(10)),
            ("GET", MAPS, "watch=1&timeout=5s", Ok(None)),
            ("GET", MAPS, "watch=1&timeout=x", Ok(None)),
        ];
        for (method, path, query, want) in cases {
            assert_eq!(limit(method, path, query), want, "{method} {path} {query}");
        }
    }

    /// Conformance: 2.31
    #[test]
    fn what_is_no_duration_is_refused_as_go_does() {
        let cases = [
            ("x", "invalid duration \"x\""),
            ("5", "missing unit in duration \"5\""),
            ("5x", "unknown unit \"x\" in duration \"5x\""),
            ("1m5q", "unknown unit \"q\" in duration \"1m5q\""),
            ("--5s", "invalid duration \"--5s\""),
            (".", "invalid duration \".\""),
        ];
        for (text, why) in cases {
            let status = limit("GET", MAPS, &format!("timeout={text}")).unwrap_err();
            assert_eq!(status.code(), 400);
            let want = format!("invalid timeout specified in the request URL - time: {why}");
            assert_eq!(status.message(), want);
        }
    }
}
