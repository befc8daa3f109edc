"use strict";
const $ = id => document.getElementById(id);

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
/** Text with `code` in it, in a new element or in one that is there; links of documents show as their words. */
function words(into, text, name) {
  const element = into instanceof Node ? into : make(into, null, name);
  const pieces = text.replace(/\[([^\]]+)\]\([^)]+\)/g, "$1").split("`");
  element.replaceChildren(...pieces.map((piece, at) => at % 2 ? make("code", piece) : document.createTextNode(piece)));
  return element;
}
const known = value => value !== null && value !== undefined;
/** Seconds as a person reads them: as the sentences say them, in one line. */
function duration(seconds) {
  if (!known(seconds)) return "–";
  const size = Math.abs(seconds);
  if (size >= 0.0995) return seconds.toFixed(2) + "\u00a0s";
  if (size >= 0.000995) return (seconds * 1e3).toFixed(1) + "\u00a0ms";
  return (seconds * 1e6).toFixed(0) + "\u00a0µs";
}
const number = (value, digits) => known(value) ? value.toLocaleString("en", { maximumFractionDigits: digits ?? (Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2) }) : "–";
const percent = share => !Number.isFinite(share) ? "–" : share > 0 && share < 0.0005 ? "< 0.1 %" : (share * 100).toFixed(share < 0.0995 || (share > 0.995 && share < 0.9995) ? 1 : 0) + " %";
const several = (count, one, many) => `${number(count)} ${count === 1 ? one : many ?? one + "s"}`;
const upper = text => text.charAt(0).toUpperCase() + text.slice(1);

/** A row of a table; a cell is text, an element, or a number in words (`{ n: "1.5 ms" }`, `{ n: …, small: … }`). */
function row(cells, isHead) {
  return box("tr", "", ...cells.map((cell, at) => {
    const isNumber = known(cell?.n);
    const element = make(isHead || !at ? "th" : "td", null, isNumber ? "n" : "");
    if (isHead || !at) element.scope = isHead ? "col" : "row";
    element.append(isNumber ? cell.n : cell ?? "–");
    if (isNumber && cell.small) element.append(" ", make("small", cell.small));
    return element;
  }));
}

const DARK = matchMedia("(prefers-color-scheme: dark)");
/** The colours of stages. */
const STAGES = {
  light: { "client lag": "#a39382", "to proxy": "#d3c7b6", router: "#8b5fbf", network: "#8c959f", tokenize: "#56b4e9", queue: "#d55e00",
    "decode memory": "#b03a2e", "prefill queue": "#e67e22", "KV transfer": "#1f60c4", "decode slot": "#c2185b", "router hold": "#5b3f8c",
    prefill: "#f0e442", return: "#6e7781", "router return": "#b79bd9", decode: "#009e73", client_stall: "#cc79a7", prompt_wait: "#cc79a7", proxy: "#0072b2", connecting: "#0072b2" },
  dark: { "client lag": "#a39382", "to proxy": "#d3c7b6", router: "#a884d9", network: "#9aa4af", tokenize: "#56b4e9", queue: "#e0702a",
    "decode memory": "#c8503f", "prefill queue": "#e67e22", "KV transfer": "#4f86e8", "decode slot": "#d84a80", "router hold": "#7d5fc0",
    prefill: "#e6d93c", return: "#7d8590", "router return": "#8f7ab0", decode: "#12a57c", client_stall: "#cc79a7", prompt_wait: "#cc79a7", proxy: "#3d9bd6", connecting: "#3d9bd6" },
};
/** Paints what stands for a stage; hatched where several were not seen apart. Words on it can be read. */
function paint(element, name) {
  if (name.includes("+")) {
    element.classList.add("hatch");
    return element;
  }
  const colour = STAGES[DARK.matches ? "dark" : "light"][name];
  element.style.background = colour ?? "var(--soft)";
  const [red, green, blue] = [1, 3, 5].map(at => parseInt(colour?.slice(at, at + 2), 16));
  // As bright as it seems.
  if (0.3 * red + 0.6 * green + 0.1 * blue < 100) element.style.color = "#fff";
  return element;
}
/** Stages in the order of a request's life. */
const inOrder = stages => [...stages].sort((a, b) => a.order - b.order);
/** What time went to, as one bar. */
function shareBar(stages) {
  const shown = inOrder(stages).filter(of => of.seconds > 0), whole = shown.reduce((sum, of) => sum + of.seconds, 0);
  const bar = box("div", "share", ...shown.map(({ name, label, seconds }) => {
    const part = paint(make("span", seconds > 0.012 * label.length * whole ? label : null), name);
    part.style.flex = `${seconds / whole} 1 0`;
    return part;
  }));
  bar.setAttribute("aria-hidden", true);
  return bar;
}

/** Whether stages are shown until the first token only, all over the page. Its address keeps it, behind a section's name. */
let isFirst = location.hash.includes("until=first_token");
const spentOf = of => isFirst ? of.until_first_token : of.all;
const FIRST = "until the first token only";
/** A box to tick, for that; the page's own `retold` shows it anew. */
function firstBox() {
  const input = make("input", null, "first");
  input.type = "checkbox";
  input.checked = isFirst;
  input.onchange = () => {
    const section = location.hash.slice(1).split("&").filter(part => part && !part.includes("="));
    location.replace("#" + [...section, `until=${input.checked ? "first_token" : "end"}`].join("&"));
  };
  return box("label", "", input, " " + FIRST);
}
addEventListener("hashchange", () => {
  const said = location.hash.match(/until=(\w+)/);
  // A link to a section says nothing of it.
  if (!said && isFirst) location.replace(`${location.hash || "#"}&until=first_token`);
  if (!said || isFirst === (said[1] === "first_token")) return;
  isFirst = !isFirst;
  for (const input of document.querySelectorAll("input.first")) input.checked = isFirst;
  retold();
});
