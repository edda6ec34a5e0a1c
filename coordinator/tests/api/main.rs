//! Component tests: the real binary on a free port, spoken to over HTTPS with client certificates.

#[cfg(test)]
mod applying;
#[cfg(test)]
mod auditing;
#[cfg(test)]
mod authorizing;
#[cfg(test)]
mod bodies;
#[cfg(test)]
mod budgets;
#[cfg(test)]
mod custom;
#[cfg(test)]
mod documents;
#[cfg(test)]
mod electing;
#[cfg(test)]
mod electors;
#[cfg(test)]
mod etcd;
#[cfg(test)]
mod events;
#[cfg(test)]
mod feed_bodies;
#[cfg(test)]
mod feeding;
#[cfg(test)]
mod fields;
#[cfg(test)]
mod forging;
#[cfg(test)]
mod formats;
#[cfg(test)]
mod full_disk;
#[cfg(test)]
mod golden_disk;
#[cfg(test)]
mod golden_feed;
#[cfg(test)]
mod golden_watch;
#[cfg(test)]
mod harness;
#[cfg(test)]
mod identity;
#[cfg(test)]
mod leases;
#[cfg(test)]
mod lifecycles;
#[cfg(test)]
mod limits;
mod listing;
#[cfg(test)]
mod membership;
mod metering;
#[cfg(test)]
mod objects;
#[cfg(test)]
mod patching;
#[cfg(test)]
mod pods;
#[cfg(test)]
mod requests;
#[cfg(test)]
mod sharing;
#[cfg(test)]
mod starting;
#[cfg(test)]
mod strangers;
#[cfg(test)]
mod tokens;
#[cfg(test)]
mod watching;
#[cfg(test)]
mod wide;
