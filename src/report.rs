//! Under way on branch `report`.
pub mod load;
pub mod machine;
