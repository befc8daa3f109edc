"use strict";
const $ = id => document.getElementById(id);
const DATA = JSON.parse($("data").textContent);

/** An element with text; what comes from data goes into the page this way only. */
function make(tag, words, name) {
  const element = document.createElement(tag);
  if (words !== undefined && words !== null) element.textContent = words;
  if (name) element.className = name;
  return element;
}
/** An element with others in it. */
function box(tag, name, ...inner) {
  const element = make(tag, null, name);
  element.append(...inner.filter(part => part !== null && part !== undefined));
  return element;
}
/** Text with `code` in it. */
function words(tag, text, name) {
  const element = make(tag, null, name);
  element.append(...text.split("`").map((piece, at) => at % 2 ? make("code", piece) : document.createTextNode(piece)));
  return element;
}
const known = value => value !== null && value !== undefined;
/** Seconds as a person reads them: as the sentences say them. */
function duration(seconds) {
  if (!known(seconds)) return "–";
  const size = Math.abs(seconds);
  if (size >= 0.0995) return seconds.toFixed(2) + " s";
  if (size >= 0.000995) return (seconds * 1e3).toFixed(1) + " ms";
  return size === 0 ? "0" : (seconds * 1e6).toFixed(0) + " µs";
}
/** The unit in which an axis up to so many seconds is labelled: its name, and units in a second. */
const unitFor = most => most >= 2 ? { name: "s", times: 1 } : most >= 0.002 ? { name: "ms", times: 1e3 } : { name: "µs", times: 1e6 };
const number = (value, digits) => known(value) ? value.toLocaleString("en", { maximumFractionDigits: digits ?? (Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2) }) : "–";
const percent = share => !known(share) ? "–" : share > 0 && share < 0.0005 ? "< 0.1 %" : (share * 100).toFixed(share < 0.0995 || (share > 0.995 && share < 1) ? 1 : 0) + " %";
const several = (count, one, many) => `${number(count)} ${count === 1 ? one : many ?? one + "s"}`;
const upper = text => text.charAt(0).toUpperCase() + text.slice(1);
/** A setting's value as it is written. */
const written = value => typeof value === "string" ? value : JSON.stringify(value);

/** A table: heads, rows of cells; a cell is text, an element, or a number in words (`{ n: "1.5 ms" }`, `{ n: …, small: … }`). */
function table(heads, rows, about, name) {
  const head = box("thead", "", box("tr", "", ...heads.map(cell => {
    const th = make("th", cell.n ?? cell, known(cell.n) ? "n" : "");
    th.scope = "col";
    return th;
  })));
  const body = box("tbody", "", ...rows.map(row => {
    const tr = make("tr");
    row.forEach((cell, at) => {
      const isNumber = known(cell?.n);
      const td = make(at ? "td" : "th", null, isNumber ? "n" : "");
      if (!at) td.scope = "row";
      td.append(isNumber ? cell.n : known(cell) ? cell : "–");
      if (typeof cell === "object" && cell?.small) td.append(" ", make("small", cell.small));
      tr.append(td);
    });
    return tr;
  }));
  const element = box("table", name ?? "", about ? make("caption", about) : null, head, body);
  return box("div", "scroll", element);
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
/** A run's name in little room: where one setting varies, its value says it all. */
const briefOf = run => {
  const keys = DATA.experiment?.keys ?? [];
  return keys.length === 1 && run.run.startsWith(keys[0] + "=") ? run.run.slice(keys[0].length + 1) : run.run;
};
/** A run's name as a chart shows it. */
const nameOf = run => gradeOf(run) ? `${briefOf(run)} [${gradeOf(run)}]` : briefOf(run);
/** A round number that is not less. */
function niceMax(value) {
  if (!(value > 0)) return null;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find(step => step * power >= value) * power;
}
const figuresOf = (run, name) => run.summary.latency[name] ?? null;
const labelOf = name => [...DATA.listed, ...DATA.shown].find(of => of.name === name)?.label ?? name;
