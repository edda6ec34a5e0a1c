//! The steps of the demo, in order. Every sentence it prints was verified before it was printed.

mod arrival;
mod heartbeat;
mod leader;
mod offline;

use anyhow::{Context, Result};
use yurt_testbed::pool::TestPool;
use yurt_workspace::Stopwatch;

/// Below this much pool data the connections' own bytes (TLS, health) hide the source of the data.
const TELLING_BYTES: u64 = 64_000;

/// Runs all steps; the first check that fails is the error.
pub(super) async fn tell(pool: &mut TestPool) -> Result<()> {
    let watch = Stopwatch::start();
    let mut number = 0;
    let mut chapter = |title: &'static str| {
        number += 1;
        println!("\n{number}  {title}");
        move || format!("step {number} ({title}) did not hold")
    };
    let named = chapter("The coordinator and three hubs start, one hub is elected");
    arrival::elect(pool).await.with_context(named)?;
    let named = chapter("The pool's data is copied from the cloud once, for any number of hubs");
    arrival::copy(pool).await.with_context(named)?;
    let named = chapter("A change in the cloud reaches the clients behind every hub");
    arrival::change(pool).await.with_context(named)?;
    let named = chapter("A hub loses its link to the cloud; another hub relays its heartbeat");
    heartbeat::cut_off(pool).await.with_context(named)?;
    let named = chapter("The leader is killed; another hub takes over and clients are unaffected");
    leader::killed(pool).await.with_context(named)?;
    let named = chapter("The whole pool is offline, and its coordinator is killed");
    let before = offline::alone(pool).await.with_context(named)?;
    let named = chapter("The cloud is back; the pool resumes from its replicas");
    offline::back(pool, before).await.with_context(named)?;
    println!("\nEvery step held ({watch}).");
    Ok(())
}

/// Prints a verified statement.
fn holds(sentence: impl AsRef<str>) {
    println!("   ✓ {}", sentence.as_ref());
}

/// Prints information for the reader.
fn note(sentence: impl AsRef<str>) {
    println!("   · {}", sentence.as_ref());
}

fn millis(duration: std::time::Duration) -> String {
    match duration.as_millis() {
        millis @ 0..10_000 => format!("{millis} ms"),
        _ => format!("{:.1} s", duration.as_secs_f64()),
    }
}

fn kilobytes(bytes: u64) -> String {
    format!("{:.0} KB", bytes as f64 / 1000.0)
}
