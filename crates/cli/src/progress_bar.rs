//! What is shown while a command works: a bar on a terminal, made when there is something to show,
//! and lines above it.

use indicatif::{ProgressBar, ProgressStyle};
use rustix::termios::tcgetwinsize;
use std::time::Duration;

/// Nothing is shown for what takes less.
pub const SHORT: Duration = Duration::from_millis(300);
/// Time between two plain lines, where there is no terminal.
pub const LINE_EVERY: Duration = Duration::from_secs(2);

/// The bar of a command, on the standard error.
#[derive(Default)]
pub struct Bar(Option<ProgressBar>);

impl Bar {
    /// Shows that `done` of `all` bytes of `what` are done. What a line of so many columns says is
    /// in `template`: a longer one would be broken, and leave its beginning behind.
    pub fn show(
        &mut self,
        what: &'static str,
        template: fn(u16) -> &'static str,
        prefix: String,
        (done, all): (u64, u64),
    ) {
        let bar = self.0.get_or_insert_with(|| ProgressBar::new(all).with_message(what));
        // A terminal may be made narrower meanwhile.
        let columns = tcgetwinsize(std::io::stderr()).map_or(80, |size| size.ws_col);
        if let Ok(style) = ProgressStyle::with_template(template(columns)) {
            bar.set_style(style);
        }
        bar.set_prefix(prefix);
        bar.set_length(all);
        bar.set_position(done);
    }

    /// Says something, above the bar if there is one.
    pub fn tell(&self, text: &str) {
        match &self.0 {
            Some(bar) => bar.suspend(|| eprintln!("forebay: {text}")),
            None => eprintln!("forebay: {text}"),
        }
    }

    /// Takes the bar away.
    pub fn end(self) {
        if let Some(bar) = self.0 {
            bar.finish_and_clear();
        }
    }
}
