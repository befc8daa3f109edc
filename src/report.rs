//! What a run showed: summaries, pictures and pages made of records. Pure, but for [`machine`].

pub mod load;
pub mod machine;
pub mod stages;
pub mod timeline;

#[cfg(test)]
mod sample;
