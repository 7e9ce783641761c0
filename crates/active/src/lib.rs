//! Operations on the bytes of a file while they are in a buffer on their way to the store (Hermes,
//! Kougkas et al., HPDC 2018, section 3.1.1: active buffering).
//!
//! Nothing here knows of a pool or a manager: streams come in, streams go out.

pub mod encoded;
mod error;
mod source;

pub use error::{Error, Result};
pub use source::{Seeking, Source};
