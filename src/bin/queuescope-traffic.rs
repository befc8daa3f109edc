//! The bundled generator by its own name: `queuescope traffic`.

fn main() {}
