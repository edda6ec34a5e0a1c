//! Placeholder header, replaced by the crate's map.
