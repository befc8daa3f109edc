//! Faults done on purpose while a run goes on.
