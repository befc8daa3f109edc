//! What there was to serve and when, as the rows of a run tell it, and what became of it.

use crate::report::reader::Run;
use crate::request::columns::ColumnId;
use crate::table::Table;

/// The requests of a run, by arrival, without those whose rows do not tell what they asked for.
#[derive(Clone, Debug, Default)]
pub struct Load {
    /// The run's name.
    pub name: String,
    /// The requests. All times count from the beginning of the run.
    pub requests: Vec<Request>,
    /// The servers that they went to.
    pub servers: Vec<String>,
    /// How many requests each server runs at once, where their waiting shows it.
    pub slots: Vec<Option<usize>>,
    /// What is to be known of it.
    pub notes: Vec<String>,
}

/// A request: times in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Its row.
    pub row: usize,
    /// When it arrived.
    pub at: f64,
    /// Tokens of its prompt.
    pub prompt: u32,
    /// Those of them that the prefix cache spared it.
    pub cached: u32,
    /// Tokens that it made.
    pub output: u32,
    /// The place of its server.
    pub server: usize,
    /// What became of it, where the server told when.
    pub seen: Option<Times>,
}

/// What became of a request: seconds since the run began.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// The server had received it.
    pub created: f64,
    /// It entered the server's queue.
    pub queued: f64,
    /// It left it.
    pub admitted: f64,
    /// Its prefill had ended.
    pub prefilled: f64,
    /// The server had its first token.
    pub first: f64,
    /// All of the answer had come.
    pub finish: f64,
    /// The place of the server that had it.
    pub server: usize,
}

/// Who waits less than this in the server's queue waits for no slot: seconds.
const SHORT_WAIT: f64 = 0.02;
/// The waiting that shows a limit: seconds of it, the requests that waited, and the share of it at the one count.
const SHOWN: (f64, usize, f64) = (0.1, 3, 0.5);
/// An answer has come to its end so much later than its slot was free: seconds.
const WAY_BACK: f64 = 0.0025;

impl Load {
    /// Of a run.
    pub fn of(run: &Run) -> Load {
        let table = &run.table;
        let mut load = Load {
            name: run.name.clone(),
            ..Load::default()
        };
        let requests = (0..table.len()).filter_map(|row| load.request(table, row));
        let mut requests: Vec<Request> = requests.collect();
        requests.sort_by(|a, b| a.at.total_cmp(&b.at));
        if let left_out @ 1.. = table.len() - requests.len() {
            load.notes.push(format!(
                "{}: {left_out} of {} rows are left out: they failed, or tell no arrival or no numbers of tokens",
                load.name,
                table.len()
            ));
        }
        load.requests = requests;
        let servers = 0..load.servers.len();
        load.slots = servers.map(|server| load.slots_of(server)).collect();
        load
    }

    fn request(&mut self, table: &Table, row: usize) -> Option<Request> {
        if !table.is_ok(row) {
            return None;
        }
        let count = |column| Some(u32::try_from(table.whole(column, row)?).unwrap_or(u32::MAX));
        let at = table.number(ColumnId::arrival_time, row)?;
        let prompt = count(ColumnId::actual_prompt_tokens)?.max(1);
        let made = count(ColumnId::actual_output_tokens);
        let output = made.or_else(|| count(ColumnId::decode_length))?.max(1);
        let host = table.text(ColumnId::host, row);
        let known = self.servers.iter().position(|known| known == host);
        let server = known.unwrap_or_else(|| {
            self.servers.push(host.to_owned());
            self.servers.len() - 1
        });
        Some(Request {
            row,
            at,
            prompt,
            cached: count(ColumnId::cached_tokens).unwrap_or(0).min(prompt),
            output,
            server,
            seen: seen(table, row, at, server),
        })
    }

    /// Whether the prefix cache had any tokens worth a word.
    pub fn shares_prefixes(&self) -> bool {
        let sum = |of: fn(&Request) -> u32| -> u64 {
            self.requests
                .iter()
                .map(|request| u64::from(of(request)))
                .sum()
        };
        sum(|request| request.cached) * 100 > sum(|request| request.prompt)
    }

    /// What a server was sent.
    pub fn of_server(&self, server: usize) -> impl Iterator<Item = &Request> + Clone {
        let requests = self.requests.iter();
        requests.filter(move |request| request.server == server)
    }

    /// The number of running requests at which nearly all waiting was.
    fn slots_of(&self, server: usize) -> Option<usize> {
        let seen = self.of_server(server).filter_map(|request| request.seen);
        let mut events: Vec<(f64, i32, i32)> = Vec::new();
        let mut waited = 0;
        for times in seen {
            events.push((times.admitted, 0, 1));
            events.push(((times.finish - WAY_BACK).max(times.admitted), 0, -1));
            if times.admitted - times.queued > SHORT_WAIT {
                waited += 1;
                events.push((times.queued, 1, 0));
                events.push((times.admitted, -1, 0));
            }
        }
        events.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut waiting, mut running, mut before) = (0, 0, 0.0);
        let mut spent: Vec<f64> = Vec::new();
        for (at, more_waiting, more_running) in events {
            if waiting > 0 {
                let place = usize::try_from(running).unwrap_or(0);
                spent.resize(spent.len().max(place + 1), 0.0);
                spent[place] += at - before;
            }
            (waiting, running, before) = (waiting + more_waiting, running + more_running, at);
        }
        let all: f64 = spent.iter().sum();
        let (slots, most) = (0..).zip(spent).max_by(|a, b| a.1.total_cmp(&b.1))?;
        (all >= SHOWN.0 && waited >= SHOWN.1 && most >= SHOWN.2 * all).then_some(slots)
    }
}

/// What the server told of a request, unless its clock is not known.
fn seen(table: &Table, row: usize, at: f64, server: usize) -> Option<Times> {
    if table.text(ColumnId::clock_state, row) == "raw" {
        return None;
    }
    let time = |column| table.number(column, row);
    let queued = time(ColumnId::queue_time_start)?;
    let first = time(ColumnId::server_first_token_time)?;
    let times = Times {
        created: time(ColumnId::server_created_time).unwrap_or(at),
        queued,
        admitted: time(ColumnId::queue_time_end)?,
        prefilled: time(ColumnId::prefill_end_time).unwrap_or(first),
        first,
        finish: time(ColumnId::finish_time)?,
        server,
    };
    let in_order = [at, queued, times.admitted, first, times.finish];
    in_order.is_sorted().then_some(times)
}
