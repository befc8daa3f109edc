//! A pretend SGLang that queues as the real one does, for tests, the demo and load on the clients.

pub mod engine;
