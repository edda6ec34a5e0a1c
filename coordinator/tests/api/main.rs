//! Component tests: the real binary on a free port, spoken to over HTTPS with client certificates.

mod feeding;
mod harness;
mod identity;
mod leases;
mod membership;
mod objects;
mod starting;
mod watching;
