//! The hops that held requests without a response, by the rows of a run's proxy: a generator does not know them.

use std::collections::HashMap;
use std::path::Path;

use crate::request::cell::Value;
use crate::request::columns::{COLUMNS, ColumnId};
use crate::request::row::Row;

use super::{Error, Table, rows};

/// All that is read of the proxy's rows, which may be many.
const READ: [ColumnId; 2] = [ColumnId::req_id, ColumnId::worker];

/// Fills in the column `worker` of requests without a response from the rows of the run's proxy.
///
/// # Errors
/// The file is there and cannot be read.
pub fn fill_in_workers(table: &mut Table, proxy_rows: &Path) -> Result<(), Error> {
    if !proxy_rows.is_file() {
        return Ok(());
    }
    let ids = COLUMNS.iter().map(|column| column.id);
    let skipped: Vec<ColumnId> = ids.filter(|id| !READ.contains(id)).collect();
    let (proxy, _) = rows::read(&[proxy_rows.to_owned()], None, &skipped)?;
    let text = |of, row| proxy.text(of, row);
    let workers = proxy.first_rows();
    let workers = workers.map(|row| (text(ColumnId::req_id, row), text(ColumnId::worker, row)));
    let workers: HashMap<&str, &str> = workers.filter(|(_, of)| !of.is_empty()).collect();
    let columns = [ColumnId::host, ColumnId::worker, ColumnId::router_send_time];
    let firsts: Vec<usize> = table.first_rows().collect();
    for row in firsts {
        let is_known = columns
            .iter()
            .any(|of| table.value(*of, row) != Value::Empty);
        let worker = workers.get(table.text(ColumnId::req_id, row));
        if let Some(worker) = worker.filter(|_| !is_known) {
            let worker = Some((*worker).to_owned());
            let of_proxy = Row {
                worker,
                ..Row::default()
            };
            table.put_row(row, &of_proxy, |column| column.id == ColumnId::worker);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Cell;

    /// The generator knows no server of a request that a hop held and that got no response; its proxy does.
    #[test]
    fn workers_are_read_from_the_proxys_rows() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("proxy.csv");
        let rows = "req_id,arrival_time,outcome,host,worker\nx-0,1.5,client_abort,,server-1\nx-1,1.6,ok,a:1,server-2\nx-2,1.7,client_abort,,\n";
        std::fs::write(&path, rows).unwrap();
        let mut table = Table::default();
        for (id, host) in [("x-0", ""), ("x-1", "b:1"), ("x-2", ""), ("x-3", "")] {
            let host = Some(host).filter(|host| !host.is_empty());
            let cells = [
                Some(("req_id", Cell::Id(id))),
                host.map(|host| ("host", Cell::Word(host))),
            ];
            table.push(cells.into_iter().flatten());
        }
        fill_in_workers(&mut table, &path).unwrap();
        let workers = (0..4).map(|row| table.text(ColumnId::worker, row));
        assert_eq!(workers.collect::<Vec<_>>(), ["server-1", "", "", ""]);
        fill_in_workers(&mut table, &folder.path().join("none.csv")).unwrap();
    }
}
