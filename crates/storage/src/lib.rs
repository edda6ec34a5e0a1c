//! Stores of Kubernetes objects: collections with a lock, backends for own objects, durable copies, lists and watches.
//!
//! In reading order:
//!
//! * [`shared`]: a collection (crate `yurt-collection`) with a lock and a wake-up.
//! * [`backend`]: the storage trait for own objects; [`contract`]: the promises every backend keeps.
//! * [`embedded`]: the redb backend and the durable copy of replicas; [`etcd3`]: several coordinators over one etcd.
//! * [`cacher`]: own collections fed by a backend; [`replica`]: cloud collections fed by a source.
//!
//! * [`kinds`]: kinds that are learned while a process runs.
//! * [`serve`]: lists and watches for clients, the same for own objects and replicas, in the coordinator and in the
//!   hub.
//!
//! Own objects and replicas are read through the same [`SharedCollection`]; they differ in who writes, and in the
//! space of their resourceVersions.

pub mod backend;
pub mod cacher;
pub mod contract;
pub mod embedded;
pub mod etcd3;
pub mod kinds;
pub mod replica;
pub mod serve;
pub mod shared;

pub use backend::{Action, Durability, Expect, Op, Storage, StorageError};
pub use cacher::Cacher;
pub use embedded::Embedded;
pub use etcd3::Etcd;
pub use replica::{Oversized, Replica, Replicas};
pub use shared::{NotApplied, OnlyWriter, SharedCollection};
