//! A custom kind for tests.

use yurt_apimachinery::ResourceKind;
use yurt_apimachinery::json_path::JsonPath;
use yurt_apimachinery::kind::{ColumnType, CustomKind, PrinterColumn};

/// A kind of `example.com` with a column of each type.
pub(crate) fn widget() -> &'static ResourceKind {
    let column = |name: &str, ty: ColumnType, path: &str| PrinterColumn {
        name: name.to_owned(),
        ty,
        format: String::new(),
        description: format!("Custom resource definition column (in JSONPath format): {path}"),
        priority: 0,
        path: JsonPath::parse(path).expect("a path"),
    };
    let size = PrinterColumn {
        description: "How big".to_owned(),
        priority: 1,
        ..column("Size", ColumnType::Integer, ".spec.size")
    };
    let kind = CustomKind {
        group: "example.com".to_owned(),
        version: "v1".to_owned(),
        plural: "widgets".to_owned(),
        singular: "widget".to_owned(),
        kind: "Widget".to_owned(),
        list_kind: "WidgetList".to_owned(),
        namespaced: true,
        short_names: vec!["wd".to_owned()],
        categories: Vec::new(),
        fields: vec!["spec.color".to_owned()],
        columns: vec![
            column("Color", ColumnType::String, ".spec.color"),
            size,
            column("Weight", ColumnType::Number, ".spec.weight"),
            column("On", ColumnType::Boolean, ".spec.on"),
            column("Since", ColumnType::Date, ".status.since"),
        ],
        has_status: true,
    };
    kind.leak()
}
