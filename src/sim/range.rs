//! Numbers of flags, held to what they may be.

use super::Error;

/// Checks numbers: flag, value, lowest and highest.
///
/// # Errors
/// [`Error::Value`] for the first that is out of range.
pub(super) fn in_range(
    values: impl IntoIterator<Item = (&'static str, f64, f64, f64)>,
) -> Result<(), Error> {
    for (flag, value, low, high) in values {
        // Not a number is outside of every range.
        if !(low..=high).contains(&value) {
            let want = if high.is_finite() {
                format!("a number from {low} to {high}")
            } else {
                format!("{low} or more")
            };
            let value = value.to_string();
            return Err(Error::Value { flag, value, want });
        }
    }
    Ok(())
}
