"use strict";
const $ = id => document.getElementById(id);

/** Makes an element with text, a class and other properties. Text from data is put into the page only by this, never as HTML. */
function make(tag, words, name, properties) {
  const element = document.createElement(tag);
  if (words !== undefined && words !== null) element.textContent = words;
  if (name) element.className = name;
  return Object.assign(element, properties);
}
/** Makes an element with child nodes. */
function box(tag, name, ...inner) {
  const element = make(tag, null, name);
  element.append(...inner.filter(part => part !== null && part !== undefined));
  return element;
}
/** Puts text with `code` into a new or existing element; Markdown links become their text. */
function words(into, text, name) {
  const element = into instanceof Node ? into : make(into, null, name);
  const pieces = text.replace(/\[([^\]]+)\]\([^)]+\)/g, "$1").split("`");
  element.replaceChildren(...pieces.map((piece, at) => at % 2 ? make("code", piece) : document.createTextNode(piece)));
  return element;
}
const known = value => value !== null && value !== undefined;
/** Formats seconds as `units::duration` in Rust does, without line breaks. */
function duration(seconds) {
  if (!known(seconds)) return "–";
  const size = Math.abs(seconds);
  if (size >= 0.0995) return seconds.toFixed(2) + "\u00a0s";
  if (size >= 0.000995) return (seconds * 1e3).toFixed(1) + "\u00a0ms";
  return (seconds * 1e6).toFixed(0) + "\u00a0µs";
}
const number = (value, digits) => known(value) ? value.toLocaleString("en", { maximumFractionDigits: digits ?? (Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2) }) : "–";
const percent = share => !Number.isFinite(share) ? "–" : share > 0 && share < 0.0005 ? "< 0.1 %" : (share * 100).toFixed(share < 0.0995 || (share > 0.995 && share < 0.9995) ? 1 : 0) + " %";
const several = (count, one) => `${number(count)} ${one}${count === 1 ? "" : "s"}`;
/** The least round number that is not smaller. */
function niceMax(value) {
  if (!(value > 0)) return null;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find(step => step * power >= value) * power;
}
const upper = text => text.charAt(0).toUpperCase() + text.slice(1);

/** Makes a row of a table: a label, then numbers. A cell is formatted text, that with a small addition (`[text, small]`), or an element of any text. */
function row(cells, isHead) {
  return box("tr", "", ...cells.map((cell, at) => {
    const [inner, small] = [cell].flat(), isLabel = isHead || !at;
    const element = make(isLabel ? "th" : "td", null, at && !(cell instanceof Node) ? "n" : "", isLabel ? { scope: isHead ? "col" : "row" } : {});
    element.append(inner ?? "–", ...(small ? [" ", make("small", small)] : []));
    return element;
  }));
}
/** Makes a table's cell of text, which is no number. */
const plain = text => make("span", text ?? "–");

/** The colors of stages, and of time that is no stage. */
const STAGES = { ...{{colors}}, client_stall: "#cc79a7", prompt_wait: "#cc79a7", proxy: "#2f86d1", connecting: "#2f86d1" };
/** Paints an element in the color of a stage, or hatched for several stages that are not known separately, with readable text. */
function paint(element, name) {
  const color = STAGES[name];
  if (!color) element.classList.add("hatch");
  else element.style.background = color;
  const [red, green, blue] = [1, 3, 5].map(at => parseInt(color?.slice(at, at + 2), 16));
  // The perceived brightness.
  if (0.3 * red + 0.6 * green + 0.1 * blue < 100) element.style.color = "#fff";
  return element;
}
/** Sorts stages in the order in which a request passes them. */
const inOrder = stages => [...stages].sort((a, b) => a.order - b.order);
/** Makes a bar of the shares of stages. */
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

/** The stages as a bar, a list with their shares, and those that took next to nothing in one line. */
function stagesList(stages) {
  const isLarge = stage => stage.share >= 0.005;
  const legend = box("ul", "legend", ...stages.filter(isLarge).map(stage =>
    box("li", "", paint(make("span", "", "swatch"), stage.name), box("span", "", make("b", stage.label), " ", make("span", stage.place.endsWith(stage.label) ? "" : stage.place, "soft")), make("b", `${percent(stage.share)} · ${duration(stage.mean)}${stage.of}`, "n"))));
  const small = stages.filter(stage => !isLarge(stage)).map(stage => `${stage.label} ${duration(stage.mean)}${stage.of}`);
  return [shareBar(stages), legend, small.length ? make("p", `Less than 0.5 % each: ${small.join(", ")}.`, "soft") : ""];
}

/** Whether all stages on the page are shown only until the first token. */
let isFirst = false;
const spentOf = of => isFirst ? of.until_first_token : of.all;
/** Makes the checkbox for that. The page's own `redrawStages` then shows all stages anew. */
function firstBox() {
  const onchange = ({ target }) => {
    isFirst = target.checked;
    for (const input of document.querySelectorAll("input.first")) input.checked = isFirst;
    redrawStages();
  };
  return box("label", "", make("input", null, "first", { type: "checkbox", checked: isFirst, onchange }), " until the first token only");
}
