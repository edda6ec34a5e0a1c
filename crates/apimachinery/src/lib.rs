//! The nouns and rules of the Kubernetes API, as functions of bytes and text.
//!
//! Nothing here reads a clock, a file or a socket, draws a random number or spawns a task: whatever a rule needs is an
//! argument, so that every rule is a plain test. An [`Object`] is its wire bytes plus the little metadata that each
//! request needs; what a server does not understand passes through it unchanged. Every failure the API can answer with is
//! a [`Status`] whose text is kube-apiserver's own, and no input can make anything here panic.
//!
//! Modules in reading order:
//!
//! | Module | Decides |
//! |---|---|
//! | [`gvr`] | how types are named |
//! | [`kind`] | what the server knows about a resource, and which resources are built in |
//! | [`definition`], [`json_path`] | what a kind is that a manifest declares, and where its columns look |
//! | [`pool_scope`] | which resources a pool shares beside those every pool does |
//! | [`schema`] | what the built-in types look like, field by field |
//! | [`resource_version`] | what a resource version is, and who issued it |
//! | [`quantity`] | how amounts of resources are read and written |
//! | [`query`] | how query parameters are decoded |
//! | [`request_info`] | what a request is about |
//! | [`options`] | what a list, watch, write or delete asks for |
//! | [`selector`] | which objects a list or watch wants |
//! | [`object`] | what an object is, and how one field of its bytes is changed |
//! | [`list`], [`partial`], [`watch`] | how objects travel together, reduced and as events |
//! | [`protobuf`] | how objects are written in protobuf |
//! | [`status`] | what failures look like |
//! | [`negotiation`], [`representation`] | which representation a client wants, and how it is written |
//! | [`yaml`] | how YAML bodies are read |
//! | [`meta`], [`values`] | which metadata is valid, and what single values look like |
//! | [`canonical`] | how an object of a built-in kind is written |
//! | [`typed`] | what a body of a built-in kind says, and which of its fields nobody knows |
//! | [`patch`] | how patches are applied |
//! | [`time`], [`lease`], [`event`] | how times are written, the spec of a Lease, the two views of an event |
//!
//! ```
//! use yurt_apimachinery::{Object, RequestInfo, ResourceVersion, Verb, kind::find_kind};
//!
//! let request = RequestInfo::parse("GET", "/api/v1/namespaces/default/services/web", None)?;
//! assert_eq!(request.verb, Verb::Get);
//! let kind = find_kind(&request.group, &request.resource).expect("services must be built in");
//!
//! let item = r#"{"metadata":{"name":"web","namespace":"default","resourceVersion":"41"},"spec":{"new":1}}"#;
//! let service = Object::parse(item.into(), kind)?;
//! assert_eq!(service.key().as_str(), "default/web");
//! assert_eq!(
//!     service.with_resource_version(ResourceVersion(42)).bytes(),
//!     r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"web","namespace":"default","resourceVersion":"42"},"spec":{"new":1}}"#,
//! );
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod canonical;
pub mod definition;
pub mod deflate;
pub mod event;
pub mod gvr;
pub mod json_path;
pub mod kind;
pub mod lease;
pub mod list;
mod mapping;
pub mod meta;
pub mod negotiation;
pub mod nesting;
pub mod object;
pub mod options;
pub mod partial;
pub mod patch;
pub mod pool_scope;
pub mod protobuf;
pub mod quantity;
pub mod query;
pub mod representation;
pub mod request_info;
pub mod resource_version;
pub mod schema;
pub mod selector;
pub mod status;
pub mod structural;
mod table;
mod text;
pub mod time;
pub mod typed;
pub mod values;
pub mod watch;
pub mod yaml;

pub use gvr::{GroupKind, GroupResource, GroupVersionKind, GroupVersionResource};
pub use kind::ResourceKind;
pub use object::{Object, ObjectKey};
pub use options::{DeleteOptions, ListOptions, WriteOptions};
pub use request_info::{RequestInfo, Verb};
pub use resource_version::{ResourceVersion, Space};
pub use selector::{FieldSelector, LabelSelector, Labels};
pub use status::Status;
