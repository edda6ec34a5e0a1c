//! The protocols of the pool as small state machines, explored exhaustively up to stated bounds.
//!
//! * [`leadership`]: who leads, whose feed is taken, when data counts as complete.
//! * [`replica`]: what a client is told while sources lag, crash, switch and go back in time.
//!
//! A model describes the rules, not the code: it is read beside `docs/ARCHITECTURE.md`. Each has a list of mutations, rules
//! left out one at a time; a property has to notice every one of them.

pub mod leadership;
pub mod replica;
