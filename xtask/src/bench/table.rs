//! The figures of both sides, row by row, and how they are printed.

use std::path::Path;

use anyhow::{Context, Result};

use super::subject::Side;

/// What a number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Mib,
    Kib,
    Millis,
    Micros,
    PerSecond,
}

/// One figure.
struct Row {
    number: &'static str,
    what: String,
    unit: Unit,
    ours: Option<f64>,
    peer: Option<f64>,
}

/// All figures.
#[derive(Default)]
pub(super) struct Table {
    rows: Vec<Row>,
}

/// Takes the figures of one side.
pub(super) struct Notes<'a> {
    table: &'a mut Table,
    side: Side,
}

const BEGIN: &str = "<!-- bench: begin -->";
const END: &str = "<!-- bench: end -->";

// === impl Table ===

impl Table {
    pub(super) fn of(&mut self, side: Side) -> Notes<'_> {
        Notes { table: self, side }
    }

    /// Markdown.
    pub(super) fn text(&self) -> String {
        let mut rows: Vec<&Row> = self.rows.iter().collect();
        rows.sort_by_key(|row| {
            row.number
                .trim_end_matches(char::is_alphabetic)
                .parse::<u32>()
                .unwrap_or(0)
        });
        let mut text =
            String::from("| row | what | yurt-coordinator | kube-apiserver | ratio |\n|---|---|---|---|---|\n");
        for row in rows {
            let cell = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), |value| row.unit.text(value));
            let ratio = match (row.ours, row.peer) {
                (Some(ours), Some(peer)) if ours > 0.0 && row.unit == Unit::PerSecond => format!("{:.1}x", ours / peer),
                (Some(ours), Some(peer)) if ours > 0.0 => format!("{:.1}x", peer / ours),
                _ => "–".to_owned(),
            };
            text.push_str(&format!(
                "| {} | {} | {} | {} | {ratio} |\n",
                row.number,
                row.what,
                cell(row.ours),
                cell(row.peer)
            ));
        }
        text
    }

    /// Puts the table between the markers of a file.
    pub(super) fn update(&self, file: &Path) -> Result<()> {
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let (before, rest) = text.split_once(BEGIN).context("the file has no marker for the table")?;
        let (_, after) = rest
            .split_once(END)
            .context("the file has no marker for the table's end")?;
        let text = format!("{before}{BEGIN}\n{}{END}{after}", self.text());
        std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
    }
}

// === impl Notes ===

impl Notes<'_> {
    /// Notes a figure of a row of the targets.
    pub(super) fn add(&mut self, number: &'static str, what: &str, unit: Unit, value: f64) {
        let known = self
            .table
            .rows
            .iter()
            .position(|row| (row.number, row.what.as_str()) == (number, what));
        let at = known.unwrap_or_else(|| {
            self.table.rows.push(Row {
                number,
                what: what.to_owned(),
                unit,
                ours: None,
                peer: None,
            });
            self.table.rows.len() - 1
        });
        let row = &mut self.table.rows[at];
        match self.side {
            Side::Ours => row.ours = Some(value),
            Side::Peer => row.peer = Some(value),
        }
        println!("      {number:>3} {what}: {}", unit.text(value));
    }
}

// === impl Unit ===

impl Unit {
    fn text(self, value: f64) -> String {
        let (digits, unit) = match self {
            Self::Mib => (1, "MiB"),
            Self::Kib => (1, "KiB"),
            Self::Millis => (2, "ms"),
            Self::Micros => (1, "µs"),
            Self::PerSecond => (0, "/s"),
        };
        format!("{value:.digits$} {unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_say_how_many_times_better() {
        let mut table = Table::default();
        table.of(Side::Ours).add("10", "time", Unit::Millis, 2.0);
        table.of(Side::Peer).add("10", "time", Unit::Millis, 20.0);
        table.of(Side::Ours).add("7", "rate", Unit::PerSecond, 30.0);
        table.of(Side::Peer).add("7", "rate", Unit::PerSecond, 10.0);
        let text = table.text();
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert!(
            lines[0].ends_with("| 3.0x |") && lines[1].ends_with("| 10.0x |"),
            "{text}"
        );
    }
}
