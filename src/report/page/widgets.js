/** What the page is of, and what both its charts and its tables say of it. */
const DATA = JSON.parse($("data").textContent);
/** The unit in which an axis up to so many seconds is labelled: its name, and units in a second. */
const unitFor = most => most >= 2 ? { name: "s", times: 1 } : most >= 0.002 ? { name: "ms", times: 1e3 } : { name: "µs", times: 1e6 };
/** A setting's value as it is written. */
const written = value => typeof value === "string" ? value : JSON.stringify(value);

/** A table of heads and rows; on a phone each row is a list of its cells with their heads. */
function table(heads, rows, about, name) {
  const caption = about ? make("caption", about) : null;
  // A quantile by itself is of what stands before it.
  const full = heads.map(head => head?.n ?? head).map((head, at, all) => /^p\d+$/.test(head) ? all.slice(0, at).findLast(other => / p\d+$/.test(other))?.replace(/p\d+$/, head) ?? head : head);
  const body = box("tbody", "", ...rows.map(cells => row(cells)));
  for (const line of body.rows) [...line.cells].forEach((cell, at) => { cell.dataset.head = full[at]; });
  return box("div", "scroll", box("table", name ?? "", caption, box("thead", "", row(heads, true)), body));
}
/** Buttons of which one is pressed. */
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
/** The mark of a run that is not valid or not whole; nothing of one that is. */
const gradeOf = run => run.mark;
function markOf(grade) {
  return grade ? make("span", grade, `mark ${grade === "INVALID" ? "" : "DEGRADED"}`) : null;
}
/** The worst grade of several runs. */
const worst = runs => ["INVALID", "UNFINISHED", "DEGRADED"].find(grade => runs.some(run => gradeOf(run) === grade)) ?? null;
/** A name made of settings as it is read. */
const spaced = name => (DATA.experiment?.keys ?? []).reduce((name, key) => name.replaceAll(`${key}=`, `${key} = `), name);
/** A run's name: the values of the settings that vary, with their keys. */
const briefOf = run => spaced(run.run);
/** A run's name as a chart shows it. */
const nameOf = run => gradeOf(run) ? `${briefOf(run)} [${gradeOf(run)}]` : briefOf(run);
/** A round number that is not less. */
function niceMax(value) {
  if (!(value > 0)) return null;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find(step => step * power >= value) * power;
}
/** By how much a figure of a prediction may be off, as a share; and whether any run is one. */
const offOf = (run, figure) => known(run.off?.[figure]) ? `± ${number(run.off[figure] * 100, 1)} %` : "";
const isPredicted = () => RUNS.some(run => run.off);
const figuresOf = (run, name) => run.summary.latency[name] ?? null;
const labelOf = name => [...DATA.listed, ...DATA.shown].find(of => of.name === name)?.label ?? name;
