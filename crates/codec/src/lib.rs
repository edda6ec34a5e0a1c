//! Representations of objects of the Kubernetes API: what a client wants, and bytes in that form.
//!
//! Pure, as `yurt-apimachinery` is: nothing reads a clock, a file or a socket, and no input can make anything panic.
//! [`representation`] is the only place that turns objects into bodies and events.
//!
//! Modules in reading order:
//!
//! | Module | Decides |
//! |---|---|
//! | [`negotiation`], [`representation`] | representation that a client wants, and its encoding |
//! | [`encoding_cache`] | encodings that are cached with an object |
//! | [`schema`] | fields of the built-in types |
//! | [`protobuf`] | protobuf encoding of objects |
//! | [`yaml`] | parsing of YAML bodies |
//! | [`partial`] | objects reduced to metadata |
//! | [`deflate`] | gzip streams of pieces that are compressed once |
//! | [`decoded`] | memory that a decoded body may take |
//! | [`type_meta`] | kind that a body claims |
//! | [`typed`] | decoding of a body of a built-in kind, and its unknown fields |
//! | [`canonical`] | canonical form of an object of a built-in kind |
//!
//! ```
//! use yurt_apimachinery::{Object, kind::find_kind, time::Time};
//! use yurt_codec::negotiation::{Shape, negotiate};
//! use yurt_codec::protobuf;
//!
//! let kind = find_kind("", "configmaps").expect("a built-in kind");
//! let object = Object::parse(r#"{"metadata":{"name":"a","namespace":"n"}}"#.into(), kind)?;
//!
//! let accept = Some("application/vnd.kubernetes.protobuf");
//! let wanted = negotiate(accept, Shape::Object, protobuf::supports(kind), None, None)?;
//! let body = wanted.object(kind, &object, Time::from_unix(0));
//! assert!(body.starts_with(protobuf::PREFIX));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod base64_text;
pub mod canonical;
pub mod decoded;
pub mod deflate;
pub mod encoding_cache;
pub mod negotiation;
pub mod partial;
pub mod protobuf;
pub mod representation;
pub mod schema;
mod table;
#[cfg(test)]
mod testing;
pub mod type_meta;
pub mod typed;
pub mod yaml;
