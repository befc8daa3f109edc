const RUNS = DATA.runs;
const EXPERIMENT = DATA.experiment;
/** The requests that were given up when the run was stopped: neither successful nor failed. */
const givenUp = run => run.summary.given_up ? `, ${number(run.summary.given_up)} given up` : "";

function headline() {
  const keys = EXPERIMENT?.keys ?? [];
  const total = RUNS.reduce((sum, run) => sum + run.summary.requests, 0);
  const title = EXPERIMENT ? [upper(EXPERIMENT.kind || "experiment"), keys.join(", ")].filter(Boolean).join(": ") : RUNS.length === 1 ? `Run ${RUNS[0].run}` : `${RUNS.length} runs`;
  $("title").textContent = title;
  document.title = `${title} · queuescope`;
  $("kind").textContent = `report ${DATA.version}`;
  const began = EXPERIMENT?.began ?? RUNS[0]?.file?.began;
  $("lead").textContent = RUNS.length ? `${several(total, "request")} in ${several(RUNS.length, "run")}${began ? `, begun ${new Date(began * 1000).toISOString().slice(0, 16).replace("T", " ")} UTC` : ""}.` : "No run has been made yet.";
  const mark = worst(RUNS);
  if (mark) {
    const which = RUNS.filter(run => run.mark === mark);
    const text = mark === "INVALID" ? "the load was not what was asked, so the figures do not describe the servers." : mark === "UNFINISHED" ? "cut short; the figures are of the requests that had ended by then." : "something disturbed the measurement: take the figures with care.";
    const isOne = RUNS.length === 1;
    const why = RUNS.flatMap(run => (run.summary.verdict?.reasons ?? []).map(reason => words("p", `${isOne ? "" : `${briefOf(run)}: `}${upper(reason)}.`)));
    const folded = isOne || !why.length ? why : [box("details", "", make("summary", "Why"), ...why)];
    $("head").append(box("div", `box verdict ${mark}`, box("p", "", markOf(mark), ` ${isOne ? "This run" : which.map(briefOf).join(", ")}: ${text}`), ...folded));
  }
  if (RUNS.length === 1) facts(RUNS[0]);
}

function facts(run) {
  const failed = run.summary.failed;
  const shown = [[number(run.summary.requests), `requests, ${failed ? number(failed) : "none"} failed${givenUp(run)}`]];
  const add = (name, label) => {
    const of = figuresOf(run, name);
    if (of) shown.push([duration(of.p50), `${label}, median`], [duration(of.p99), `${label}, p99`]);
  };
  add("ttft", "first token");
  add("total_latency", "total");
  if (known(run.summary.completed_rate)) shown.push([number(run.summary.completed_rate), "requests finished a second"]);
  if (known(run.summary.output_throughput)) shown.push([number(run.summary.output_throughput, 0), "tokens generated a second"]);
  $("facts").append(...shown.map(([value, label]) => box("li", "", make("b", value), make("span", label))));
}

/** The findings of all runs; what several runs have in common is one finding. */
function allFindings() {
  const kinds = new Map();
  for (const run of RUNS) for (const of of run.findings) {
    if (!kinds.has(of.kind)) kinds.set(of.kind, []);
    kinds.get(of.kind).push([run, of]);
  }
  const rank = of => LEVELS.indexOf(of.level);
  const sorted = [...kinds.values()].sort((a, b) => Math.min(...a.map(([, of]) => rank(of))) - Math.min(...b.map(([, of]) => rank(of))));
  const items = sorted.map(all => {
    const [first, of] = [...all].sort((a, b) => rank(a[1]) - rank(b[1]))[0];
    if (RUNS.length === 1) return findingOf(of);
    const others = all.filter(([run]) => run !== first);
    const where = box("div", "where", make("p", all.length === RUNS.length ? `In every run; the figures above are those of ${briefOf(first)}.` : `In ${all.map(([run]) => briefOf(run)).join(", ")}${others.length ? `; the figures above are those of ${briefOf(first)}` : ""}.`),
      others.length ? box("details", "", make("summary", "The others"), ...others.map(([run, of]) => words("p", `${briefOf(run)}: ${of.what}`))) : null);
    return findingOf(of, where);
  });
  return section("findings", "What this says", items.length ? box("ul", "findings", ...items) : make("p", "No finding applies to what was measured."));
}

/** The comparison of settings; the table has those against the first setting. */
function compared() {
  const all = DATA.comparison;
  if (!all.length && !DATA.not_compared.length) return null;
  const statistic = of => of.statistic.quantile ? "p" + number(of.statistic.quantile * 100) : "mean";
  const listed = all.filter(of => of.is_against_first);
  const isOne = listed.every(of => of.a === listed[0].a);
  const setting = of => isOne ? spaced(of.b) : box("span", "", `${spaced(of.b)} `, make("small", `against ${spaced(of.a)}`, "soft"));
  const columns = [...new Map(listed.map(of => [of.metric + statistic(of), of])).values()];
  const pairs = [...new Map(listed.map(of => [JSON.stringify([of.a, of.b]), of])).values()];
  const signed = (of, value) => !known(value) ? "∞" : of.metric === "failed" ? (value > 0 ? "+" : "") + number(value * 100) + " %" : (value > 0 ? "+" : value < 0 ? "−" : "") + duration(Math.abs(value));
  const cell = (pair, column) => {
    const of = all.find(of => of.a === pair.a && of.b === pair.b && of.metric === column.metric && statistic(of) === statistic(column));
    if (!of) return { n: "–" };
    const [value, low, high] = [signed(of, of.difference), known(of.low) ? signed(of, of.low) : "−∞", signed(of, of.high)];
    return { n: of.shown ? make("b", (of.difference < 0 ? "▼ " : "▲ ") + value, of.difference < 0 ? "better" : "worse") : make("span", value, "soft"), small: `[${low}, ${high}]` };
  };
  const answer = of => make("li", spaced(/^(no|p\d)/.test(of.sentence) ? upper(of.sentence) : of.sentence) + (/[.!?]$/.test(of.sentence) ? "" : "."), of.shown ? "shown" : "none");
  return section("compare", "Which is better?",
    DATA.answers.length ? box("ul", "answers", ...DATA.answers.map(text => make("li", spaced(text).replace(/^best/, "Best"), /^(No|Where)/.test(text) ? "none" : "shown"))) : null,
    all.length ? make("p", `All settings replay the same requests. Brackets: 95 % confidence interval; too narrow for one or two runs with long queues. Grey: no difference is shown, as the interval holds 0 or, of ${several(all.length, "comparison")}, may miss it by chance (then the interval alone shows one).`, "soft") : null, markOf(worst(RUNS.filter(run => run.mark === "DEGRADED"))),
    all.length ? table([isOne ? `against ${spaced(listed[0].a)}` : "setting", ...columns.map(of => ({ n: of.metric === "failed" ? "failed" : `${labelOf(of.metric)} ${statistic(of)}` }))],
      pairs.map(pair => [setting(pair), ...columns.map(column => cell(pair, column))]), "▼ less, ▲ more than the first setting, by so much.", "stacked") : null,
    all.length ? box("details", "", make("summary", `All ${several(all.length, "comparison")} as sentences`), box("ul", "answers", ...all.map(answer))) : null,
    DATA.not_compared.length ? box("details", "", make("summary", "What was not compared, and why"), box("ul", "", ...DATA.not_compared.map(note => words("li", note)))) : null);
}

function runsTable() {
  if (RUNS.length < 2) return null;
  const cells = (run, name) => ["p50", "p99"].map(part => ({ n: duration(figuresOf(run, name)?.[part]), small: errorOf(run, `${name}_ms.${part}`) }));
  const rows = RUNS.map(run => {
    const link = make("a", briefOf(run));
    link.href = "#detail";
    link.onclick = () => choose(run);
    return [box("span", "", link, " ", markOf(run.mark)), { n: number(run.summary.requests) }, { n: number(run.summary.failed) }, { n: number(run.summary.completed_rate), small: errorOf(run, "request_throughput") }, ...cells(run, "ttft"), ...cells(run, "pure_queue_time"), ...cells(run, "total_latency")];
  });
  const heads = ["run", { n: "requests" }, { n: "failed" }, { n: "finished a second" }, { n: "first token p50" }, { n: "p99" }, { n: "server queue p50" }, { n: "p99" }, { n: "total p50" }, { n: "p99" }];
  const missing = (EXPERIMENT?.runs ?? []).filter(of => of.state !== "done");
  return section("runs", "The runs", make("p", "Choose one to see it in detail below.", "soft"), table(heads, rows, isPredicted() ? "±: by so much predictions of rows that taught nothing were off, as a share (docs/WHATIF.md)." : ""),
    missing.length ? box("ul", "", ...missing.map(of => make("li", `${of.label}: ${of.state === "planned" ? "not begun" : of.state === "running" ? "was cut short while it ran" : of.state}`))) : null);
}

/** The stages of all runs side by side. */
function stagesByRun() {
  const shown = RUNS.filter(run => run.all.stages.length);
  if (RUNS.length < 2 || !shown.length) return null;
  // If only the times until the first token differ, these are shown first.
  const spread = means => means.every(known) ? 1 - Math.min(...means) / Math.max(...means) : 0;
  const [whole, until] = ["all", "until_first_token"].map(part => spread(shown.map(run => run[part].mean)));
  if (whole < 0.1 && until > 2 * whole) isFirst = true;
  return section("by-run", "Where the time went, run by run", picture({ title: "Stages of each run", mark: worst(RUNS), height: () => 110 + shown.length * 34, option: whereOption(shown), tools: box("div", "tools", firstBox()),
    caption: "The mean time of a request and what it went to. The longest colour is where most of it went." + (RUNS.map(partialNote).find(Boolean) ?? "") }));
}

/** Queue, TTFT and throughput against the values of a setting. */
function sweep() {
  const keys = EXPERIMENT?.keys ?? [];
  if (!keys.length || RUNS.length < 2 || isPredicted() && RUNS.length < 3) return null;
  const place = make("div");
  const state = { key: keys[keys.length - 1], figure: "p50" };
  const settings = run => run.file?.settings ?? {};
  // The measured run that predictions are made from has no settings.
  const runs = RUNS.filter(run => keys.some(key => key in settings(run)));
  const show = () => {
    const values = [...new Map(runs.map(run => [valueText(settings(run)[state.key] ?? ""), settings(run)[state.key] ?? ""])).values()];
    if (values.every(value => typeof value === "number")) values.sort((a, b) => a - b);
    const others = run => keys.filter(key => key !== state.key).map(key => `${key} = ${valueText(settings(run)[key] ?? "")}`).join(", ");
    const means = (name, get) => values.map(value => {
      const found = runs.filter(run => others(run) === name && valueText(settings(run)[state.key] ?? "") === valueText(value)).map(get).filter(known);
      return found.length ? found.reduce((sum, figure) => sum + figure, 0) / found.length : null;
    });
    const lines = (get, of) => [...new Set(runs.map(others))].map(name => ({ name: name || "all runs", figures: means(name, get), off: means(name, run => run.off?.[of]) }));
    const repeats = RUNS.some(run => run.file?.repeat) ? " The mean of the repeats." : "";
    const words = { p50: "median", p99: "99th percentile", mean: "mean" }[state.figure];
    const bars = isPredicted() ? " Bars: by so much predictions are off, where that is known." : "";
    const one = (title, get, of, count, caption) => picture({ title, mark: worst(RUNS), caption: caption + repeats + bars, option: sweepOption(lines(get, of), values, state.key, count, Boolean(count)) });
    const latency = name => run => figuresOf(run, name)?.[state.figure];
    place.replaceChildren(box("div", "trio",
      RUNS.some(run => figuresOf(run, "pure_queue_time")) ? one("Server queue", latency("pure_queue_time"), `pure_queue_time_ms.${state.figure}`, null, `How long a request waited for a place in a batch, ${words}.`) : "",
      one("Time to first token", latency("ttft"), `ttft_ms.${state.figure}`, null, `From arrival to the first token, ${words}.`),
      one("Finished", run => run.summary.completed_rate, "request_throughput", "requests a second", "Requests that went well, a second.")));
    if (place.isConnected) removeDetached();
  };
  show();
  const key = choice("Setting", [...keys].reverse().map(name => [name, name]), name => { state.key = name; show(); });
  const tools = box("div", "tools", keys.length > 1 ? key : null, choice("Latency", [["p50", "median"], ["mean", "mean"], ["p99", "p99"]], figure => { state.figure = figure; show(); }));
  return section("sweep", `What ${keys.length === 1 ? keys[0] : "the settings"} changes`, tools, place,
    DATA.max_rate ? make("pre", DATA.max_rate) : null);
}

function distributions() {
  const shown = DATA.shown.filter(of => RUNS.some(run => run.curves[of.name].values.length));
  if (!shown.length) return null;
  let [metric] = shown;
  const cdf = { title: "Distribution", mark: worst(RUNS), option: c => cdfOption(RUNS.filter(run => run.curves[metric.name].values.length), metric)(c),
    caption: "How many of the requests took at most the time below: the further left a line, the faster. At 50 % is the median, at 99 % what the slowest in a hundred exceed. A step in a line means two kinds of requests." };
  const figure = picture(cdf);
  const tools = box("div", "tools", choice("Latency", shown.map(of => [of, of.label]), of => { metric = of; draw(cdf); }));
  return section("latencies", "How long requests took", make("p", "Requests that went well.", "soft"), tools, figure);
}

let chosen = null;
function choose(run) {
  chosen = run;
  const place = $("detail-of");
  const isOnly = RUNS.length === 1;
  place.replaceChildren(...[whereTheTimeWent, isOnly && allFindings, whyTheyWaited, isOnly && distributions, waterfall, overTime, faults, servers, gauges, figuresTable, leftOut, settings].map(part => part && part(run)).filter(Boolean));
  removeDetached();
  const select = $("detail")?.querySelector("select");
  if (select) select.selectedIndex = RUNS.indexOf(run);
  for (const row of document.querySelectorAll("#runs tbody tr")) row.classList.toggle("chosen", row.querySelector("a")?.textContent === briefOf(run));
  contents();
}

function detail() {
  const bar = box("div", "of", choice("In detail:", RUNS.map(run => [run, nameOf(run)]), choose)), place = make("div");
  bar.id = "detail";
  place.id = "detail-of";
  return RUNS.length > 1 ? [bar, place] : [place];
}

/** Redraws all stages after `isFirst` has changed. */
function redrawStages() {
  if (chosen) $("stages-text")?.replaceChildren(...stagesText(chosen));
  redraw();
}

const NAV = { compare: "Comparison", "by-run": "By run", findings: "Findings", sweep: "Settings tried", runs: "Runs", latencies: "Latencies", stages: "Stages", waiting: "Waiting", waterfall: "Requests",
  "over-time": "Over time", faults: "Faults in detail", servers: "Servers", gauges: "Gauges", figures: "Figures", "left-out": "Left out", settings: "Settings" };

function contents() {
  const links = [...document.querySelectorAll("main section[id]")].map(of => {
    const link = make("a", NAV[of.id] ?? of.querySelector("h2").textContent);
    link.href = "#" + of.id;
    return link;
  });
  $("nav").replaceChildren(...links);
}

headline();
if (RUNS.length) {
  // The comparison of settings and the stages come first.
  const ofMany = RUNS.length > 1 ? [compared, stagesByRun, allFindings, sweep, runsTable, distributions] : [];
  $("main").append(...ofMany.map(part => part()).filter(Boolean), ...detail());
  choose(RUNS[0]);
}
const FILES = RUNS.some(run => run.is_scheduled) ? ", which are in the runs' folders: \`requests.csv\` (a row a request), \`summary.json\`, \`schedule.csv\`, and of an experiment \`series.csv\`, \`faults.csv\`, \`logs/\`" : "";
$("foot").append(words("p", `Made by queuescope ${DATA.version} from the rows of the requests${FILES}. Charts by Apache ECharts (Apache License 2.0). This page loads nothing from anywhere.`));
