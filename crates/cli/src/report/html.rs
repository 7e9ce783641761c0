//! A report as one HTML file without anything from elsewhere: text, and the timeline of the tiers'
//! fill and of what moved as inline SVG. The pictures have no text of their own, so that they may
//! be stretched to any width; what they show is said beside them.

use super::page::{fraction, lines, list, number, seconds, words};
use crate::text::bytes;
use serde_json::Value;
use std::fmt::Write as _;

const STYLE: &str = "\
:root{color-scheme:light}*{box-sizing:border-box}\
body{margin:0 auto;padding:16px;max-width:1100px;color:#222;background:#fff;\
font:16px/1.45 system-ui,sans-serif;overflow-wrap:anywhere}\
h1{font-size:1.35rem;margin:.2em 0 .6em}h2{font-size:1.1rem;margin:1.6em 0 .4em}\
dl{display:grid;grid-template-columns:8.5em 1fr;gap:.35em 1em;margin:0}\
dt{color:#555}dd{margin:0}\
figure{margin:0 0 .9em}figcaption{display:flex;flex-wrap:wrap;gap:0 1em;justify-content:space-between}\
figcaption span:last-child{color:#555}\
svg{display:block;width:100%;height:72px;background:#f4f5f8;border-bottom:1px solid #888}\
svg.way{height:20px}.axis{display:flex;justify-content:space-between;color:#555;font-size:.85rem}\
ul{padding-left:1.2em;margin:0}li{margin:.3em 0}\
.full{fill:#8c96af}.flush{fill:#009e73}.demote{fill:#e69f00}.raise{fill:#56b4e9}\
.end{stroke:#222;stroke-width:1.5;vector-effect:non-scaling-stroke}\
details{margin-top:1.6em}table{border-collapse:collapse}td{padding:.1em .8em .1em 0;vertical-align:top}\
td:nth-child(2){text-align:right;font-variant-numeric:tabular-nums}\
@media(max-width:560px){dl{grid-template-columns:1fr;gap:0}dd{margin:0 0 .6em}}";

/// Units of the pictures: their width stands for the whole run.
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 100.0;

/// The report.
pub fn of(document: &Value) -> String {
    let mut page = String::new();
    let took = fraction(document, "/command_seconds").unwrap_or(0.0);
    let drained = took + fraction(document, "/drain_seconds").unwrap_or(0.0);
    let points = list(document, "/tiers").iter().flat_map(|tier| list(tier, "/points"));
    let points = points.filter_map(|point| point[0].as_f64());
    let whole = points.fold(drained, f64::max).max(1e-3);
    let _ = write!(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\">\n<title>Forebay: {title}</title>\n\
         <style>{STYLE}</style>\n<h1>What the run did</h1>\n<dl>\n",
        title = safe(words(document, "/command"))
    );
    for line in lines(document) {
        let _ = writeln!(page, "<dt>{}</dt><dd>{}</dd>", safe(line.head), safe(&line.said));
    }
    page.push_str("</dl>\n<h2>What to change</h2>\n<ul>\n");
    for advice in list(document, "/advice") {
        let _ = writeln!(page, "<li>{}</li>", safe(words(advice, "/text")));
    }
    if list(document, "/advice").is_empty() {
        page.push_str("<li>Nothing that the counters of this run show.</li>\n");
    }
    page.push_str("</ul>\n");
    if !list(document, "/around").is_empty() {
        page.push_str("<h2>What went directly to the store</h2>\n<ul>\n");
        for around in list(document, "/around") {
            let (what, why) = (words(around, "/what"), words(around, "/why"));
            let _ = writeln!(page, "<li>{}: {}</li>", safe(what), safe(why));
        }
        page.push_str("</ul>\n");
    }
    page.push_str("<h2>How full the tiers were</h2>\n");
    for tier in list(document, "/tiers") {
        level(&mut page, tier, (took, whole));
    }
    if !list(document, "/movements").is_empty() {
        page.push_str("<h2>What moved</h2>\n");
        for way in list(document, "/movements") {
            movement(&mut page, way, (took, whole));
        }
    }
    page.push_str("<details><summary>All counters of the run</summary>\n<table>\n");
    let counters = document["counters"].as_object();
    for (name, value) in counters.into_iter().flatten() {
        let _ = writeln!(page, "<tr><td>{}</td><td>{value}</td></tr>", safe(name));
    }
    page.push_str("</table></details>\n</html>\n");
    page
}

/// A text that is no markup.
fn safe(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            c if c.is_control() => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

/// Where a time is in a picture.
fn x(at: f64, whole: f64) -> f64 {
    (at / whole * WIDTH).clamp(0.0, WIDTH)
}

fn picture(page: &mut String, (class, label): (&str, &str), inside: &str, times: (f64, f64)) {
    let (took, whole) = times;
    let end = x(took, whole);
    let _ = writeln!(
        page,
        "<svg class=\"{class}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"{}\">{inside}<line class=\"end\" x1=\"{end:.1}\" x2=\"{end:.1}\" y1=\"0\" \
         y2=\"{HEIGHT}\"/></svg>",
        safe(label)
    );
    let _ = writeln!(
        page,
        "<div class=\"axis\"><span>0 s</span><span>the command ends (line): {}</span><span>{}</span></div>",
        seconds(took),
        seconds(whole)
    );
}

fn level(page: &mut String, tier: &Value, times: (f64, f64)) {
    let (capacity, peak) = (number(tier, "/capacity").max(1), number(tier, "/peak"));
    let name = words(tier, "/name");
    let said = format!("up to {} of {}", bytes(peak), bytes(capacity));
    let _ = writeln!(
        page,
        "<figure><figcaption><span>{}</span><span>{}</span></figcaption>",
        safe(name),
        safe(&said)
    );
    let mut area = format!("<path class=\"full\" d=\"M0 {HEIGHT}");
    let (mut right, mut height) = (0.0, HEIGHT);
    for point in list(tier, "/points") {
        let share = point[1].as_f64().unwrap_or(0.0) / capacity as f64;
        right = x(point[0].as_f64().unwrap_or(0.0), times.1);
        let _ = write!(area, "L{right:.1} {height:.1}");
        height = HEIGHT * (1.0 - share.min(1.0));
        let _ = write!(area, "L{right:.1} {height:.1}");
    }
    let _ = write!(area, "L{right:.1} {HEIGHT}Z\"/>");
    picture(page, ("level", &format!("fill of {name} over time: {said}")), &area, times);
    page.push_str("</figure>\n");
}

fn movement(page: &mut String, way: &Value, times: (f64, f64)) {
    let action = match words(way, "/action") {
        known @ ("flush" | "demote") => known,
        _ => "raise",
    };
    let name = format!("{} → {}", words(way, "/from"), words(way, "/to"));
    let said = format!("{} ({action})", bytes(number(way, "/bytes")));
    let _ = writeln!(
        page,
        "<figure><figcaption><span>{}</span><span>{}</span></figcaption>",
        safe(&name),
        safe(&said)
    );
    let mut bars = String::new();
    for span in list(way, "/spans") {
        let [from, to] = [0, 1].map(|end| x(span[end].as_f64().unwrap_or(0.0), times.1));
        // What is too short to be seen is a line.
        let width = (to - from).max(1.0);
        let _ = write!(
            bars,
            "<rect class=\"{action}\" x=\"{from:.1}\" y=\"0\" width=\"{width:.1}\" height=\"{HEIGHT}\"/>"
        );
    }
    picture(page, ("way", &format!("{name}: {said}")), &bars, times);
    page.push_str("</figure>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_are_no_markup() {
        let document = json!({
            "command": "<script>alert(\"x\")</script>", "command_seconds": 1.0,
            "tiers": [{ "name": "ram", "capacity": 100, "peak": 50, "points": [[0.0, 0], [0.5, 50]] }],
            "movements": [{
                "action": "\"><b>", "from": "ram", "to": "store", "bytes": 50, "spans": [[0.2, 0.4, 50]],
            }],
        });
        let page = of(&document);
        assert!(!page.contains("<script") && !page.contains("<b>"), "{page}");
        assert!(page.contains("&lt;script&gt;"), "{page}");
        // The tier is half full from the middle on; what moved takes a fifth of the width.
        assert!(page.contains("L500.0 100.0L500.0 50.0L500.0 100Z"), "{page}");
        assert!(page.contains("x=\"200.0\" y=\"0\" width=\"200.0\""), "{page}");
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    }
}
