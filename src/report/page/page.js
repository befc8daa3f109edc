const RUNS = DATA.runs;
const EXPERIMENT = DATA.experiment;
const FIGURES = { p50: "median", mean: "mean", p99: "99th percentile" };

function headline() {
  const keys = EXPERIMENT?.keys ?? [], isOne = RUNS.length === 1;
  const total = sumOf(RUNS.map(run => run.summary.requests));
  const title = EXPERIMENT ? [upper(EXPERIMENT.kind || "experiment"), keys.join(", ")].filter(Boolean).join(": ") : isOne ? `Run ${RUNS[0].run}` : `${RUNS.length} runs`;
  $("title").textContent = title;
  document.title = `${title} · queuescope`;
  $("kind").textContent = `report ${DATA.version}`;
  const began = EXPERIMENT?.began ?? RUNS[0]?.file?.began;
  $("lead").textContent = RUNS.length ? `${several(total, "request")} in ${several(RUNS.length, "run")}${began ? `, begun ${new Date(began * 1000).toISOString().slice(0, 16).replace("T", " ")} UTC` : ""}.` : "No run has been made yet.";
  const mark = worst(RUNS);
  if (mark) {
    const which = isOne ? "This run" : RUNS.filter(run => run.mark === mark).map(of => of.run).join(", ");
    const why = RUNS.flatMap(run => (run.summary.verdict?.reasons ?? []).map(reason => words("p", `${isOne ? "" : `${run.run}: `}${upper(reason)}.`)));
    const reasons = isOne || !why.length ? why : [folded("Why", ...why)];
    $("head").append(box("div", `box verdict ${mark}`, box("p", "", markOf(mark), ` ${which}: ${MARKS[mark]}`), ...reasons));
  }
}

/** The findings of all runs; what several runs have in common is one finding. */
function allFindings() {
  const rank = ([, of]) => LEVELS.indexOf(of.level);
  const all = RUNS.flatMap(run => run.findings.map(of => [run, of])).sort((a, b) => rank(a) - rank(b));
  const items = [...new Set(all.map(([, of]) => of.kind))].map(kind => {
    const [[first, of], ...others] = all.filter(([, of]) => of.kind === kind);
    if (RUNS.length === 1) return findingOf(of);
    const which = others.length + 1 === RUNS.length ? "every run" : [first.run, ...others.map(([{ run }]) => run)].join(", ");
    const where = box("div", "where", make("p", `In ${which}${others.length ? `; the figures above are those of ${first.run}` : ""}.`),
      others.length ? folded("The others", ...others.map(([run, of]) => words("p", `${run.run}: ${of.what}`))) : null);
    return findingOf(of, where);
  });
  const rate = DATA.max_rate ? make("p", DATA.max_rate.split("\n")[0]) : null;
  return section("findings", "What this says", rate, items.length ? box("ul", "findings", ...items) : make("p", "No finding applies to what was measured."));
}

/** The comparison of settings; the table has those against the first setting. */
function compared() {
  const all = DATA.comparison;
  if (!all.length && !DATA.not_compared.length) return null;
  const listed = all.filter(of => of.is_against_first), columns = [...new Set(listed.map(of => of.label))];
  const pairs = new Map(listed.map(of => [JSON.stringify([of.a, of.b]), of]));
  const cell = of => {
    const [value, bounds] = of.range.split(" ["), isLess = of.difference < 0;
    return [of.shown ? make("b", (isLess ? "▼ " : "▲ ") + value, isLess ? "better" : "worse") : make("span", value, "soft"), `[${bounds}`];
  };
  const rows = [...pairs.values()].map(({ a, b }) => {
    const found = columns.map(label => listed.find(of => of.a === a && of.b === b && of.label === label));
    return [box("span", "", `${b} `, make("small", `against ${a}`, "soft")), ...found.map(of => of && cell(of))];
  });
  const answer = (text, isShown) => make("li", text, isShown ? "shown" : "none");
  return section("comparison", "Which is better?",
    DATA.answers.length ? box("ul", "answers", ...DATA.answers.map(text => answer(text, !/^(No setting is shown|Where queues are long)/.test(text)))) : null,
    ...(all.length ? [soft(`All settings replay the same requests. Brackets: 95 % confidence interval; too narrow for one or two runs with long queues. Grey: no difference is shown, as the interval holds 0 or, of ${several(all.length, "comparison")}, may miss it by chance (then the interval alone shows one).`),
      markOf(worst(RUNS.filter(run => run.mark === "DEGRADED"))), table(["setting", ...columns], rows, "▼ less, ▲ more than the first setting, by so much."),
      folded(`All ${several(all.length, "comparison")} as sentences`, box("ul", "answers", ...all.map(of => answer(of.sentence, of.shown))))] : []),
    DATA.not_compared.length ? folded("What was not compared, and why", box("ul", "", ...DATA.not_compared.map(note => words("li", note)))) : null);
}

function runsTable() {
  const isOne = RUNS.length === 1;
  const rows = RUNS.flatMap(run => {
    const [[, ...figures], ...errors] = run.lines;
    const name = isOne ? run.run : make("a", run.run, "", { href: "#detail", onclick: () => choose(run) });
    run.cell = box("span", "", name, " ", markOf(run.mark));
    return [[run.cell, ...figures], ...errors];
  });
  const goalsOf = run => Object.entries(run.summary.goodput_goals_ms).map(([name, limit]) => `${name} ≤ ${limit} ms`).join(", ");
  const about = [isPredicted() ? "±: how far off a prediction may be, as a share (docs/WHATIF.md)." : "", DATA.heads.includes("kept the goals") ? `Goals: ${goalsOf(RUNS[0])}.` : "",
    RUNS.some(run => run.summary.given_up) ? "Without requests that were given up when a run was stopped." : ""];
  const missing = (EXPERIMENT?.runs ?? []).filter(of => of.state !== "done");
  return section("runs", isOne ? "The run" : "The runs", isOne ? null : soft("Choose one to see it in detail below."), table(DATA.heads, rows, about.join(" ")),
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
  return section("by-run", "Where the time went, run by run", picture({ title: "Stages of each run", mark: worst(RUNS), height: () => 110 + shown.length * 34, option: whereOption(shown), tools: firstBox(),
    caption: "The mean time of a request and what it went to. The longest colour is where most of it went." + (RUNS.map(partialNote).find(Boolean) ?? "") }));
}

/** Queue, TTFT and throughput against the values of a setting. */
function sweep() {
  const keys = EXPERIMENT?.keys ?? [];
  if (!keys.length || RUNS.length < 2 || isPredicted() && RUNS.length < 3) return null;
  const place = make("div"), settingOf = (run, key) => run.file.settings[key] ?? "";
  // The measured run that predictions are made from has no settings.
  const runs = RUNS.filter(run => keys.some(key => key in (run.file?.settings ?? {})));
  let key = keys.at(-1), figure = "p50";
  const show = () => {
    const text = run => valueText(settingOf(run, key));
    const values = [...new Map(runs.map(run => [text(run), settingOf(run, key)])).values()];
    if (values.every(value => typeof value === "number")) values.sort((a, b) => a - b);
    const others = run => keys.filter(other => other !== key).map(other => `${other} = ${valueText(settingOf(run, other))}`).join(", ");
    const means = (name, get) => values.map(value => {
      const found = runs.filter(run => others(run) === name && text(run) === valueText(value)).map(get).filter(known);
      return found.length ? sumOf(found) / found.length : null;
    });
    const notes = (RUNS.some(run => run.file?.repeat) ? " The mean of the repeats." : "") + (isPredicted() ? " Bars: by so much predictions are off, where that is known." : "");
    const one = (title, caption, of, get, unit) => {
      const lines = [...new Set(runs.map(others))].map(name => ({ name: name || "all runs", figures: means(name, get), off: means(name, run => run.off?.[of]) }));
      return picture({ title, mark: worst(RUNS), caption: caption + notes, option: sweepOption(lines, values, key, unit) });
    };
    const latency = (name, title, caption) => one(title, `${caption}, ${FIGURES[figure]}.`, `${name}_ms.${figure}`, run => figuresOf(run, name)?.[figure]);
    refill(place, [box("div", "pair",
      RUNS.some(run => figuresOf(run, "pure_queue_time")) ? latency("pure_queue_time", "Server queue", "How long a request waited for a place in a batch") : null,
      latency("ttft", "Time to first token", "From arrival to the first token"),
      one("Finished", "Requests that went well, a second.", "request_throughput", run => run.summary.completed_rate, "requests a second"))]);
  };
  show();
  const tools = box("div", "tools", keys.length > 1 ? choice("Setting", [...keys].reverse().map(name => [name, name]), name => { key = name; show(); }) : null,
    choice("Latency", Object.entries(FIGURES), name => { figure = name; show(); }));
  return section("settings-tried", keys.length === 1 ? `What ${keys[0]} changes` : "What the settings change", tools, place, DATA.max_rate ? make("pre", DATA.max_rate.split("\n").slice(1).join("\n")) : null);
}

function distributions() {
  const shown = DATA.shown.filter(of => RUNS.some(run => run.curves[of.name].length));
  if (!shown.length) return null;
  let [metric] = shown;
  const cdf = { title: "Distribution", mark: worst(RUNS), option: () => cdfOption(RUNS.filter(run => run.curves[metric.name].length), metric)(),
    caption: "How many of the requests took at most the time below: the further left a line, the faster. At 50 % is the median, at 99 % what the slowest in a hundred exceed. A step in a line means two kinds of requests." };
  const figure = picture(cdf);
  const tools = box("div", "tools", choice("Latency", shown.map(of => [of, of.label]), of => { metric = of; draw(cdf); }));
  return section("latencies", "How long requests took", soft("Requests that went well."), tools, figure);
}

let chosen = null;
const chooser = choice("In detail:", RUNS.map(run => [run, nameOf(run)]), choose);
function choose(run) {
  chosen = run;
  const isOnly = RUNS.length === 1;
  refill($("detail-of"), [whereTheTimeWent, isOnly && allFindings, isOnly && runsTable, whyTheyWaited, isOnly && distributions, waterfall, overTime, faults, servers, gauges, figuresTable, leftOut, settings].map(part => part && part(run)));
  chooser.querySelector("select").selectedIndex = RUNS.indexOf(run);
  RUNS.forEach(of => of.cell.closest("tr").classList.toggle("chosen", of === run && !isOnly));
  contents();
}

/** Redraws all stages after `isFirst` has changed. */
function redrawStages() {
  if (chosen) $("stages-text")?.replaceChildren(...stagesText(chosen));
  redraw();
}

function contents() {
  const sections = [...document.querySelectorAll("main section[id]")];
  $("nav").replaceChildren(...sections.map(({ id }) => make("a", upper(id.replaceAll("-", " ")), "", { href: "#" + id })));
}

headline();
// The comparison of settings and the stages come first.
if (RUNS.length > 1) refill($("together"), [compared, stagesByRun, allFindings, sweep, runsTable, distributions].map(part => part()));
$("detail").append(chooser);
$("detail").hidden = RUNS.length < 2;
if (RUNS.length) choose(RUNS[0]);
$("foot").textContent = `Made by queuescope ${DATA.version} from the rows of the requests. Charts by Apache ECharts (Apache License 2.0). This page loads nothing from anywhere.`;
