//! Under way on branch `report`.
#[derive(Clone, Debug)]
pub struct Machine;
impl Machine {
    pub fn read() -> Machine {
        Machine
    }
}
