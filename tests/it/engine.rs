//! What engines tell outside of their responses.

mod assembly;
mod forward;
mod otlp;
mod receiver;
