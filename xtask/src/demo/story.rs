//! The story the demo tells, in order. Every sentence it prints was verified before it was printed.

mod arrival;
mod heartbeat;
mod leader;
mod offline;

use anyhow::{Context, Result};

use crate::lab::stage::Stage;
use crate::stopwatch::Stopwatch;

/// Below this much pool data the connections' own bytes (TLS, health) say nothing about who carries the data.
const TELLING_BYTES: u64 = 64_000;

/// Tells the whole story; the first thing that does not hold is the error.
pub(super) async fn tell(stage: &mut Stage) -> Result<()> {
    let watch = Stopwatch::start();
    let mut number = 0;
    let mut chapter = |title: &'static str| {
        number += 1;
        println!("\n{number}  {title}");
        move || format!("step {number} ({title}) did not hold")
    };
    let named = chapter("The coordinator and three hubs start, one hub is elected");
    arrival::elect(stage).await.with_context(named)?;
    let named = chapter("The pool's data is copied from the cloud once, whatever the number of hubs");
    arrival::copy(stage).await.with_context(named)?;
    let named = chapter("A change in the cloud reaches the clients behind every hub");
    arrival::change(stage).await.with_context(named)?;
    let named = chapter("A hub loses its link to the cloud; another hub carries its heartbeat");
    heartbeat::cut_off(stage).await.with_context(named)?;
    let named = chapter("The leader is killed; another hub takes over and no client notices");
    leader::killed(stage).await.with_context(named)?;
    let named = chapter("The whole pool is offline, and its coordinator is killed");
    let before = offline::alone(stage).await.with_context(named)?;
    let named = chapter("The cloud is back; the pool goes on where it was");
    offline::back(stage, before).await.with_context(named)?;
    println!("\nEvery step held ({watch}).");
    Ok(())
}

/// Something that was verified.
fn holds(sentence: impl AsRef<str>) {
    println!("   ✓ {}", sentence.as_ref());
}

/// Something the reader should know.
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
