//! Election, feed, heartbeats and relay of this hub within its NodePool.

pub mod election;
pub mod feed;
pub mod forgery_reports;
pub mod heartbeat;
pub mod informer_sync;
pub mod leader;
pub mod lease_client;
pub mod relay;
pub mod scope;
pub mod source_controller;
