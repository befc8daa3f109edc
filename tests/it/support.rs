//! What the tests share. One file a concern under `support/`.

pub mod admin;
pub mod clients;
pub mod collector;
pub mod delays;
pub mod docs;
pub mod generator;
pub mod http;
pub mod http2;
pub mod pair;
pub mod process;
pub mod proxy;
pub mod recordings;
pub mod router;
pub mod spans;
pub mod stack;
pub mod tls;
pub mod upstream;
pub mod wire;

/// Fails unless this is said, and shows what was.
#[track_caller]
pub fn assert_says(text: &str, said: &str) {
    assert!(text.contains(said), "{said:?} is not in\n{text}");
}
