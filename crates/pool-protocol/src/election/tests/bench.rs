//! Test bench of one machine, with the answers of the test.

use std::time::Duration;

use yurt_apimachinery::ResourceVersion;

use crate::election::*;

/// A machine under test, driven by milliseconds.
pub(super) struct Bench {
    pub(super) machine: Machine,
    pub(super) jitter: f64,
    output: Output,
    reading: Option<Attempt>,
    writing: Option<Attempt>,
}

pub(super) fn ms(value: u64) -> Duration {
    Duration::from_millis(value)
}

pub(super) fn held_by(holder: &str, version: u64) -> Lease {
    Lease {
        resource_version: ResourceVersion(version),
        holder_identity: holder.to_owned(),
        lease_duration_seconds: 15,
        ..Lease::default()
    }
}

pub(super) fn free(version: u64) -> Lease {
    Lease {
        lease_duration_seconds: 1,
        ..held_by("", version)
    }
}

impl Lease {
    /// The lease as store "s1" answers its holder.
    pub(super) fn fenced(self, epoch: u64) -> Lease {
        Lease {
            fence: Some(Fence {
                epoch,
                store: "s1".to_owned(),
            }),
            ..self
        }
    }
}

impl Bench {
    pub(super) fn new() -> Self {
        Self::with(Config::new("me"))
    }

    pub(super) fn with(config: Config) -> Self {
        let mut machine = Machine::new(config).unwrap();
        let output = machine.step(ms(0), 0.0, Input::Tick);
        Bench {
            machine,
            jitter: 0.0,
            output,
            reading: None,
            writing: None,
        }
    }

    /// Both links are up and the first read is in flight.
    pub(super) fn candidate() -> Self {
        Self::candidate_of_rank(0)
    }

    pub(super) fn candidate_of_rank(rank: u32) -> Self {
        Self::with(Config {
            rank,
            ..Config::new("me")
        })
        .linked()
    }

    pub(super) fn linked(mut self) -> Self {
        self.at(0, Input::Coordinator { reachable: true });
        assert!(matches!(
            self.at(0, Input::Cloud { failed_probes: 0 })[..],
            [Action::ReadLease(_)]
        ));
        self
    }

    /// Acquired with a request sent at 1,000 ms and answered at 1,400 ms: version 10, epoch 7.
    pub(super) fn leader() -> Self {
        Self::candidate().leading()
    }

    pub(super) fn leading(mut self) -> Self {
        assert!(matches!(
            self.read(1_000, ReadOutcome::Found(free(9)))[..],
            [Action::Acquire(_)]
        ));
        assert!(matches!(
            self.stored(1_400, held_by("me", 10).fenced(7))[..],
            [Action::StartLeading(_)]
        ));
        self
    }

    pub(super) fn at(&mut self, at: u64, input: Input) -> Vec<Action> {
        self.output = self.machine.step(ms(at), self.jitter, input);
        assert!(
            self.output.wake_at.is_none_or(|wake| wake > ms(at)),
            "{:?} at {at}",
            self.output
        );
        for action in &self.output.actions {
            match action {
                Action::ReadLease(attempt) => self.reading = Some(*attempt),
                Action::Acquire(write) | Action::Renew(write) | Action::Release(write) => {
                    self.writing = Some(write.attempt);
                }
                Action::StartLeading(_) | Action::StopLeading(_) => {}
            }
        }
        self.output.actions.clone()
    }

    /// Answers the last read.
    pub(super) fn read(&mut self, at: u64, outcome: ReadOutcome) -> Vec<Action> {
        let attempt = self.reading.take().expect("no read is in flight");
        self.at(at, Input::ReadDone(attempt, outcome))
    }

    /// Answers the last write.
    pub(super) fn write(&mut self, at: u64, outcome: WriteOutcome) -> Vec<Action> {
        let attempt = self.last_write();
        self.writing = None;
        self.at(at, Input::WriteDone(attempt, outcome))
    }

    pub(super) fn stored(&mut self, at: u64, lease: Lease) -> Vec<Action> {
        self.write(at, WriteOutcome::Stored(lease))
    }

    pub(super) fn last_write(&self) -> Attempt {
        self.writing.expect("no write is in flight")
    }

    pub(super) fn state(&self) -> HubState {
        self.output.state
    }

    pub(super) fn wake_ms(&self) -> Option<u128> {
        self.output.wake_at.map(|wake| wake.as_millis())
    }
}
