//! Lists of 1,000 EndpointSlices of 100 endpoints: CPU in three formats, memory of eight at a time (rows 10, 11).

use anyhow::Result;
use bytes::Bytes;
use http::Method;

use super::leases::per_operation;
use super::load::{Ask, JSON, Job, PROTOBUF, Session, series};
use super::memory::mib;
use super::options::Scale;
use super::samples::{ALL_SLICES, SLICES, slice};
use super::system_under_test::SystemUnderTest;
use super::table::{Notes, Unit};
use super::usage;

const SLICE_COUNT: usize = 1000;
const LISTS: usize = 20;
const CONCURRENT: usize = 8;

pub(super) async fn measure(system: SystemUnderTest, scale: Scale, notes: &mut Notes<'_>) -> Result<()> {
    let sessions: Vec<Session> = (0..CONCURRENT).map(|_| system.session()).collect::<Result<_>>()?;
    series(&sessions, 1, scale.of(SLICE_COUNT), |at| Job {
        method: Method::POST,
        path: SLICES.to_owned(),
        content_type: JSON,
        body: slice(&format!("bench-{at:05}"), 100).to_string().into(),
    })
    .await?;
    let formats = [
        ("protobuf", PROTOBUF, false),
        ("JSON", JSON, false),
        ("JSON, gzip", JSON, true),
    ];
    for (name, accept, gzip) in formats {
        list(&sessions[0], accept, gzip).await?;
        let before = system.usage()?.cpu;
        let mut bytes = 0;
        for _ in 0..LISTS {
            bytes = list(&sessions[0], accept, gzip).await?;
        }
        per_operation(
            notes,
            "10",
            &format!("LIST 1,000 slices × 100 endpoints, {name}, CPU"),
            &system,
            before,
            LISTS,
        )?;
        notes.add("10", &format!("bytes of that answer, {name}"), Unit::Mib, mib(bytes));
    }
    let rss = system.usage()?.rss;
    usage::reset_peak(system.pid()?)?;
    for _ in 0..3 {
        futures_util::future::try_join_all(sessions.iter().map(|session| list(session, JSON, false))).await?;
    }
    let grown = usage::peak(system.pid()?)?.saturating_sub(rss);
    notes.add(
        "11",
        "8 JSON LISTs of it at a time, RSS peak above idle",
        Unit::Mib,
        mib(grown),
    );
    Ok(())
}

async fn list(session: &Session, accept: &'static str, gzip: bool) -> Result<u64> {
    let ask = Ask {
        accept,
        gzip,
        ..Ask::new(Method::GET, ALL_SLICES, Bytes::new())
    };
    Ok(session.drain(ask).await?.0)
}
