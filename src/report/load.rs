//! Under way on branch `report`.
use crate::clock::Stamp;
use crate::request::record::Record;
#[derive(Clone, Debug)]
pub struct RunFacts {
    pub started: Stamp,
    pub ended: Stamp,
    pub offered_rate: Option<f64>,
    pub scheduled: usize,
    pub config: serde_json::Value,
    pub goodput: Vec<(String, f64)>,
    pub machine: Option<super::machine::Machine>,
}
#[derive(Clone, Debug)]
pub struct Summary {
    ok: usize,
    all: usize,
    config: serde_json::Value,
}
#[derive(Clone, Debug, PartialEq)]
pub struct Goal {
    pub name: String,
    pub most_ms: f64,
}
impl std::str::FromStr for Goal {
    type Err = String;
    fn from_str(text: &str) -> Result<Goal, String> {
        let (name, limit) = text.split_once(':').ok_or("must be NAME:MILLISECONDS")?;
        let most_ms = limit.parse().map_err(|_| "must be NAME:MILLISECONDS")?;
        Ok(Goal {
            name: name.into(),
            most_ms,
        })
    }
}
impl Summary {
    pub fn of(records: &[Record], run: &RunFacts) -> Summary {
        let ok = records.iter().filter(|r| r.is_ok()).count();
        Summary {
            ok,
            all: records.len(),
            config: run.config.clone(),
        }
    }
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({"completed": self.ok, "total": self.all, "config": self.config})
    }
    pub fn to_text(&self) -> String {
        format!("{} of {} ok\n", self.ok, self.all)
    }
}
