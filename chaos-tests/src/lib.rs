//! What may go wrong in a pool, tried out where it is cheap: on models, by the million.
//!
//! Reading order: [`faults`] (what may strike) → [`model`] (the protocols as small state machines, every interleaving up to
//! a bound) → [`check`] (explores a model) → [`run`] → [`report`] (the table at the end). Faults against real
//! processes are `cargo xtask chaos`.

pub mod check;
pub mod faults;
pub mod model;
pub mod random;
pub mod report;
pub mod run;
pub mod scenarios;
