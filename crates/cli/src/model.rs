//! `forebay model`: what a model says, beside what its paper prints.

use crate::output;
use clap::Args;
use forebay_placement::collective::paper::{
    Bandwidths, Cell, DEVICES, LARGEST_ERROR, LINK, MEAN_ERROR, Reading, TABLES, TOTAL_MB, Table,
    error, tradeoff_s,
};
use forebay_placement::collective::{Call, Device, Link, Mode, Network, io_s, times};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::process::ExitCode;

/// Options of `forebay model`.
#[derive(Args)]
pub struct ModelArguments {
    /// Which: nvm, collective and independent I/O of MPI programs on HDD, SSD and NVM
    #[arg(value_parser = ["nvm"])]
    name: String,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// Bytes of a MB of the paper.
const MB: f64 = 1e6;
/// Messages within a node, of which the paper says nothing: a copy at the speed of memory.
const WITHIN: Link = Link { start_s: 1e-6, byte_s: 1.0 / 5e9 };

/// Shows what the model says.
pub fn model(arguments: &ModelArguments) -> Result<ExitCode, String> {
    let rows = rows();
    match arguments.json {
        true => output::json(format_args!("{:#}", json_of(&rows))),
        false => print!("{}", show(&rows)),
    }
    Ok(ExitCode::SUCCESS)
}

/// A mode on a device of a table, with what the three models say.
struct Row {
    table: &'static Table,
    device: &'static Bandwidths,
    mode: Mode,
    printed: Cell,
    /// With the parameters that the tables were made with.
    of_tables_s: f64,
    /// With those that the text gives.
    of_text_s: f64,
    /// As Forebay decides.
    ours_s: f64,
}

fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for table in &TABLES {
        for (device, collective) in DEVICES.iter().zip(&table.collective) {
            rows.push(row(table, device, Mode::Collective, *collective));
        }
        for (device, independent) in DEVICES.iter().zip(&table.independent) {
            rows.push(row(table, device, Mode::Independent, *independent));
        }
    }
    rows
}

fn row(table: &'static Table, device: &'static Bandwidths, mode: Mode, printed: Cell) -> Row {
    let estimated_s = |reading: Reading| match mode {
        Mode::Collective => device.collective_s(reading.exchange_s(table)),
        Mode::Independent => device.independent_s(),
    };
    Row {
        table,
        device,
        mode,
        printed,
        of_tables_s: estimated_s(Reading::Tables),
        of_text_s: estimated_s(Reading::Text),
        ours_s: ours_s(table, device, mode),
    }
}

/// The model that Forebay decides with, of the paper's program: blocks of 16 MB, in random order.
fn ours_s(table: &Table, device: &Bandwidths, mode: Mode) -> f64 {
    let block = 16.0 * MB;
    let call = Call {
        ranks: table.ranks(),
        nodes: table.nodes,
        aggregators: table.nodes,
        buffer: block as u64,
        bytes: (TOTAL_MB * MB) as u64,
        largest_domain: 0,
        piece: block as u64,
        is_contiguous: false,
    };
    let between = Link { start_s: LINK.start_s, byte_s: LINK.byte_s / MB };
    let network = Network { between, within: WITHIN };
    let found = Device::measured(device.sequential * MB, device.random * MB, block, 0.0)
        .and_then(|device| times(&call, &network, &device));
    found.map_or(f64::NAN, |times| times.of(mode))
}

/// The mean of errors, in percent.
fn mean(rows: &[Row], error: impl Fn(&Row) -> f64) -> f64 {
    rows.iter().map(error).sum::<f64>() / rows.len() as f64
}

/// The mean errors of all rows: printed; of the printed times; with the parameters of the tables;
/// with those of the text; as Forebay decides.
fn mean_errors(rows: &[Row]) -> [f64; 5] {
    [
        mean(rows, |row| row.printed.error),
        mean(rows, |row| row.printed.error_of_times()),
        mean(rows, |row| error(row.of_tables_s, row.printed.measured_s)),
        mean(rows, |row| error(row.of_text_s, row.printed.measured_s)),
        mean(rows, |row| error(row.ours_s, row.printed.measured_s)),
    ]
}

fn show(rows: &[Row]) -> String {
    let mut text = format!(
        "Collective and independent I/O (Liu et al., section IV), {TOTAL_MB} MB, in seconds.\n\
         printed: what the paper estimates; tables: by equations 1 to 5 with the\n\
         parameters that give its tables; text: with those that it names; Forebay: by\n\
         the model that Forebay decides with.\n"
    );
    for table in &TABLES {
        let _ = write!(
            text,
            "\nTable {}: {} nodes with {} processes and one aggregator each\n\
             {:15}{:>9}{:>14}{:>14}{:>14}{:>14}\n",
            table.name,
            table.nodes,
            table.ranks_per_node,
            "",
            "measured",
            "printed",
            "tables",
            "text",
            "Forebay",
        );
        for row in rows.iter().filter(|row| row.table == table) {
            let cell = |time_s: f64, error: f64| format!("{time_s:.2} {error:4.1}%");
            let of = |time_s: f64| cell(time_s, error(time_s, row.printed.measured_s));
            let _ = writeln!(
                text,
                "{:15}{:9.2}{:>14}{:>14}{:>14}{:>14}",
                format!("{} {}", row.device.name, row.mode.name()),
                row.printed.measured_s,
                cell(row.printed.estimated_s, row.printed.error),
                of(row.of_tables_s),
                of(row.of_text_s),
                of(row.ours_s),
            );
        }
    }
    let [printed, of_times, of_tables, of_text, ours] = mean_errors(rows);
    let _ = writeln!(
        text,
        "\nmean error  printed {printed:.1} %, of the printed times {of_times:.1} %, tables \
         {of_tables:.1} %,\n            text {of_text:.1} %, Forebay {ours:.1} %\n\n\
         Where the paper contradicts itself"
    );
    for contradiction in contradictions(rows) {
        let _ = writeln!(text, "{}", wrapped(&contradiction));
    }
    text
}

/// A line with a bullet, of at most 80 columns.
fn wrapped(text: &str) -> String {
    let (mut lines, mut line) = (String::new(), String::from("-"));
    for word in text.split(' ') {
        if line.chars().count() + 1 + word.chars().count() > crate::text::COLUMNS {
            lines += &line;
            lines.push('\n');
            line = String::from(" ");
        }
        line.push(' ');
        line += word;
    }
    lines + &line
}

/// What the paper says in one place and not in another, with the numbers computed here.
fn contradictions(rows: &[Row]) -> Vec<String> {
    let mut found = vec![
        "Table III says of T_w that it does not depend on a message's size, and of T_s that it is \
         in proportion to it; text and equation 2 say the reverse, which is used here."
            .to_owned(),
        format!(
            "Section D has blocks of 64 MB and two segments, which are 2 GB; the times are those \
             of {TOTAL_MB} MB: {TOTAL_MB} / {} = {:.2} s.",
            DEVICES[0].random,
            DEVICES[0].independent_s()
        ),
    ];
    for table in &TABLES {
        let printed: Vec<_> = (0..DEVICES.len())
            .map(|index| format!("{:.2}", table.printed_exchange_s(index)))
            .collect();
        let of = |reading: Reading| {
            format!(
                "{} iterations and tau = {} give {:.2} s",
                reading.iterations(table),
                reading.tau(table),
                reading.exchange_s(table)
            )
        };
        found.push(format!(
            "Table {}: its estimates have exchanges of {} s in them (HDD, SSD, NVM). By the text, \
             {}; {} instead.",
            table.name,
            printed.join(", "),
            of(Reading::Text),
            of(Reading::Tables),
        ));
    }
    let nvm = &DEVICES[2];
    found.push(format!(
        "Independent I/O on NVM is printed as {:.2} s, which is with the sequential bandwidth \
         ({:.2}); with the random one it is {:.2} s.",
        TABLES[0].independent[2].estimated_s,
        io_s(TOTAL_MB, nvm.sequential),
        nvm.independent_s()
    ));
    for row in rows {
        let (printed, of_times) = (row.printed.error, row.printed.error_of_times());
        if (printed - of_times).abs() > 0.06 {
            found.push(format!(
                "Table {}, {} {}: the error is printed as {printed} %; its times make {of_times:.2} %.",
                row.table.name,
                row.mode.name(),
                row.device.name
            ));
        }
    }
    let [printed, ..] = mean_errors(rows);
    found.push(format!(
        "The mean of the twelve printed errors is {printed:.3} %, as said ({MEAN_ERROR}); the \
         largest error is said to be {LARGEST_ERROR} %, and is {:.2} %.",
        rows.iter().map(|row| row.printed.error_of_times()).fold(0.0, f64::max)
    ));
    let exchange_s = |table: usize, device: usize| {
        let cell = TABLES[table].collective[device];
        cell.measured_s - io_s(TOTAL_MB, DEVICES[device].sequential)
    };
    let both = |device| format!("{:.1} and {:.1} s", exchange_s(0, device), exchange_s(1, device));
    found.push(format!(
        "With half of the aggregators each has twice as many bytes to collect. What was measured, \
         without its I/O, is shorter instead (Tables V and VI: HDD {}, SSD {}, NVM {}), and the \
         paper does not say why.",
        both(0),
        both(1),
        both(2)
    ));
    let gains: Vec<_> = [0.032, 2.0, 16.0]
        .iter()
        .map(|mb| format!("{:.3}", tradeoff_s(&DEVICES[0], *mb).1))
        .collect();
    found.push(format!(
        "Figure 11: on HDD, what collective I/O gains is said to be more than its exchange from \
         2 MB on. With the parameters of the text it is {} s for 32 KB, 2 MB and 16 MB.",
        gains.join(", ")
    ));
    found
}

fn json_of(rows: &[Row]) -> Value {
    let cells = rows.iter().map(|row| {
        json!({
            "table": row.table.name,
            "device": row.device.name,
            "mode": row.mode.name(),
            "measured_s": row.printed.measured_s,
            "printed_s": row.printed.estimated_s,
            "printed_error_percent": row.printed.error,
            "tables_s": row.of_tables_s,
            "text_s": row.of_text_s,
            "forebay_s": row.ours_s,
        })
    });
    let [printed, of_times, of_tables, of_text, ours] = mean_errors(rows);
    json!({
        "model": "nvm",
        "cells": cells.collect::<Vec<_>>(),
        "mean_error_percent": {
            "printed": printed,
            "printed_times": of_times,
            "tables": of_tables,
            "text": of_text,
            "forebay": ours,
        },
        "contradictions": contradictions(rows),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_stand_beside_what_the_models_say() {
        let rows = rows();
        assert_eq!(rows.len(), 12);
        let text = show(&rows);
        for wanted in [
            "HDD collective    385.86  411.78  6.7%  420.54  9.0%  699.12 81.2%  350.62  9.1%",
            "NVM collective    242.54  284.46 14.4%  284.48 17.3% 563.05 132.1%  248.04  2.3%",
            "SSD independent   146.50  160.84  9.8%  160.85  9.8%  160.85  9.8%  160.85  9.8%",
            "NVM independent   146.55  145.88  0.5%  148.26  1.2%",
            "printed 4.9 %",
            "is 4.925 %, as said (4.93)",
            "613.17 s",
            "256 iterations and tau = 1 give 138.60 s",
            "1024 iterations and tau = 0.75 give 417.17 s",
            "the error is printed as 14.4 %; its times make 17.28 %",
        ] {
            let whole = text.replace("\n  ", " ");
            assert!(text.contains(wanted) || whole.contains(wanted), "no {wanted:?} in\n{text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }

    #[test]
    fn the_model_in_use_is_near_what_table_v_measures() {
        for row in rows().iter().filter(|row| row.table.name == "V") {
            let off = error(row.ours_s, row.printed.measured_s);
            assert!(off < 11.0, "{} {}: {off} %", row.device.name, row.mode.name());
        }
    }

    #[test]
    fn programs_get_the_same_numbers() {
        let value = json_of(&rows());
        assert_eq!(value["cells"].as_array().map(Vec::len), Some(12));
        let mean = value["mean_error_percent"]["printed"].as_f64().unwrap();
        assert!((mean - 4.93).abs() < 0.01, "{value}");
    }
}
