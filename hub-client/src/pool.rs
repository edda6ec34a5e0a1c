//! This hub's part in its NodePool: election, feed, heartbeats, relay.

pub mod election;
pub mod feed;
pub mod heartbeat;
pub mod informer_sync;
pub mod leader;
pub mod lease_client;
pub mod probe;
pub mod relay;
pub mod scope;
