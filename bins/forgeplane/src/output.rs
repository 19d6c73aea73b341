//! What people see: tables, views, text that cannot play tricks on a terminal.

use std::io::{IsTerminal as _, Write as _};

use comfy_table::{ContentArrangement, Table, presets};
use jiff::Timestamp;
use serde::Serialize;

use crate::failure::Failure;

/// Prints pretty JSON.
pub fn json<T: Serialize>(value: &T) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|e| Failure::local("output", e.to_string()))?;
    println!("{text}");
    Ok(())
}

/// Prints a table; says so if it is empty.
pub fn table<const N: usize>(header: [&str; N], rows: impl IntoIterator<Item = [String; N]>) {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header);
    for row in rows {
        table.add_row(row.map(|cell| neutral(&cell, false)));
    }
    if table.is_empty() {
        println!("nothing here");
    } else {
        println!("{}", table.trim_fmt());
    }
}

/// Prints names and values, without those that are absent.
pub fn view<'a>(pairs: impl IntoIterator<Item = (&'a str, Option<String>)>) {
    for (name, value) in pairs {
        if let Some(value) = value {
            println!("{:<16} {}", format!("{name}:"), neutral(&value, false));
        }
    }
}

/// A time for people: to the second.
pub fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%SZ").to_string()
}

/// As [`time`], or a dash.
pub fn time_or_dash(at: Option<Timestamp>) -> String {
    at.map_or_else(|| "-".to_owned(), time)
}

/// Writes bytes of a log or document; to a terminal without control sequences other than colours.
pub fn raw(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    let written = if stdout.is_terminal() {
        stdout.write_all(neutral(&String::from_utf8_lossy(bytes), true).as_bytes())
    } else {
        stdout.write_all(bytes)
    };
    written.and_then(|()| stdout.flush())?;
    Ok(())
}

/// Text without control characters but line ends and tabs, and, if `colours`, colour sequences (`ESC [ … m`).
/// Everything else that a terminal might obey is shown as `\u{…}` (faults F2, G28).
pub fn neutral(text: &str, colours: bool) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if colours && let Some(length) = colour_sequence(rest) {
            out.push_str(&rest[..length]);
            rest = &rest[length..];
            continue;
        }
        match c {
            '\n' | '\t' => out.push(c),
            '\r' if rest.starts_with("\r\n") => {}
            c if c.is_control() || is_invisible_direction(c) => out.extend(c.escape_unicode()),
            c => out.push(c),
        }
        rest = &rest[c.len_utf8()..];
    }
    out
}

/// The length of a colour sequence at the start of the text.
fn colour_sequence(text: &str) -> Option<usize> {
    let parameters = text.strip_prefix("\u{1b}[")?;
    let end = parameters.find(|c: char| !c.is_ascii_digit() && c != ';')?;
    (parameters.as_bytes()[end] == b'm').then_some(2 + end + 1)
}

/// Characters that reorder what is around them.
const fn is_invisible_direction(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f2_only_colours_reach_the_terminal() {
        assert_eq!(neutral("\u{1b}[31mred\u{1b}[0m\n", true), "\u{1b}[31mred\u{1b}[0m\n");
        assert_eq!(neutral("\u{1b}[2J\u{1b}]0;title\u{7}", true), "\\u{1b}[2J\\u{1b}]0;title\\u{7}");
        assert_eq!(neutral("a\rb\r\nc\u{202e}d", true), "a\\u{d}b\nc\\u{202e}d");
        assert_eq!(neutral("\u{1b}[31mred", false), "\\u{1b}[31mred");
    }
}
