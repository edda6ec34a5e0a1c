//! The columns and cells of custom resources, as their manifests declare them.

use serde_json::{Value, json};

use super::{cells as values, human};
use yurt_apimachinery::kind::{ColumnType, PrinterColumn};
use yurt_apimachinery::time::Time;

/// A column as JSON.
pub(super) fn column(column: &PrinterColumn) -> Value {
    json!({
        "name": column.name,
        "type": column.ty.as_str(),
        "format": column.format,
        "description": column.description,
        "priority": column.priority,
    })
}

/// The name, and one cell per column.
pub(super) fn cells(columns: &[PrinterColumn], object: &Value, now: Time) -> Vec<Value> {
    let name = json!(values::name(object));
    let others = columns.iter().map(|column| match column.path.first(object) {
        Some(value) => cell(column.ty, value, now),
        None => Value::Null,
    });
    std::iter::once(name).chain(others).collect()
}

/// Null if the value has another type than the column.
fn cell(ty: ColumnType, value: &Value, now: Time) -> Value {
    match (ty, value) {
        (ColumnType::String, value) => Value::String(text(value)),
        (ColumnType::Integer, Value::Number(number)) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => json!(whole),
            (None, Some(number)) => json!(number as i64),
            (None, None) => Value::Null,
        },
        (ColumnType::Number, Value::Number(number)) => number.as_f64().map_or(Value::Null, |number| {
            if number.fract() == 0.0 && number.abs() < WHOLE_MAX {
                json!(number as i64)
            } else {
                json!(number)
            }
        }),
        (ColumnType::Boolean, Value::Bool(_)) => value.clone(),
        (ColumnType::Date, Value::String(text)) if matches!(text.as_str(), "" | "null") => json!("<unknown>"),
        (ColumnType::Date, Value::String(_)) => {
            json!(human::since(value, now).unwrap_or_else(|| "<invalid>".to_owned()))
        }
        _ => Value::Null,
    }
}

/// Up to here every whole number is written without an exponent.
const WHOLE_MAX: f64 = 1e15;

/// As Go prints the value.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "<no value>".to_owned(),
        Value::Number(number) if number.is_f64() => number.as_f64().unwrap_or_default().to_string(),
        other => other.to_string(),
    }
}
