/** Makes a section of the page. */
const section = (id, title, ...inner) => Object.assign(box("section", "", make("h2", title), ...inner), { id });

const LEVELS = ["problem", "limit", "note"];

function findingOf(of, where) {
  const title = box("h3", "", make("small", of.level), of.title);
  return box("li", of.level, title, words("p", of.what), of.advice ? words("p", of.advice, "do") : null, where);
}

/** A note on bars in which not every request has every stage. */
const partialNote = run => run.all.stages.some(stage => stage.of) ? " A stage that was not seen in every request takes the part that it had of those where it was seen." : "";

function whereTheTimeWent(run) {
  if (!run.all.stages.length) return section("stages", "Where the time went", soft("Unknown: no request succeeded."));
  const over = picture({ title: "Stages over the run", mark: run.mark, option: overOption(run), tools: firstBox(),
    caption: `Requests are put together by the moment at which they ${run.is_scheduled ? "were to be sent" : "arrived"}; each bar shows what their time went to. A stage that grows from left to right is where the system falls behind. Hatched: stages that were not measured separately.${partialNote(run)}` });
  return section("stages", "Where the time went", Object.assign(box("div", "", ...stagesText(run)), { id: "stages-text" }), over);
}

/** The stages as text: a sentence, and the stages with their shares. */
function stagesText(run) {
  const { stages } = spentOf(run), { time_spent: spent } = run.summary;
  if (!stages.length) return [soft("Nobody saw a first token: no reply was a stream.")];
  return [words("p", (isFirst ? spent.until_first_token : spent).sentence), ...stagesList(stages)];
}

/** The causes of waiting, and the requests that held up others. */
function whyTheyWaited(run) {
  const { waiting, waiting_over: over } = run;
  const { sequences, waited_s: inServers, in_proxy_s: inProxy, in_router_s: inRouter, at_pairs_s: atPairs, held_up_others_s: heldUp } = waiting;
  // If requests hardly waited, there is no section.
  const [causes, groups] = run.tables.waiting;
  if (!causes) return null;
  const whatFor = ({ causes }) => causes.filter(of => of.share >= 0.0005).map(of => `${percent(of.share)} while ${of.words}`).join("; ");
  const where = [[inServers, "in the server queue"], [inProxy, "in the proxy"], [inRouter, "in the router queue"], [atPairs, "at servers of pairs"]]
    .filter(([seconds]) => seconds).map(([seconds, place]) => `${duration(seconds)} ${place}`).join(" and ");
  const sentence = `${several(sequences, "sequence")} waited ${where} all together: ${whatFor(waiting)}.`;
  const longest = waiting.waited_longest.map(of => [of.req_id, plain(of.words), plain(of.held_up_by.map(by => `${by.req_id} (${duration(by.seconds)})`).join(", ") || "nobody known")]);
  const holders = waiting.held_up_others.map(of => [of.req_id, number(of.prompt_tokens), duration(of.seconds)]);
  return section("waiting", "Why they waited", words("p", sentence),
    over.causes.length ? picture({ title: "What requests waited for", mark: run.mark, option: waitingOption(over),
      caption: "Waiting by the moment at which it began, by the request's arrival in a router or proxy and where the server's clock does not compare: all requests of a stretch of time together, by what was full meanwhile." }) : null,
    table(causes.heads, causes.rows, "Slots: how many requests a server runs at once, as it says, or as the rows show. Shares of its waiting, by what was full meanwhile."),
    groups ? table(groups.heads, groups.rows, `Shares of all requests, of their tokens, and of all waiting: what they caused of it (it is laid equally on those that ran meanwhile), and what they waited. Of ${duration(inServers + atPairs)} the requests seen here caused ${duration(heldUp)}.`) : null,
    longest.length ? folded("Those that waited longest, and that held up others longest",
      table(["request", plain("why"), plain("held up longest by")], longest), table(["request", "prompt tokens", "held up others"], holders)) : null);
}

function waterfall(run) {
  const { stages, requests, of: all, each } = run.waterfall;
  if (!requests.length) return null;
  const upTo = run.is_scheduled ? "to be sent at" : "arrived at";
  const rows = make("div");
  const slowest = () => {
    const length = of => isFirst ? of.until_first_token : of.total;
    const shown = requests.filter(of => known(length(of))).sort((a, b) => length(b) - length(a)).slice(0, each);
    rows.replaceChildren(table(["request", upTo, plain("server"), plain("ended"), "total", "first token"], shown.slice(0, 25).map(of =>
      [of.id, `${number(of.start)} s`, plain(of.host), plain(of.outcome), duration(of.total), duration(of.ttft)])));
    return shown;
  };
  slowest();
  const bars = picture({ title: "Single requests", mark: run.mark, height: () => (SMALL.matches ? 18 : 30) * 15 + 120, tools: firstBox(),
    option: width => waterfallOption(slowest(), stages, run.is_scheduled)(width),
    caption: "A bar is a request, its colours show where it was. The slider on the right moves through the requests and shows more or fewer of them, the one below zooms into time." });
  const which = all <= each ? `All ${number(all)} requests.` : `Of ${number(all)} requests: the slowest ${number(each)}.`;
  return section("requests", "Single requests, stage by stage", soft(which), bars, folded("The first 25 as a table", rows));
}

function list(facts) {
  const shown = facts.filter(([, value]) => known(value) && value !== "" && value.length !== 0);
  return box("dl", "", ...shown.flatMap(([name, value]) => [make("dt", name), make("dd", valueText(value))]));
}

/** The states of requests that are counted over time: their names, and the style of their lines. */
const STATES = { concurrency: ["in the system", 0], running: ["running", 2], queued: ["server queue", 1], waiting: ["router queue", 4], unknown: ["state unknown", 7] };

function overTime(run) {
  const counts = Object.keys(STATES).flatMap(metric => run.series.filter(of => of.metric === metric));
  if (!counts.length) return null;
  const line = ({ metric, source, points }) => ({ name: STATES[metric][0] + (source === "records" ? "" : ", as the server says"), points,
    color: STATES[metric][1], dashed: source !== "records" || metric === "unknown" });
  const chart = (title, of, caption, axis) => picture({ title, mark: run.mark, option: timesOption(run, of.map(line), "requests", axis), caption });
  const unknown = run.summary.state_unknown_requests;
  const state = unknown ? `For ${several(unknown, "request")} it is not known when they were queued or running (“state unknown”): they may be waiting, or running.` : "The distance between “in the system” and “running” is waiting.";
  const ofServers = counts.filter(of => of.server && ["running", "queued"].includes(of.metric)), max = niceMax(maxOf(ofServers.flatMap(of => of.points.map(([, value]) => value))));
  const servers = [...new Set(ofServers.map(of => of.server))], shown = servers.slice(0, 8);
  return section("over-time", "Concurrency and queues over time",
    chart("Requests in the system", counts.filter(of => of.source === "records" && !of.server),
      `Counted from the requests' own moments. “In the system”: sent and not ended. ${state}${run.faults.length ? " Red bands: a server was disturbed on purpose." : ""}`),
    box("div", "pair", ...shown.map(server => chart(`At ${server}`, ofServers.filter(of => of.server === server),
      "Requests that run on this server, and in its server queue: solid from the requests' own moments, dashed from its `/metrics`. All servers have the same scale.", { max }))),
    servers.length > shown.length ? soft(`${servers.length - shown.length} more servers are in series.csv.`) : null);
}

/** The injected faults and their effects on requests. */
function faults(run) {
  if (!run.faults.length) return null;
  return section("faults", "Faults in detail", markOf(run.mark), soft("Servers were disturbed on purpose. Times are seconds into the run."), make("pre", run.fault_lines));
}

const GAUGES = { token_usage: ["Memory for tokens in use", "share (1 = full)", 1], cache_hit_rate: ["Prefix cache hits", "share of prompt tokens", 1], gen_throughput: ["Generated tokens", "tokens a second"],
  gpu_use: ["GPU in use", "share of the time", 1], gpu_memory: ["GPU memory in use", "GiB", null, 2 ** 30] };

function gauges(run) {
  const others = run.series.filter(of => of.source !== "records" && !(of.metric in STATES));
  const names = [...new Set(others.map(of => of.metric))], more = (all, shown, what) => all.length > shown.length ? `${all.length - shown.length} more ${what} are in series.csv.` : "";
  if (!names.length) return null;
  const pictures = names.slice(0, 8).map(name => {
    const all = others.filter(of => of.metric === name), of = all.slice(0, 8);
    const [title, unit, max, per = 1] = GAUGES[name] ?? [name.replaceAll("_", " "), of[0].source === "gpu" ? "as the GPU says" : "as the server says"];
    const lines = of.map(of => ({ name: of.server || "all", points: of.points.map(([time, value]) => [time, known(value) ? value / per : null]) }));
    return picture({ title, mark: run.mark, option: timesOption(run, lines, unit, max ? { max } : {}),
      caption: `\`${name}\`, ${of[0].source === "gpu" ? "measured at the GPU" : "as each server's `/metrics` said"}. A gap is a time without an answer. ${more(all, of, "lines")}` });
  });
  return section("gauges", "What the servers say of themselves", box("div", "pair", ...pictures), soft(more(names, pictures, "gauges")));
}

function servers(run) {
  const { heads, rows } = run.tables.servers;
  return rows.length ? section("servers", "Servers", markOf(run.mark), table(heads, rows, run.other_servers)) : null;
}

function figuresTable(run) {
  const rows = DATA.listed.map(({ name, label }) => [label, figuresOf(run, name)]).filter(([, of]) => of).map(([label, of]) =>
    [upper(label), number(of.count), duration(of.mean), ...["p50", "p90", "p99"].map(name => ranged(of, name)), duration(of.max)]);
  return section("figures", "All latencies", markOf(run.mark), soft("Of the requests that went well. What was not measured has no row. Brackets: 95 % confidence interval; “too few”: not enough requests for one."),
    table(["latency", "count", "mean", "p50", "p90", "p99", "max"], rows));
}
/** A quantile with its confidence interval, or that there are too few requests for one. */
function ranged(of, name) {
  const bounds = of.ci95?.[name];
  const end = value => known(value) ? duration(value) : "?";
  return [duration(of[name]), bounds ? `[${end(bounds[0])}, ${end(bounds[1])}]` : bounds === null ? "(too few)" : null];
}

function settings(run) {
  const { file, folder, summary: { machine, config } } = run;
  const facts = { folder, ...file?.settings, router: file?.router, servers: file?.servers?.map(server => `${server.name} (${server.engine}) at ${server.url}`).join(", "),
    machine: machine && [machine.cpu_model, machine.cores && several(machine.cores, "core"), machine.kernel].filter(Boolean).join(", "), "schedule and prompts": file?.workload_sha256?.slice(0, 16) };
  const commands = (file?.processes ?? []).flatMap(of => [soft(`${of.name} (log: ${of.log})`), make("pre", of.command)]);
  return section("settings", "Settings and commands", list(Object.entries(facts)),
    config ? folded("The generator's settings", list(Object.entries(config))) : null,
    commands.length ? folded("What was started", ...commands) : null);
}

function leftOut(run) {
  const notes = [...run.notes, ...run.warnings];
  const { failed, given_up: unended } = run.summary;
  if (failed) notes.push(`${several(failed, "request")} failed: counted above, and in no latency.`);
  if (unended) notes.push(`${several(unended, "request")} given up when the run was stopped: in no latency.`);
  if (!notes.length) notes.push("Nothing: every row is in the figures.");
  return section("left-out", "What was left out", box("ul", "", ...notes.map(text => words("li", text))));
}
