//! The nouns and rules of the Kubernetes API, as functions of bytes and text.
//!
//! Nothing here reads a clock, a file or a socket, draws a random number or spawns a task. All inputs of a rule are
//! arguments, so that every rule is a plain test. An [`Object`] is its wire bytes plus the little metadata that each
//! request needs. Fields that a server does not understand pass through it unchanged. Every failure the API can answer
//! with is a [`Status`] whose text is kube-apiserver's own. No input can make anything here panic.
//!
//! Modules in reading order:
//!
//! | Module | Decides |
//! |---|---|
//! | [`gvr`] | names of types |
//! | [`kind`], [`json_path`] | description of a resource, the built-in resources, and the paths of columns |
//! | [`resource_version`] | resource versions and their issuers |
//! | [`quantity`] | parsing and formatting of amounts of resources |
//! | [`query`] | decoding of query parameters |
//! | [`request_info`], [`Verb`] | resource and verb of a request |
//! | [`options`] | options of a list, watch, write or delete |
//! | [`selector`] | objects that a list or watch selects |
//! | [`json_text`] | parsing and small changes of JSON text |
//! | [`object`], [`packed`] | representation of an object, changes of one field of its bytes, and their deflated form |
//! | [`list`], [`watch`] | objects in lists, and as events |
//! | [`status`] | form of failures |
//! | [`meta`], [`values`] | validation of metadata and of single values |
//! | [`collecting`] | small maps and sets |
//! | [`text`], [`nesting`] | Go's notation in messages, Go's limit of nesting |
//! | [`time`], [`lease`], [`event`] | formats of times, the spec of a Lease, the two views of an event |
//!
//! Other crates encode objects (`yurt-codec`), patch them (`yurt-patch`), and declare kinds by manifests
//! (`yurt-apiextensions`).
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

pub mod collecting;
pub mod event;
pub mod gvr;
pub mod json_path;
pub mod json_text;
pub mod kind;
pub mod lease;
pub mod list;
mod mapping;
pub mod meta;
pub mod nesting;
pub mod object;
pub mod options;
pub mod packed;
pub mod quantity;
pub mod query;
pub mod request_info;
pub mod resource_version;
pub mod selector;
pub mod status;
pub mod text;
pub mod time;
pub mod values;
mod verb;
pub mod watch;

pub use gvr::{GroupKind, GroupResource, GroupVersionKind, GroupVersionResource};
pub use kind::ResourceKind;
pub use object::{Object, ObjectKey};
pub use options::{DeleteOptions, ListOptions, WriteOptions};
pub use request_info::RequestInfo;
pub use resource_version::{ResourceVersion, Space};
pub use selector::{FieldSelector, LabelSelector, Labels};
pub use status::Status;
pub use verb::Verb;
