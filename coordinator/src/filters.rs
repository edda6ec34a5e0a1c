//! The filters that a request passes before its handler, one file each, in the order of [`chain`].
//!
//! In reading order: [`chain`] (the order), then its stops: [`health`], [`request_info`], [`deadline`],
//! [`authentication`], [`audit`], [`impersonation`], [`pool_data`], [`fair_queue`], [`open_answers`],
//! [`authorization`]. The handlers follow (`dispatch.rs`), and [`headers`] adds the headers of every answer.
//! [`startup_server`] answers in their place until the store is loaded and the namespaces exist.
//!
//! `audit`, `fair_queue`, `open_answers` and `health` exist outside, too: there are the state and the rules, here is
//! their use by a request.

mod audit;
mod authentication;
mod authorization;
pub(crate) mod chain;
mod deadline;
mod fair_queue;
mod headers;
mod health;
mod impersonation;
mod open_answers;
mod pool_data;
mod request_info;
pub(crate) mod startup_server;
