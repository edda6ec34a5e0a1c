//! Patches of objects, bounded so that no patch can exhaust memory or stack. Pure.
//!
//! | Module | Patches |
//! |---|---|
//! | `json` | JSON patches (RFC 6902) |
//! | `merge` | merge patches (RFC 7396) |
//! | `strategic` | strategic merge patches: lists merge by the keys of their elements |
//! | [`apply`] | server-side apply: fields belong to managers |

pub mod apply;
mod json;
mod merge;
mod strategic;

pub use json::{MAX_OPERATIONS, apply_json_patch};
pub use merge::apply_merge_patch;
pub use strategic::{apply_strategic_merge_patch, read_strategic_merge_patch, show_patch};

use serde_json::Value;

/// Removes members that are null: a value that is new to the document deletes nothing.
fn without_nulls(mut value: Value) -> Value {
    fn drop_nulls(value: &mut Value) {
        match value {
            Value::Object(members) => {
                members.retain(|_, value| !value.is_null());
                members.values_mut().for_each(drop_nulls);
            }
            Value::Array(items) => items.iter_mut().for_each(drop_nulls),
            _ => {}
        }
    }
    drop_nulls(&mut value);
    value
}
