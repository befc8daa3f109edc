/** The data of the page. */
const DATA = JSON.parse($("data").textContent);
/** The text of a setting's value. */
const valueText = value => typeof value === "string" ? value : JSON.stringify(value);

/** Makes a table. */
function table(heads, rows, about) {
  const caption = about ? make("caption", about) : null;
  return box("div", "scroll", box("table", "", caption, box("thead", "", row(heads, true)), box("tbody", "", ...rows.map(([label, ...cells]) => row([label || "unknown", ...cells])))));
}
/** Makes a box to choose one of several `[value, words]` by; the first is chosen. */
function choice(label, options, pick) {
  const select = make("select", null, "", { onchange: () => pick(options[select.selectedIndex][0]) });
  select.append(...options.map(([, words]) => make("option", words)));
  return box("label", "", `${label} `, select);
}
/** What the marks of runs mean, the worst first. */
const MARKS = { INVALID: "the load was not what was asked, so the figures do not describe the servers.", UNFINISHED: "cut short; the figures are of the requests that had ended by then.",
  DEGRADED: "something disturbed the measurement: take the figures with care." };
/** Makes the element of a mark; null without one. */
const markOf = mark => mark ? make("span", mark, `mark ${mark}`) : null;
/** The worst mark of several runs. */
const worst = runs => Object.keys(MARKS).find(mark => runs.some(run => run.mark === mark)) ?? null;
/** A label of settings with spaces around `=`. */
const spaced = name => (DATA.experiment?.keys ?? []).reduce((name, key) => name.replaceAll(`${key}=`, `${key} = `), name);
/** The name of a run. */
const briefOf = run => spaced(run.run);
/** The name of a run in a chart, with its mark. */
const nameOf = run => run.mark ? `${briefOf(run)} [${run.mark}]` : briefOf(run);
/** The expected error of a figure of a prediction; and whether any run is a prediction. */
const errorOf = (run, figure) => known(run.off?.[figure]) ? `± ${number(run.off[figure] * 100, 1)} %` : "";
const isPredicted = () => RUNS.some(run => run.off);
const figuresOf = (run, name) => run.summary.latency[name]?.count ? run.summary.latency[name] : null;
/** The share of all of a run's requests that kept its goals, as text, and these; nothing without goals, or where that is not known. */
function keptOf({ summary: { goodput_requests: good, goodput_unknown: unknown, goodput_goals_ms: goals, requests } }) {
  return !known(good) || unknown || !requests ? [] : [`${number(good / requests * 100, 1)} %`, Object.entries(goals).map(([name, limit]) => `${name} ≤ ${limit} ms`).join(", ")];
}
const labelOf = name => [...DATA.listed, ...DATA.shown].find(of => of.name === name)?.label ?? name;
