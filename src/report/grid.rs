//! A table of texts, rendered as aligned text, as Markdown or on the page.

use std::collections::BTreeSet;

use serde::Serialize;

/// A table. The first column has labels, the others numbers, the most important ones on the left.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Grid {
    /// The headings of the columns.
    pub heads: Vec<String>,
    /// The rows, at most as wide as the headings. A row of a single cell is a heading for those below it.
    pub rows: Vec<Vec<String>>,
}

/// Blanks between columns.
const GAP: usize = 2;
/// The least width of the first column.
const MIN_WIDTH: usize = 12;

impl Grid {
    /// Makes a table of these headings and rows.
    pub fn new<'h>(heads: impl IntoIterator<Item = &'h str>, rows: Vec<Vec<String>>) -> Grid {
        let heads = heads.into_iter().map(str::to_owned).collect();
        Grid { heads, rows }
    }

    /// Renders aligned text. If `width` is given, columns that do not fit are left out from the right.
    pub fn to_text(&self, width: Option<usize>) -> String {
        let widths: Vec<usize> = (0..self.heads.len()).map(|at| self.widest(at)).collect();
        let Some((first, others)) = widths.split_first() else {
            return String::new();
        };
        let width = width.unwrap_or(usize::MAX);
        let least = (*first).min(MIN_WIDTH.max(width / 3));
        let rows = self.rows.iter().filter(|row| row.len() > 1);
        let names: BTreeSet<&String> = rows.filter_map(|row| row.first()).collect();
        // Rather a column less than two names that look the same.
        let is_told_apart = |wide: &usize| {
            let short = names.iter().map(|name| shortened(name, *wide));
            short.collect::<BTreeSet<_>>().len() == names.len()
        };
        let mut wides = least..=(*first).min((width / 3 * 2).max(least));
        let mut used = wides.find(is_told_apart).unwrap_or(least);
        let fits = |wide: &&usize| {
            used = used.saturating_add(**wide + GAP);
            used <= width
        };
        let shown = others.iter().take_while(fits).count();
        let rest: usize = others.iter().take(shown).map(|wide| wide + GAP).sum();
        let first = (*first).min(width.saturating_sub(rest));
        let mut text = String::new();
        for cells in std::iter::once(&self.heads).chain(&self.rows) {
            let mut cells = cells.iter();
            let name = cells.next().map_or("", String::as_str);
            let name = shortened(name, if cells.len() == 0 { width } else { first });
            text.push_str(&format!("{name:<first$}"));
            for (cell, wide) in cells.zip(others).take(shown) {
                text.push_str(&format!("{:GAP$}{cell:>wide$}", ""));
            }
            text.truncate(text.trim_end().len());
            text.push('\n');
        }
        text
    }

    /// Renders a table of Markdown.
    pub fn to_markdown(&self) -> String {
        let line = |cells: &[String]| {
            let cells = cells.iter().map(|cell| cell.replace('|', "\\|"));
            format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
        };
        let sides = (0..self.heads.len()).map(|at| if at == 0 { ":--" } else { "--:" });
        let sides: Vec<String> = sides.map(str::to_owned).collect();
        let wide = |row: &Vec<String>| {
            let mut row = row.clone();
            row.resize(self.heads.len(), String::new());
            line(&row)
        };
        let rows: String = self.rows.iter().map(wide).collect();
        line(&self.heads) + &line(&sides) + &rows
    }

    fn widest(&self, at: usize) -> usize {
        let rows = std::iter::once(&self.heads).chain(&self.rows);
        // A heading of rows may reach over the other columns.
        let rows = rows.filter(|row| row.len() > 1);
        let cells = rows.filter_map(|row| row.get(at));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    }
}

/// Shortens a name to so many columns, to its end: there names of runs have their values.
fn shortened(name: &str, width: usize) -> String {
    let length = name.chars().count();
    match length <= width {
        true => name.to_owned(),
        false => std::iter::once('…')
            .chain(name.chars().skip(length + 1 - width))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::load::tests::{assert_says, assert_says_all};

    fn grid() -> Grid {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        Grid {
            heads: row(["run", "ok", "TTFT p99"]),
            rows: vec![
                row(["routing_policy=shortest_queue", "1000", "31.5 ms"]),
                row(["a|b", "9", "-"]),
            ],
        }
    }

    #[test]
    fn columns_that_do_not_fit_are_left_out_from_the_right() {
        for width in 20..60 {
            let text = grid().to_text(Some(width));
            let longest = text.lines().map(|line| line.chars().count()).max();
            assert!(longest.unwrap() <= width, "{width}:\n{text}");
            assert!(text.contains("1000"), "{text}");
            assert_eq!(text.contains("31.5 ms"), width >= 28, "{width}:\n{text}");
        }
        let text = grid().to_text(Some(30));
        assert!(text.contains("…hortest_queue"), "{text}");
    }

    #[test]
    fn shortened_names_are_told_apart() {
        let row = |rate: u32| {
            let name = format!("request_rate={rate}, routing_policy=shortest_queue");
            [&name, "1000", "31.5 ms", "12.34 ms"]
                .map(str::to_owned)
                .to_vec()
        };
        let grid = Grid {
            heads: ["run", "ok", "TTFT p50", "TTFT p99"]
                .map(str::to_owned)
                .into(),
            rows: vec![row(10), row(20)],
        };
        let text = grid.to_text(Some(56));
        assert_says_all(
            &text,
            ["10, routing_policy", "20, routing_policy", "31.5 ms"],
        );
        // Where they cannot be, columns are shown as if they were.
        assert_says(&grid.to_text(Some(30)), "1000");
    }

    #[test]
    fn a_bar_does_not_break_markdown() {
        let text = grid().to_markdown();
        assert!(text.contains("| a\\|b | 9 | - |\n"), "{text}");
    }
}
