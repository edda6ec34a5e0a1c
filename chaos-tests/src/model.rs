//! The protocols of the pool as small state machines, explored exhaustively up to stated bounds.
//!
//! * [`leadership`]: election, fence, feed, and completeness of data.
//! * [`replica`]: deliveries to a client while sources lag, crash, switch and go back in time.
//!
//! A model describes the rules, not the code: read it together with `docs/ARCHITECTURE.md`. Each has a list of
//! mutations, rules left out one at a time; a property must catch every one of them.

pub mod leadership;
pub mod replica;
