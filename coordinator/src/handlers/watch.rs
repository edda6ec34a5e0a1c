//! WATCH: the shared stream of [`yurt_storage::serve`] as an HTTP body.
//!
//! Once the options are parsed, every failure is an event in the stream: clients retry an HTTP error with the same
//! resourceVersion for ever. There is no task and no queue per watcher: a slow one costs only itself. A watch ends with
//! the certificate that opened it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use http::{HeaderValue, Response, StatusCode};
use yurt_apimachinery::{ListOptions, ResourceVersion, Status};
use yurt_codec::negotiation::Shape;
use yurt_pool_protocol::names::REPLICA_HEADER;
use yurt_runtime::http::{self as web, Body};
use yurt_storage::serve::{Selection, WatchRequest, watch};

use crate::metrics::RequestLabels;
use crate::request::Call;

/// Longest lifetime that a client may request; beyond it timers overflow.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);
/// Interval between ends when the server stops: a thousand watches of a resource end within a second. Their clients do
/// not all reconnect at the same moment.
const END_OF_EACH: Duration = Duration::from_millis(1);
/// Longest time in which all of them end.
const END_OF_ALL: Duration = Duration::from_secs(2);

/// Answers a watch.
///
/// # Errors
/// The error to return instead of a stream.
pub(crate) async fn handle(call: &Call) -> Result<Response<Body>, Status> {
    // Unsupported formats are reported first, formats without a stream last.
    call.negotiate(Shape::List)?;
    let mut options = ListOptions::parse(call.query.as_deref(), true, call.resource.kind)?;
    if let Some(name) = &call.info.name {
        options.require_name(name)?;
    }
    let negotiated = call.negotiate(Shape::Watch)?;
    call.require_served()?;
    call.catch_up(options.resource_version).await?;
    let is_replica = call.header(REPLICA_HEADER) == Some("1");
    options.allow_watch_bookmarks |= is_replica;
    let (resource, clock) = (call.resource.clone(), call.app.clock.clone());
    let labels = RequestLabels::of(
        Some(&call.info),
        call.query.as_deref(),
        &call.headers,
        Some(call.resource.kind),
    );
    let counted = call.app.metrics.watch(labels, &call.resource.name, &clock);
    let request = WatchRequest {
        selection: selection(call, &options),
        view: call.resource.look(),
        how: negotiated,
        clock: call.app.clock.clone(),
        replica: is_replica,
        lasts: lifetime(options.timeout_seconds, call.app.settings.min_request_timeout),
        least: ResourceVersion::ZERO,
        is_fresh: Arc::new(move || !resource.is_stale(clock.boot())),
        shutdown: call.resource.gone.clone(),
        on_initial_end: Some(Box::new(counted.on_first_state())),
        lingers: (END_OF_EACH * counted.open()).min(END_OF_ALL).mul_f64(random_share()),
        options,
    };
    let frames = watch(call.resource.objects().clone(), request)?;
    // Counted as long as the stream lives.
    let counted = counted.opened();
    let frames = frames.inspect(move |frame| counted.sent(frame.len()));
    let frames = frames.take_until(call.ends.clone().cancelled_owned());
    // Others get the answer of kube-apiserver, which compresses no watch.
    let compressed = is_replica && web::accepts_gzip(&call.headers);
    let body = if compressed {
        web::stream(web::joined(web::gzip_frames(frames)))
    } else {
        web::stream(web::joined(frames))
    };
    let content_type = HeaderValue::from_static(negotiated.content_type(Shape::Watch));
    let mut response = web::respond(StatusCode::OK, content_type, body);
    if compressed {
        web::mark_gzip(response.headers_mut());
    }
    // Runs after the stream began: if the generation has changed, the stream ends.
    let generation = call.resource.objects().read(yurt_collection::Collection::generation);
    call.add_pool_headers(generation, &mut response);
    Ok(response)
}

/// The objects that a list or watch selects.
pub(super) fn selection(call: &Call, options: &ListOptions) -> Selection {
    Selection {
        namespace: call.namespace().map(str::to_owned),
        labels: options.label_selector.clone(),
        fields: call.resource.stored_fields(&options.field_selector),
    }
}

/// The requested lifetime, or a random one between one and two times the minimum: watches that began together do not
/// end together.
fn lifetime(wish: Option<u64>, minimum: Duration) -> Duration {
    wish.map_or_else(|| minimum.mul_f64(1.0 + random_share()), Duration::from_secs)
        .min(LONGEST)
}

/// Random number between 0 and 1.
fn random_share() -> f64 {
    let random = uuid::Uuid::new_v4().as_u64_pair().0 as u32;
    f64::from(random) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conformance: 2.30, 7.75
    #[test]
    fn lifetime_is_the_wish_or_spread_over_one_to_two_times_the_minimum() {
        let minimum = Duration::from_secs(1800);
        assert_eq!(lifetime(Some(5), minimum), Duration::from_secs(5));
        assert_eq!(lifetime(Some(u64::MAX), minimum), LONGEST);
        for _ in 0..20 {
            let lasts = lifetime(None, minimum);
            assert!(lasts >= minimum && lasts <= minimum * 2, "{lasts:?}");
        }
    }
}
