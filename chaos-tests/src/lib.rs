//! Failures of a pool, tested where it is cheap: on models, in millions of states.
//!
//! Reading order:
//! * [`faults`]: the catalogue;
//! * [`model`]: the protocols as small state machines, with every interleaving up to a bound;
//! * [`check`]: explores a model;
//! * [`simulation`]: the real rules under a seed's faults, with the [`coordinator`] as they see it;
//! * [`run`]: the steps of a run;
//! * [`report`]: the table at the end.
//!
//! Faults against real processes are `cargo xtask chaos`.

pub mod check;
pub mod coordinator;
pub mod faults;
pub mod model;
pub mod random;
pub mod report;
pub mod run;
pub mod simulation;
