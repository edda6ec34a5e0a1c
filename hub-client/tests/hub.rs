//! Component tests: a hub in this process, between a scripted cloud and clients on its ports, over real sockets.

#[cfg(test)]
mod hub {
    mod authorizing;
    mod bound_filters;
    mod caching;
    mod callers;
    mod client;
    mod cloud;
    mod configuring;
    mod detours;
    mod disks;
    mod electing;
    mod filter_effects;
    mod filtering;
    mod golden_disk;
    mod golden_feed;
    mod golden_watch;
    mod harness;
    mod health;
    mod heartbeats;
    mod held_ports;
    mod hostile_requests;
    mod joining;
    mod lanes;
    mod limits;
    mod membership;
    mod modes;
    mod node_identity;
    mod offline_events;
    mod offline_reads;
    mod offline_tokens;
    mod offline_writes;
    mod passing_on;
    mod pool;
    mod pool_data;
    mod raw_http2;
    mod relay;
    mod relay_attacks;
    mod relay_pool;
    mod reporting;
    mod servers;
    mod sharing;
    mod sharing_limits;
    mod silence;
    mod sizes;
    mod smuggling;
    mod smuggling_http2;
    mod starting;
    mod thin_links;
    mod timeline;
    mod upgrades;
    mod verifying;
    mod warning;
    mod wire;
}
