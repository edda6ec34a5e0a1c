//! Durable writes: creates of EndpointSlices and serial updates (row 9).

use anyhow::Result;
use http::Method;

use super::leases::per_operation;
use super::load::{Ask, JSON, Job, Session, quantile, series};
use super::options::Scale;
use super::samples::{CONFIG_MAPS, SLICES, config_map, slice};
use super::system_under_test::SystemUnderTest;
use super::table::{Notes, Unit};

const CREATES: usize = 2000;
const UPDATES: usize = 1000;

pub(super) async fn measure(system: SystemUnderTest, scale: Scale, notes: &mut Notes<'_>) -> Result<()> {
    let sessions: Vec<Session> = (0..2).map(|_| system.session()).collect::<Result<_>>()?;
    let total = scale.of(CREATES);
    let before = system.usage()?.cpu;
    let took = series(&sessions, 4, total, |at| Job {
        method: Method::POST,
        path: SLICES.to_owned(),
        content_type: JSON,
        body: slice(&format!("bench-{at:05}"), 100).to_string().into(),
    })
    .await?;
    per_operation(
        notes,
        "9",
        "create EndpointSlice (100 endpoints), CPU",
        &system,
        before,
        total,
    )?;
    notes.add(
        "9",
        "create EndpointSlice, 8 at a time, p50",
        Unit::Millis,
        quantile(&took, 0.5),
    );
    let session = &sessions[..1];
    session[0]
        .send(Ask::new(
            Method::POST,
            CONFIG_MAPS,
            config_map("durable", 100).to_string(),
        ))
        .await?;
    let total = scale.of(UPDATES);
    let before = system.usage()?.cpu;
    let took = series(session, 1, total, |at| Job {
        method: Method::PUT,
        path: format!("{CONFIG_MAPS}/durable"),
        content_type: JSON,
        body: config_map("durable", 100 + at % 7).to_string().into(),
    })
    .await?;
    per_operation(
        notes,
        "9",
        "durable update of a small object, CPU",
        &system,
        before,
        total,
    )?;
    notes.add(
        "9",
        "durable update, one at a time, p50",
        Unit::Millis,
        quantile(&took, 0.5),
    );
    notes.add(
        "9",
        "durable update, one at a time, p99",
        Unit::Millis,
        quantile(&took, 0.99),
    );
    Ok(())
}
