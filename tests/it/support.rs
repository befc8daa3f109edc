//! What the tests share. One file a concern under `support/`.

pub mod recordings;
