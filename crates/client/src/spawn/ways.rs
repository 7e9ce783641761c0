//! How programs of a run are adapted, beside which adapters they load: settings that have a
//! variable and a key of the configuration each.

/// What the adapter for MPI-IO does beyond looking: `FOREBAY_MPIIO`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MpiIo {
    /// Nothing.
    #[default]
    Observe,
    /// It adds hints and changes the mode of calls where all ranks run on one node and have noted
    /// that they have it.
    Auto,
    /// The same wherever the ranks run: each of them has it, the user says.
    Everywhere,
}

/// What becomes of `RTLD_DEEPBIND` in calls of `dlopen`: `FOREBAY_DEEPBIND`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeepBind {
    /// It is taken away, as nothing is seen of what a library does that was loaded with it.
    #[default]
    Clear,
    /// It stays.
    Keep,
}

impl MpiIo {
    /// The variable.
    pub const VARIABLE: &str = "FOREBAY_MPIIO";
    /// What may be given.
    pub const CHOICES: &str = "give auto, observe or everywhere";

    /// As the configuration and the variable have it.
    pub fn name(self) -> &'static str {
        match self {
            MpiIo::Observe => "observe",
            MpiIo::Auto => "auto",
            MpiIo::Everywhere => "everywhere",
        }
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<MpiIo> {
        [MpiIo::Observe, MpiIo::Auto, MpiIo::Everywhere].into_iter().find(|way| way.name() == name)
    }
}

impl DeepBind {
    /// The variable.
    pub const VARIABLE: &str = "FOREBAY_DEEPBIND";
    /// What may be given.
    pub const CHOICES: &str = "give clear or keep";

    /// As the configuration and the variable have it.
    pub fn name(self) -> &'static str {
        match self {
            DeepBind::Clear => "clear",
            DeepBind::Keep => "keep",
        }
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<DeepBind> {
        [DeepBind::Clear, DeepBind::Keep].into_iter().find(|way| way.name() == name)
    }
}
