//! A virtual link between two namespaces: packets read at one end are written at the other according to the outcome of
//! each.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use yurt_runtime::TaskGroup;
use yurt_workspace::Stopwatch;

use super::link_conditions::{Direction, PacketOutcome};
use super::tcp_reset;
use super::tun::Tun;
use crate::link::{Counters, FlowDirection, Mode};

/// One direction of a virtual link.
struct Half {
    from: Arc<Tun>,
    to: Arc<Tun>,
    way: FlowDirection,
    direction: Direction,
    mode: watch::Receiver<Mode>,
    counters: Arc<Counters>,
    clock: Stopwatch,
    /// Packets on their way, by arrival and number.
    under_way: BTreeMap<(Duration, u64), Vec<u8>>,
    number: u64,
}

/// Largest packet of the interfaces, and room to spare.
const PACKET_BYTES_MAX: usize = 2048;
/// Packets on their way in one direction; more are lost.
const UNDER_WAY_MAX: usize = 4096;
/// No packet is under way: the clock may sleep.
const LONG: Duration = Duration::from_secs(3600);

/// Carries packets both ways until the group stops. `near` is the client's end, `far` the server's.
pub(super) fn connect(
    tasks: &TaskGroup,
    [near, far]: [Tun; 2],
    seed: u64,
    mode: &watch::Receiver<Mode>,
    counters: &Arc<Counters>,
) {
    let (near, far) = (Arc::new(near), Arc::new(far));
    let ways = [
        (Arc::clone(&near), Arc::clone(&far), FlowDirection::Request),
        (far, near, FlowDirection::Answer),
    ];
    for (from, to, way) in ways {
        let half = Half {
            from,
            to,
            way,
            direction: Direction::new(seed ^ u64::from(way == FlowDirection::Answer)),
            mode: mode.clone(),
            counters: Arc::clone(counters),
            clock: Stopwatch::start(),
            under_way: BTreeMap::new(),
            number: 0,
        };
        let token = tasks.token();
        tasks.spawn("virtual link", async move {
            let _ = token.run_until_cancelled(half.carry()).await;
        });
    }
}

// === impl Half ===

impl Half {
    async fn carry(mut self) {
        let mut buffer = vec![0; PACKET_BYTES_MAX];
        loop {
            let next = self.under_way.first_key_value().map(|((at, _), _)| *at);
            let pause = next.map_or(LONG, |at| at.saturating_sub(self.clock.elapsed()));
            tokio::select! {
                read = self.from.read(&mut buffer) => match read {
                    Ok(count) => self.take(&buffer[..count]),
                    // An interface that is down sends nothing.
                    Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                },
                () = tokio::time::sleep(pause) => {}
            }
            self.deliver();
        }
    }

    fn take(&mut self, packet: &[u8]) {
        let mode = *self.mode.borrow();
        if mode == Mode::Cut {
            if let Some(reset) = tcp_reset::reset(packet) {
                self.from.write(&reset);
            }
            return;
        }
        let conditions = mode.conditions(self.way);
        let PacketOutcome {
            arrives,
            again,
            is_damaged,
        } = self.direction.outcome(&conditions, self.clock.elapsed(), packet.len());
        let mut packet = packet.to_vec();
        if is_damaged && let Some(last) = packet.last_mut() {
            *last ^= 0x20;
        }
        for at in arrives.into_iter().chain(again) {
            if self.under_way.len() < UNDER_WAY_MAX {
                self.number += 1;
                self.under_way.insert((at, self.number), packet.clone());
            }
        }
    }

    fn deliver(&mut self) {
        let now = self.clock.elapsed();
        while let Some(first) = self.under_way.first_entry() {
            if first.key().0 > now {
                return;
            }
            let packet = first.remove();
            match self.way {
                FlowDirection::Request if tcp_reset::opens_a_connection(&packet) => self.counters.add_connection(),
                FlowDirection::Request => {}
                FlowDirection::Answer => self.counters.add_bytes(packet.len()),
            }
            self.to.write(&packet);
        }
    }
}
