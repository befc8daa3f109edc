/** The data of the page. */
const DATA = JSON.parse($("data").textContent);
/** The unit of an axis up to `max` seconds: its name, and the factor from seconds. */
const unitFor = max => max >= 2 ? { name: "s", times: 1 } : max >= 0.002 ? { name: "ms", times: 1e3 } : { name: "µs", times: 1e6 };
/** The text of a setting's value. */
const valueText = value => typeof value === "string" ? value : JSON.stringify(value);

/** Makes a table. On a phone each row is a list of its cells with their headings. */
function table(heads, rows, about, name) {
  const caption = about ? make("caption", about) : null;
  // The heading `p99` belongs to the latency of the headings before it.
  const full = heads.map(head => head?.n ?? head).map((head, at, all) => /^p\d+$/.test(head) ? all.slice(0, at).findLast(other => / p\d+$/.test(other))?.replace(/p\d+$/, head) ?? head : head);
  const body = box("tbody", "", ...rows.map(cells => row(cells)));
  for (const line of body.rows) [...line.cells].forEach((cell, at) => { cell.dataset.head = full[at]; });
  return box("div", "scroll", box("table", name ?? "", caption, box("thead", "", row(heads, true)), body));
}
/** Makes a group of buttons of which one is pressed. */
function choice(label, options, chosen, pick) {
  const group = make("span");
  group.setAttribute("role", "group");
  group.setAttribute("aria-label", label);
  const buttons = options.map(([value, words]) => {
    const button = make("button", words);
    button.type = "button";
    button.setAttribute("aria-pressed", value === chosen);
    button.onclick = () => {
      buttons.forEach(other => other.setAttribute("aria-pressed", other === button));
      pick(value);
    };
    return button;
  });
  group.append(...buttons);
  return box("span", "", `${label} `, group);
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
/** The least round number that is not smaller. */
function niceMax(value) {
  if (!(value > 0)) return null;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find(step => step * power >= value) * power;
}
/** The expected error of a figure of a prediction; and whether any run is a prediction. */
const errorOf = (run, figure) => known(run.off?.[figure]) ? `± ${number(run.off[figure] * 100, 1)} %` : "";
const isPredicted = () => RUNS.some(run => run.off);
const figuresOf = (run, name) => run.summary.latency[name] ?? null;
const labelOf = name => [...DATA.listed, ...DATA.shown].find(of => of.name === name)?.label ?? name;
