/** The data of the page. */
const DATA = JSON.parse($("data").textContent);
/** The unit of an axis up to `max` seconds: its name, and the factor from seconds. */
const unitFor = max => max >= 2 ? { name: "s", times: 1 } : max >= 0.002 ? { name: "ms", times: 1e3 } : { name: "µs", times: 1e6 };
/** The text of a setting's value. */
const valueText = value => typeof value === "string" ? value : JSON.stringify(value);

/** Makes a table. */
function table(heads, rows, about, name) {
  const caption = about ? make("caption", about) : null;
  return box("div", "scroll", box("table", name ?? "", caption, box("thead", "", row(heads, true)), box("tbody", "", ...rows.map(cells => row(cells)))));
}
/** Makes a table as the report's text has it: a column of labels, and others of numbers. */
function gridTable({ heads, rows }, about) {
  const numbers = ([label, ...others]) => [label || "unknown", ...others.map(n => ({ n }))];
  return table(numbers(heads), rows.map(numbers), about);
}
/** Makes a box to choose one of several `[value, words]` by; the first is chosen. */
function choice(label, options, pick) {
  const select = box("select", "", ...options.map(([, words]) => make("option", words)));
  select.onchange = () => pick(options[select.selectedIndex][0]);
  return box("label", "", `${label} `, select);
}
/** Makes the element of a mark such as `INVALID`; null without one. */
function markOf(mark) {
  return mark ? make("span", mark, `mark ${mark === "INVALID" ? "" : "DEGRADED"}`) : null;
}
/** The worst mark of several runs. */
const worst = runs => ["INVALID", "UNFINISHED", "DEGRADED"].find(mark => runs.some(run => run.mark === mark)) ?? null;
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
const labelOf = name => [...DATA.listed, ...DATA.shown].find(of => of.name === name)?.label ?? name;
