//! The figures of all sides, row by row, and how they are printed.

use std::path::Path;

use anyhow::{Context, Result};

use super::system_under_test::Side;

/// Unit of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Mib,
    Kib,
    Millis,
    Micros,
    PerSecond,
    MegabytesPerHour,
    Count,
    Percent,
}

/// One figure.
struct Row {
    number: &'static str,
    what: String,
    unit: Unit,
    /// One per column; the first one is ours.
    values: Vec<Option<f64>>,
    /// Ratio of the best of the columns that are compared with ours.
    ratio: Option<f64>,
}

/// All figures.
#[derive(Default)]
pub(super) struct Table {
    /// Build that was measured: "rows: the rest". May be empty.
    build_info: String,
    rows: Vec<Row>,
    kind: Kind,
}

/// Kind of table: its columns, and the markers around it in a file.
#[derive(Clone, Copy, Default)]
enum Kind {
    #[default]
    Coordinator,
    Pool,
    Hub,
}

/// Takes the figures of one side.
pub(super) struct Notes<'a> {
    table: &'a mut Table,
    column: usize,
}

// === impl Table ===

impl Table {
    /// Without figures yet.
    pub(super) fn new(build_info: String) -> Self {
        Self {
            build_info,
            ..Self::default()
        }
    }

    pub(super) fn of(&mut self, side: Side) -> Notes<'_> {
        self.column(side as usize)
    }

    /// Takes the figures of this column, counted from 0.
    pub(super) fn column(&mut self, column: usize) -> Notes<'_> {
        Notes { table: self, column }
    }

    /// The figures of pools.
    pub(super) fn of_pools(build_info: String) -> Self {
        Self {
            kind: Kind::Pool,
            ..Self::new(build_info)
        }
    }

    /// The figures of a hub and of other ways to the cloud.
    pub(super) fn of_hubs(build_info: String) -> Self {
        Self {
            kind: Kind::Hub,
            ..Self::new(build_info)
        }
    }

    /// Markdown.
    pub(super) fn text(&self) -> String {
        self.markdown(&[&self.build_info], self.rows.iter().map(Row::line).collect())
    }

    fn markdown(&self, build_infos: &[&str], mut lines: Vec<String>) -> String {
        let header = self.kind.header();
        lines.sort_by_key(|line| number(line));
        let rule = "|---".repeat(header.matches('|').count() - 1);
        lines.insert(0, format!("{header}\n{rule}|"));
        let build_infos = build_infos.iter().filter(|build_info| !build_info.is_empty());
        let head: String = build_infos.map(|build_info| format!("{build_info}\n\n")).collect();
        head + &lines.join("\n") + "\n"
    }

    /// Puts the table between the markers of a file. `keep` leaves the rows there that were not measured.
    pub(super) fn update(&self, file: &Path, keep: bool) -> Result<()> {
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let text = self.put_into(&text, keep)?;
        std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
    }

    fn put_into(&self, text: &str, keep: bool) -> Result<String> {
        let [begin, end] = self.kind.markers();
        let (before, rest) = text.split_once(begin).context("the file has no marker for the table")?;
        let (old, after) = rest
            .split_once(end)
            .context("the file has no marker for the table's end")?;
        let is_measured = |line: &str| self.rows.iter().any(|row| line.starts_with(&row.head()));
        let kept = old
            .lines()
            .filter(|line| keep && number(line).is_some() && !is_measured(line));
        let lines = kept.map(str::to_owned).chain(self.rows.iter().map(Row::line));
        // Of two lines about the same rows, the later one is true.
        let is_repeated = |line: &str| line.split(':').next() == self.build_info.split(':').next();
        let build_infos = old
            .lines()
            .filter(|line| keep && !line.is_empty() && !line.starts_with('|') && !is_repeated(line));
        let build_infos: Vec<&str> = build_infos.chain([self.build_info.as_str()]).collect();
        Ok(format!(
            "{before}{begin}\n{}{end}{after}",
            self.markdown(&build_infos, lines.collect())
        ))
    }
}

// === impl Kind ===

impl Kind {
    fn header(self) -> &'static str {
        match self {
            Self::Coordinator => "| row | what | yurt-coordinator | kube-apiserver | ratio |",
            Self::Pool => "| row | what | pool | kube-apiserver as its server | ratio |",
            Self::Hub => "| row | what | yurthub | direct | pass-through | upstream 1.7.0 | upstream 1.5.1 | ratio |",
        }
    }

    /// Number of columns with figures, ours first.
    fn columns(self) -> usize {
        match self {
            Self::Coordinator | Self::Pool => 2,
            Self::Hub => 5,
        }
    }

    /// The first of the columns that ours is compared with.
    fn peers(self) -> usize {
        match self {
            Self::Coordinator | Self::Pool => 1,
            Self::Hub => 3,
        }
    }

    fn markers(self) -> [&'static str; 2] {
        match self {
            Self::Coordinator => ["<!-- bench: begin -->", "<!-- bench: end -->"],
            Self::Pool => ["<!-- bench-pool: begin -->", "<!-- bench-pool: end -->"],
            Self::Hub => ["<!-- bench-hub: begin -->", "<!-- bench-hub: end -->"],
        }
    }
}

/// The target's number a line of the table is about; `None` for the lines of its head.
fn number(line: &str) -> Option<u32> {
    line.strip_prefix("| ")?.split(" |").next()?.parse().ok()
}

// === impl Row ===

impl Row {
    /// Beginning of the line.
    fn head(&self) -> String {
        format!("| {} | {} |", self.number, self.what)
    }

    fn line(&self) -> String {
        let cell = |value: &Option<f64>| value.map_or_else(|| "–".to_owned(), |value| self.unit.text(value));
        let cells: Vec<String> = self.values.iter().map(cell).collect();
        let ratio = self
            .ratio
            .map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.1}x"));
        format!("{} {} | {ratio} |", self.head(), cells.join(" | "))
    }

    /// Compares ours with the best of the columns from `peers` on.
    fn compare(&mut self, peers: usize) {
        let is_rate = self.unit == Unit::PerSecond;
        let better = |left: f64, right: f64| if is_rate { left.max(right) } else { left.min(right) };
        let best = self.values[peers..].iter().flatten().copied().reduce(better);
        self.ratio = match (self.values[0], best) {
            (Some(ours), Some(best)) if ours > 0.0 && is_rate => Some(ours / best),
            (Some(ours), Some(best)) if ours > 0.0 => Some(best / ours),
            _ => None,
        };
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
                values: vec![None; self.table.kind.columns()],
                ratio: None,
            });
            self.table.rows.len() - 1
        });
        let row = &mut self.table.rows[at];
        row.values[self.column] = Some(value);
        row.compare(self.table.kind.peers());
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
            Self::MegabytesPerHour => (1, "MB/h"),
            Self::Count => (0, ""),
            Self::Percent => (2, "%"),
        };
        format!("{value:.digits$} {unit}").trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_say_how_many_times_better() {
        let mut table = Table::default();
        table.of(Side::Ours).add("10", "time", Unit::Millis, 2.0);
        table.of(Side::Baseline).add("10", "time", Unit::Millis, 20.0);
        table.of(Side::Ours).add("7", "rate", Unit::PerSecond, 30.0);
        table.of(Side::Baseline).add("7", "rate", Unit::PerSecond, 10.0);
        let text = table.text();
        let lines: Vec<&str> = text.lines().filter(|line| number(line).is_some()).collect();
        assert!(
            lines[0].ends_with("| 3.0x |") && lines[1].ends_with("| 10.0x |"),
            "{text}"
        );
    }

    #[test]
    fn hub_is_compared_with_the_better_version_of_upstream() {
        let mut table = Table::of_hubs(String::new());
        for (column, value) in [(0, 5.0), (1, 1.0), (3, 40.0), (4, 20.0)] {
            table.column(column).add("23", "memory", Unit::Mib, value);
        }
        let text = table.text();
        let row = "| 23 | memory | 5.0 MiB | 1.0 MiB | – | 40.0 MiB | 20.0 MiB | 4.0x |";
        assert!(text.lines().any(|line| line == row), "{text}");
    }

    #[test]
    fn part_of_the_table_leaves_the_rest_of_a_file_as_it_is() {
        let mut first = Table::new("All rows: an old tree".to_owned());
        first.of(Side::Ours).add("10", "time", Unit::Millis, 2.0);
        first.of(Side::Ours).add("14", "written", Unit::MegabytesPerHour, 9.0);
        let [begin, end] = Kind::Coordinator.markers();
        let empty = format!("before\n{begin}\n{end}\nafter\n");
        let text = first.put_into(&empty, false).expect("markers");
        let mut second = Table::new("Disk: a new tree".to_owned());
        second.of(Side::Ours).add("14", "written", Unit::MegabytesPerHour, 1.5);
        second.of(Side::Ours).add("2", "memory", Unit::Mib, 3.0);
        let kept = second.put_into(&text, true).expect("markers");
        let rows: Vec<_> = kept.lines().filter(|line| number(line).is_some()).collect();
        assert_eq!(
            rows,
            [
                "| 2 | memory | 3.0 MiB | – | – |",
                "| 10 | time | 2.00 ms | – | – |",
                "| 14 | written | 1.5 MB/h | – | – |"
            ]
        );
        let build_infos = format!("{begin}\nAll rows: an old tree\n\nDisk: a new tree\n\n| row");
        assert!(kept.contains(&build_infos), "{kept}");
        let again = second.put_into(&kept, true).expect("markers");
        assert_eq!(again, kept, "what is measured again is said once");
        assert!(kept.starts_with("before\n") && kept.ends_with("\nafter\n"), "{kept}");
        let whole = second.put_into(&kept, false).expect("markers");
        assert!(!whole.contains("time") && !whole.contains("an old tree"), "{whole}");
    }
}
