//! Custom resources: kinds that files declare, and the rules of their objects. Pure.
//!
//! | Module | Decides |
//! |---|---|
//! | [`definition`] | kinds that a manifest (`CustomResourceDefinition`) declares |
//! | [`structural`] | effect of the schema of a kind on its objects |
//!
//! Paths of columns (`JsonPath`) belong to the description of a kind, in `yurt_apimachinery::kind`.

pub mod definition;
pub mod structural;
