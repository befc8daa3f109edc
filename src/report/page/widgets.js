/** The data of the page. */
const DATA = JSON.parse($("data").textContent);
/** The text of a setting's value. */
const valueText = value => typeof value === "string" ? value : JSON.stringify(value);

/** Makes a paragraph in a soft colour. */
const soft = text => make("p", text, "soft");
/** Makes a part that is shown when its title is chosen. */
const folded = (title, ...inner) => box("details", "", make("summary", title), ...inner);
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
const MARKS = { INVALID: "the load was not what was asked, so the figures do not describe the servers.", UNFINISHED: "cut short, or not over yet; the figures are of the requests that had ended by then.",
  DEGRADED: "something disturbed the measurement: take the figures with care." };
/** Makes the element of a mark; null without one. */
const markOf = mark => mark ? make("span", mark, `mark ${mark}`) : null;
/** The worst mark of several runs. */
const worst = runs => Object.keys(MARKS).find(mark => runs.some(run => run.mark === mark)) ?? null;
/** The name of a run in a chart, with its mark. */
const nameOf = run => run.mark ? `${run.run} [${run.mark}]` : run.run;
/** Whether any run is a prediction. */
const isPredicted = () => RUNS.some(run => run.off);
const figuresOf = (run, name) => run.summary.latency[name]?.count ? run.summary.latency[name] : null;
