//! What engines tell outside of their responses.

mod assembly;
mod forward;
mod join;
mod log;
mod otlp;
mod receiver;
mod rows;
