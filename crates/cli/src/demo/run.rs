//! One run of the demo's program, as it was seen.

use crate::timeline::{Activity, Level, Panel, Row, Span};

/// What a run did, and when `forebay run` was done with it.
pub(super) struct Run {
    pub(super) phases: Vec<(Activity, Span)>,
    pub(super) end_us: u64,
    /// How full the tiers were.
    pub(super) levels: Vec<Level>,
}

impl Run {
    pub(super) fn start_us(&self) -> u64 {
        self.phases.first().map_or(self.end_us, |(_, span)| span.start_us)
    }

    /// When the program was done.
    pub(super) fn program_end_us(&self) -> u64 {
        self.phases.last().map_or(self.end_us, |(_, span)| span.end_us)
    }

    pub(super) fn time_in(&self, activities: &[Activity]) -> u64 {
        let chosen = self.phases.iter().filter(|(activity, _)| activities.contains(activity));
        chosen.map(|(_, span)| span.length_us()).sum()
    }

    /// The I/O time that the program saw.
    pub(super) fn io_us(&self) -> u64 {
        self.time_in(&[Activity::Write, Activity::Read])
    }

    /// The time spent writing.
    pub(super) fn write_us(&self) -> u64 {
        self.time_in(&[Activity::Write])
    }

    /// The time spent writing, and the flushing that computing did not hide.
    pub(super) fn write_and_drain_us(&self) -> u64 {
        self.time_in(&[Activity::Write]) + self.end_us.saturating_sub(self.program_end_us())
    }

    /// The time until all was safe on the store.
    pub(super) fn safe_us(&self) -> u64 {
        self.end_us.saturating_sub(self.start_us())
    }

    pub(super) fn panel(&self, title: &str, movements: Vec<Row>, levels: Vec<Level>) -> Panel {
        let row = |name: &str, activity: Activity| {
            let spans = self.phases.iter().filter(|(a, _)| *a == activity).map(|(_, s)| *s);
            Row::new(name, activity, spans.collect())
        };
        let mut rows = vec![
            row("compute", Activity::Compute),
            row("write", Activity::Write),
            row("read", Activity::Read),
        ];
        rows.extend(movements);
        let safe = format!("all safe on the store: {}", seconds(self.safe_us()));
        Panel {
            title: title.to_owned(),
            origin_us: self.start_us(),
            rows,
            marks: vec![(self.end_us, safe)],
            levels,
        }
    }
}

pub(super) fn seconds(time_us: u64) -> String {
    format!("{:.3} s", time_us as f64 / 1e6)
}
