/** Makes a section of the page. */
function section(id, title, ...inner) {
  const element = box("section", "", make("h2", title), ...inner);
  element.id = id;
  element.setAttribute("aria-label", title);
  return element;
}

const LEVELS = ["problem", "limit", "note"];

function findingOf(of, where) {
  const title = box("h3", "", make("small", of.level), of.title);
  return box("li", of.level, title, words("p", of.what), of.advice ? words("p", of.advice, "do") : null, where ?? null);
}

/** A note on bars in which not every request has every stage. */
const partialNote = run => run.all.stages.some(stage => stage.of) ? " A stage that was not seen in every request takes the part that it had of those where it was seen." : "";

function whereTheTimeWent(run) {
  if (!run.all.stages.length) return section("stages", "Where the time went", make("p", "Unknown: no request succeeded.", "soft"));
  const state = { share: true };
  const of = { title: "Stages over the run", mark: run.mark, option: (c, width) => overOption(run, state)(c, width),
    caption: `Requests are put together by the moment at which they ${run.is_scheduled ? "were to be sent" : "arrived"}; each bar shows what their time went to. A stage that grows from left to right is where the system falls behind. Hatched: stages that were not measured separately.${partialNote(run)}` };
  of.tools = box("div", "tools", firstBox(), choice("Show", [[true, "shares"], [false, "seconds"]], true, share => { state.share = share; draw(of); }));
  const text = box("div", "", ...stagesText(run));
  text.id = "stages-text";
  return section("stages", "Where the time went", text, picture(of));
}

/** The stages as text: a sentence, a bar, and the stages with their shares. */
function stagesText(run) {
  const { sentence, stages } = spentOf(run);
  if (!stages.length) return [make("p", "Nobody saw a first token: no reply was a stream.", "soft")];
  const isLarge = stage => stage.share >= 0.005;
  const legend = box("ul", "legend", ...stages.filter(isLarge).map(stage =>
    box("li", "", paint(make("span", "", "swatch"), stage.name), box("span", "", make("b", stage.label), " ", make("span", stage.place.endsWith(stage.label) ? "" : stage.place, "soft")), make("b", `${percent(stage.share)} · ${duration(stage.mean)}${stage.of}`, "n"))));
  const small = stages.filter(stage => !isLarge(stage)).map(stage => `${stage.label} ${duration(stage.mean)}${stage.of}`);
  const rest = small.length ? make("p", `Less than 0.5 % each: ${small.join(", ")}.`, "soft") : null;
  return [words("p", sentence), shareBar(stages), legend, rest].filter(Boolean);
}

/** The causes of waiting, and the requests that held up others. */
function whyTheyWaited(run) {
  const { waiting, waiting_over: over } = run;
  const { sequences, waited_s: inServers, in_proxy_s: inProxy, in_router_s: inRouter, at_pairs_s: atPairs, held_up_others_s: heldUp } = waiting;
  // If requests hardly waited, there is no section.
  if (!sequences || Math.max(inServers, inProxy, inRouter, atPairs) < 0.001 * sequences) return null;
  const whatFor = ({ causes }) => causes.filter(of => of.share >= 0.0005).map(of => `${percent(of.share)} while ${of.words}`).join("; ");
  const where = [inServers && `${duration(inServers)} in the server queue`, inProxy && `${duration(inProxy)} in the proxy`, inRouter && `${duration(inRouter)} in the router queue`, atPairs && `${duration(atPairs)} at servers of pairs`].filter(Boolean).join(" and ");
  const sentence = `${several(sequences, "sequence")} waited ${where} all together: ${whatFor(waiting)}.`;
  const servers = waiting.servers.slice(0, 8).map(of => [of.server, { n: known(of.slots) ? number(of.slots) : "–", small: known(of.slots) ? of.slots_source : null }, { n: duration(of.waited_s) },
    whatFor(of)]);
  const groups = waiting.groups.map(of => [`${of.by} ${of.name}${["prompt", "output"].includes(of.by) ? " tokens" : ""}`, { n: number(of.requests), small: percent(of.share_of_requests) }, { n: percent(of.share_of_tokens) }, { n: percent(of.caused) }, { n: percent(of.bore) }]);
  const longest = waiting.waited_longest.map(of => [of.req_id, of.words, of.held_up_by.map(by => `${by.req_id} (${duration(by.seconds)})`).join(", ") || "nobody known"]);
  const holders = waiting.held_up_others.map(of => [of.req_id, { n: number(of.prompt_tokens) }, { n: duration(of.seconds) }]);
  return section("waiting", "Why they waited", words("p", sentence),
    over.causes.length ? picture({ title: "What requests waited for", mark: run.mark, option: waitingOption(over),
      caption: "Waiting by the moment at which it began, in a router or proxy by the request's arrival: all requests of a stretch of time together, by what was full meanwhile." }) : null,
    table(["server", { n: "slots" }, { n: "waited" }, "what for"], servers, "Slots: how many requests a server runs at once, as it says, or as the rows show."),
    groups.length ? table(["requests", { n: "number" }, { n: "tokens" }, { n: "caused" }, { n: "waited" }], groups, `Shares of all requests, of their tokens, and of all waiting: what they caused of it (it is laid equally on those that ran meanwhile), and what they waited. Of ${duration(inServers + atPairs)} the requests seen here caused ${duration(heldUp)}.`) : null,
    longest.length ? box("details", "", make("summary", "Those that waited longest, and that held up others longest"),
      table(["request", "why", "held up longest by"], longest), table(["request", { n: "prompt tokens" }, { n: "held up others" }], holders)) : null);
}

function waterfall(run) {
  const { stages, requests, of: all, each } = run.waterfall;
  if (!requests.length) return null;
  const upTo = run.is_scheduled ? "to be sent at" : "arrived at";
  const rows = make("div");
  const slowest = () => {
    const length = of => isFirst ? of.until_first_token : of.total;
    const shown = requests.filter(of => known(length(of))).sort((a, b) => length(b) - length(a)).slice(0, each);
    rows.replaceChildren(table(["request", { n: upTo }, "server", "ended", { n: "total" }, { n: "first token" }], shown.slice(0, 25).map(of =>
      [of.id, { n: `${number(of.start)} s` }, of.host, of.outcome, { n: duration(of.total) }, { n: duration(of.ttft) }])));
    return shown;
  };
  slowest();
  const bars = picture({ title: "Single requests", mark: run.mark, height: () => (SMALL.matches ? 18 : 30) * 15 + 120, tools: box("div", "tools", firstBox()),
    option: (c, width) => waterfallOption(slowest(), stages, run.is_scheduled)(c, width),
    caption: "A bar is a request, its colours show where it was. The slider on the right moves through the requests and shows more or fewer of them, the one below zooms into time." });
  const which = all <= each ? `All ${number(all)} requests.` : `Of ${number(all)} requests: the slowest ${number(each)}.`;
  return section("waterfall", "Single requests, stage by stage", make("p", which, "soft"), bars, box("details", "", make("summary", "The first 25 as a table"), rows));
}

function list(facts) {
  return box("dl", "", ...facts.flatMap(([name, value]) => [make("dt", name), value instanceof Node ? box("dd", "", value) : make("dd", value)]));
}

const PLACES = { concurrency: "in the system", running: "running in a server", queued: "server queue", waiting: "router queue", unknown: "state unknown" };
const COLORS = { concurrency: 0, running: 2, queued: 1, waiting: 4, unknown: 7 };

function overTime(run) {
  const counts = run.series.filter(of => of.metric in PLACES);
  if (!counts.length) return null;
  const order = Object.keys(PLACES);
  const all = counts.filter(of => of.source === "records" && !of.server && (of.metric !== "unknown" || maxOf(of.values) > 0)).sort((a, b) => order.indexOf(a.metric) - order.indexOf(b.metric));
  const lines = all.map(of => ({ name: PLACES[of.metric], times: of.times, values: of.values, color: COLORS[of.metric], dashed: of.metric === "unknown" }));
  const unknown = run.summary.state_unknown_requests;
  const state = unknown ? `For ${several(unknown, "request")} it is not known when they were queued or running (“state unknown”): they may be waiting, or running.`
    : all.some(of => of.metric === "running") ? "The distance between “in the system” and “running” is waiting." : "";
  const inner = [picture({ title: "Requests in the system", mark: run.mark, option: timesOption(run, lines, "requests"),
    caption: `Counted from the requests' own moments. “In the system”: sent and not ended. ${state}` + (run.faults.length ? " Red bands: a server was disturbed on purpose." : "") })];
  const servers = [...new Set(counts.map(of => of.server).filter(Boolean))];
  const shown = servers.slice(0, 8);
  if (shown.length) {
    const limit = maxOf(counts.filter(of => of.server && ["running", "queued"].includes(of.metric)).flatMap(of => of.values));
    inner.push(box("div", servers.length > 1 ? "pair" : "", ...shown.map(server => {
      const of = counts.filter(of => of.server === server && ["running", "queued"].includes(of.metric));
      const lines = of.map(of => ({ name: `${of.metric === "queued" ? PLACES.queued : "running"}${of.source === "records" ? "" : ", as the server says"}`, times: of.times, values: of.values, color: COLORS[of.metric], dashed: of.source !== "records" }));
      return picture({ title: `At ${server}`, mark: run.mark, option: timesOption(run, lines, "requests", { max: niceMax(limit) }),
        caption: "Requests that run on this server, and in its server queue: solid from the requests' own moments, dashed from its `/metrics`. All servers have the same scale." });
    })));
    if (servers.length > shown.length) inner.push(make("p", `${servers.length - shown.length} more servers are in series.csv.`, "soft"));
  }
  return section("over-time", "Concurrency and queues over time", ...inner);
}

/** The injected faults and their effects on requests. */
function faults(run) {
  if (!run.faults.length) return null;
  const at = of => ({ n: known(of) ? `${number(of, 1)} s` : "–" });
  const inner = run.faults.flatMap(({ faults, phases }) => [
    table(["server", "fault", { n: "from" }, { n: "taken away" }, { n: "ready again" }, "what was seen"], faults.map(of => [of.server, of.kind, at(of.down), at(of.up), at(of.ready), `${of.left.said}; ${of.recovery.said}`]), "Times are seconds into the run."),
    table(["requests that arrived", { n: "requests" }, { n: "failed" }, { n: "first token p50" }, { n: "p99" }, { n: "total p50" }, { n: "p99" }, "failed as"], phases.map((of, place) => {
      const failed = Object.values(of.failed).reduce((sum, count) => sum + count, 0);
      return [["before", "during", "after"][place], { n: number(of.requests) }, { n: number(failed), small: of.requests ? percent(failed / of.requests) : null },
        { n: duration(of.ttft.p50) }, { n: duration(of.ttft.p99) }, { n: duration(of.total_latency.p50) }, { n: duration(of.total_latency.p99) }, [...Object.entries(of.failed).map(([name, count]) => `${count} ${name}`), ...(of.given_up ? [`${number(of.given_up)} given up when the run was stopped`] : [])].join(", ")];
    })) ]);
  return section("faults", "Faults in detail", markOf(run.mark), make("p", "Servers were disturbed on purpose. A dash: too few requests to say.", "soft"), ...inner);
}

const GAUGES = { token_usage: ["Memory for tokens in use", "share (1 = full)", 1], cache_hit_rate: ["Prefix cache hits", "share of prompt tokens", 1], gen_throughput: ["Generated tokens", "tokens a second"],
  gpu_use: ["GPU in use", "share of the time", 1], gpu_memory: ["GPU memory in use", "GiB", null, 2 ** 30] };

function gauges(run) {
  const others = run.series.filter(of => of.source !== "records" && !(of.metric in PLACES));
  const names = [...new Set(others.map(of => of.metric))].slice(0, 8);
  if (!names.length) return null;
  const pictures = names.map(name => {
    const of = others.filter(of => of.metric === name).slice(0, 8);
    const [title, unit, max, per = 1] = GAUGES[name] ?? [name.replaceAll("_", " "), of[0].source === "gpu" ? "as the GPU says" : "as the server says"];
    const lines = of.map(of => ({ name: of.server || "all", times: of.times, values: of.values.map(value => known(value) ? value / per : null) }));
    return picture({ title, mark: run.mark, option: timesOption(run, lines, unit, max ? { max } : {}),
      caption: `\`${name}\`, ${of[0].source === "gpu" ? "measured at the GPU" : "as each server's `/metrics` said"}. A gap is a time without an answer.` });
  });
  return section("gauges", "What the servers say of themselves", box("div", "pair", ...pictures));
}

function servers(run) {
  const { hosts, other_hosts: others = { servers: 0, requests: 0 } } = run.summary;
  const idle = (run.file?.servers ?? []).filter(server => !hosts[server.host]).map(server => [server.host, { name: server.name, requests: 0, failed: 0, latency: {} }]);
  const known = [...Object.entries(hosts), ...idle];
  if (!known.length) return null;
  const all = known.reduce((sum, [, of]) => sum + of.requests, others.requests);
  const rows = known.map(([host, group]) => {
    const of = (name, figure) => ({ n: duration(group.latency[name]?.[figure]) });
    return [host ? (group.name && group.name !== host ? `${group.name} (${host})` : host) : "server unknown", { n: number(group.requests), small: percent(group.requests / all) }, { n: number(group.failed) },
    of("ttft", "p50"), of("ttft", "p99"), of("pure_queue_time", "p50"), of("pure_queue_time", "p99"), of("total_latency", "p50")];
  });
  return section("servers", "Servers", markOf(run.mark), table(["server", { n: "requests" }, { n: "failed" }, { n: "first token p50" }, { n: "p99" }, { n: "server queue p50" }, { n: "p99" }, { n: "total p50" }], rows,
    others.servers ? `${others.servers} more servers, with ${others.requests} requests, are not shown.` : undefined));
}

function figuresTable(run) {
  const known = DATA.listed.map(({ name, label }) => [label, figuresOf(run, name)]).filter(([, of]) => of);
  const rows = known.map(([label, of]) =>
    [upper(label), { n: number(of.count) }, { n: duration(of.mean) }, ranged(of, "p50"), ranged(of, "p90"), ranged(of, "p99"), { n: duration(of.max) }]);
  return section("figures", "All latencies", markOf(run.mark), make("p", `Of the requests that went well. What was not measured has no row.${known.length ? " Brackets: 95 % confidence interval; “too few”: not enough requests for one." : ""}`, "soft"),
    table(["latency", { n: "count" }, { n: "mean" }, { n: "p50" }, { n: "p90" }, { n: "p99" }, { n: "max" }], rows));
}
/** A quantile with its confidence interval, or that there are too few requests for one. */
function ranged(of, name) {
  const bounds = of.ci95?.[name];
  const end = value => known(value) ? duration(value) : "?";
  return { n: duration(of[name]), small: bounds ? `[${end(bounds[0])}, ${end(bounds[1])}]` : bounds === null ? "(too few)" : null };
}

function settings(run) {
  const facts = [];
  const file = run.file;
  if (run.folder) facts.push(["folder", make("code", run.folder)]);
  for (const [key, value] of Object.entries(file?.settings ?? {})) facts.push([key, valueText(value)]);
  if (file?.router) facts.push(["router", file.router]);
  if (file?.servers?.length) facts.push(["servers", file.servers.map(server => `${server.name} (${server.engine}) at ${server.url}`).join(", ")]);
  const machine = run.summary.machine;
  if (machine) facts.push(["machine", [machine.cpu_model, machine.cores && several(machine.cores, "core"), machine.kernel].filter(Boolean).join(", ")]);
  if (file?.workload_sha256) facts.push(["schedule and prompts", make("code", file.workload_sha256.slice(0, 16))]);
  const config = Object.entries(run.summary.config ?? {}).filter(([, value]) => known(value) && !(Array.isArray(value) && !value.length));
  const commands = (file?.processes ?? []).flatMap(of => [make("p", `${of.name} (log: ${of.log})`, "soft"), make("pre", of.command)]);
  return section("settings", "Settings and commands", list(facts),
    config.length ? box("details", "", make("summary", "The generator's settings"), list(config.map(([key, value]) => [key, valueText(value)]))) : null,
    commands.length ? box("details", "", make("summary", "What was started"), ...commands) : null);
}

function leftOut(run) {
  const notes = [...run.notes, ...run.warnings];
  const { failed, given_up: unended, window } = run.summary;
  if (failed) notes.push(`${several(failed, "request")} failed: counted above, and in no latency.`);
  if (unended) notes.push(`${several(unended, "request")} given up when the run was stopped: in no latency, and not among those that failed.`);
  if (window && (window.left_out_first || window.left_out_last)) notes.push(`Warm-up and cool-down are left out: the figures are of requests from ${number(window.from_s)} s to ${number(window.to_s)} s into the run (${window.rule ?? "as asked"}).`);
  if (!notes.length) notes.push("Nothing: every row is in the figures.");
  return section("left-out", "What was left out", box("ul", "", ...notes.map(text => words("li", text))));
}
