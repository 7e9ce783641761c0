//! A picture of numbers that were written as JSON before, so that nothing is measured anew.

use crate::bars::{Bar, Bars, Group, MEANINGLESS};
use serde_json::Value;

/// What the bars of a figure consist of, and the keys of their medians.
const PARTS: [(&str, &str); 3] = [("write", "write_s"), ("read", "read_s"), ("flush", "flush_s")];
const WHOLE: &str = "write_read_flush_s";

/// The bars of what `name` has written as `json`.
///
/// # Errors
/// What is missing in it.
pub fn redraw(name: &str, json: &str) -> Result<Bars, String> {
    let all: Value = serde_json::from_str(json).map_err(|error| error.to_string())?;
    let found = all["bench"].as_str().or(all["figure"].as_str());
    if found != Some(name) {
        return Err(format!("it has the numbers of {}, not of {name}", found.unwrap_or("nothing")));
    }
    let bars = if all["figure"].is_string() { figure(&all) } else { benchmark(&all) };
    bars.filter(|bars| !bars.groups.is_empty())
        .ok_or_else(|| format!("it has no numbers of {name} that can be drawn"))
}

/// Bars of one row each, in groups as their names come.
fn grouped(rows: &Value, key: &str, bar: impl Fn(&Value) -> Option<Bar>) -> Option<Vec<Group>> {
    let mut groups: Vec<Group> = Vec::new();
    for row in rows.as_array()? {
        let (Some(name), Some(bar)) = (row[key].as_str(), bar(row)) else { continue };
        match groups.iter_mut().find(|group| group.name == name) {
            Some(group) => group.bars.push(bar),
            None => groups.push(Group { name: name.to_owned(), bars: vec![bar] }),
        }
    }
    Some(groups)
}

fn notes(all: &Value) -> Option<Vec<String>> {
    let (machine, rounds) = (all["machine"].as_str()?, all["rounds"].as_u64()?);
    let note = format!("{machine}; medians of {rounds} rounds, least and most");
    let small = (all["scale"] == "small").then(|| MEANINGLESS.to_owned());
    Some(small.into_iter().chain([note]).collect())
}

fn figure(all: &Value) -> Option<Bars> {
    let bar = |row: &Value| {
        let value = |key: &str, which: &str| row[key][which].as_f64();
        let parts = PARTS.iter().map(|(_, key)| value(key, "median"));
        Some(Bar {
            name: row["system"].as_str()?.to_owned(),
            parts: parts.collect::<Option<_>>()?,
            spread: (value(WHOLE, "least")?, value(WHOLE, "most")?),
            marks: figure_marks(all, row),
        })
    };
    Some(Bars {
        title: all["title"].as_str()?.to_owned(),
        unit: "seconds",
        parts: PARTS.iter().map(|(name, _)| *name).collect(),
        groups: grouped(&all["rows"], "case", bar)?,
        notes: notes(all)?,
    })
}

/// Where the paper's ratios to the faster system end what they compare, in the slower one's bar. A
/// system that the case does not change has its row in the first case.
fn figure_marks(all: &Value, row: &Value) -> Vec<f64> {
    let of = |case: &Value, system: &Value| {
        let rows = all["rows"].as_array()?;
        let is = |found: &&Value| found["system"] == *system && found["case"] == *case;
        let first = |found: &&Value| found["system"] == *system;
        rows.iter().find(is).or_else(|| rows.iter().find(first))
    };
    let mark = |claim: &Value| {
        let slower = of(&claim["case"], &claim["of"])?;
        if (&slower["case"], &slower["system"]) != (&row["case"], &row["system"]) {
            return None;
        }
        let measure = claim["measure"].as_str()?;
        let median = |key: &str| row[key]["median"].as_f64();
        let before = match measure {
            "read" => median("write_s")?,
            "flush" => median("write_s")? + median("read_s")?,
            _ => 0.0,
        };
        let faster = of(&claim["case"], &claim["over"])?;
        let value = |key: &str| faster[key]["median"].as_f64();
        let over = match measure {
            "write + read" => value("write_s")? + value("read_s")?,
            _ => value(&format!("{}_s", measure.replace(" + ", "_")))?,
        };
        Some(before + over * claim["paper"].as_f64()?)
    };
    all["ratios"].as_array().into_iter().flatten().filter_map(mark).collect()
}

fn benchmark(all: &Value) -> Option<Bars> {
    let series = all["series"].as_array()?;
    // Only rates are drawn; bytes in a second where there are any.
    let unit = series.iter().find_map(|series| match series["unit"].as_str()? {
        "bytes/s" => Some(("bytes/s", "MB/s")),
        "operations/s" => Some(("operations/s", "million operations per second")),
        _ => None,
    })?;
    let bar = |series: &Value| {
        let value = |which: &str| Some(series[which].as_f64()? / 1e6);
        (series["unit"] == unit.0).then_some(())?;
        Some(Bar {
            name: series["system"].as_str()?.to_owned(),
            parts: vec![value("median")?],
            spread: (value("least")?, value("most")?),
            marks: benchmark_marks(all, series),
        })
    };
    Some(Bars {
        title: all["title"].as_str()?.to_owned(),
        unit: unit.1,
        parts: Vec::new(),
        groups: grouped(&all["series"], "work", bar)?,
        notes: notes(all)?,
    })
}

/// Where a bar would end by the paper's ratios of others to it. The others' rates are not named in
/// the claims: they follow from the measured ratios.
fn benchmark_marks(all: &Value, series: &Value) -> Vec<f64> {
    let mark = |claim: &Value| {
        let against = &claim["against"];
        let is_it = against["work"] == series["work"] && against["system"] == series["system"];
        let (measured, paper) = (claim["measured"].as_f64()?, claim["paper"].as_f64()?);
        is_it.then_some(series["median"].as_f64()? / 1e6 * measured / paper)
    };
    all["claims"].as_array().into_iter().flatten().filter_map(mark).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORDED: [(&str, &str); 2] = [
        ("hermes-fig8", include_str!("../../../docs/performance/hermes-fig8.json")),
        ("hermes-fig4", include_str!("../../../docs/performance/hermes-fig4.json")),
    ];

    #[test]
    fn every_recorded_row_has_a_bar_with_its_spread() {
        for ((name, json), rows) in RECORDED.into_iter().zip(["rows", "series"]) {
            let all: Value = serde_json::from_str(json).unwrap();
            let bars = redraw(name, json).unwrap();
            let drawn: Vec<_> = bars.groups.iter().flat_map(|group| &group.bars).collect();
            assert_eq!(drawn.len(), all[rows].as_array().unwrap().len(), "{name}");
            assert!(drawn.iter().all(|bar| bar.spread.0 > 0.0 && bar.spread.0 <= bar.spread.1));
            assert!(bars.notes[0].contains(all["machine"].as_str().unwrap()), "{:?}", bars.notes);
            assert!(drawn.iter().any(|bar| !bar.marks.is_empty()), "{name}");
        }
    }

    #[test]
    fn a_mark_is_the_papers_ratio_to_the_faster_system() {
        let bars = redraw(RECORDED[0].0, RECORDED[0].1).unwrap();
        // Forebay writes for 0.186847 s there; the paper says 8 times as long without buffering.
        assert!((bars.groups[0].bars[0].marks[0] - 8.0 * 0.186_847).abs() < 1e-9);
    }

    #[test]
    fn numbers_of_something_else_are_refused() {
        assert!(redraw("hermes-fig9", RECORDED[0].1).unwrap_err().contains("hermes-fig8"));
        assert!(redraw("micro", "{}").unwrap_err().contains("nothing"));
        let empty = r#"{"bench": "micro", "series": []}"#;
        assert!(redraw("micro", empty).unwrap_err().contains("no numbers"));
    }
}
