/** Colors of lines and of faults, on light and on dark paper: charts cannot use style sheets. */
const LINES = ["#2f86d1", "#e0702a", "#12a57c", "#c063a0", "#b07a00", "#56b4e9", "#8468d8", "#7d8590"], BAD = "#d04b40";
const DARK = matchMedia("(prefers-color-scheme: dark)");
const SMALL = matchMedia("(max-width: 760px)");
/** Draws charts when they are scrolled near, so that a page with many opens fast. */
const OBSERVER = new IntersectionObserver(entries => {
  for (const { isIntersecting, target } of entries) if (isIntersecting) { OBSERVER.unobserve(target); draw(target.picture); }
}, { rootMargin: "600px" });
/** The pictures in a part of the page. */
const picturesIn = part => [...part.querySelectorAll(".chart")].map(chart => chart.picture);
/** Replaces what a part of the page holds; charts keep memory until they are disposed of. */
function refill(part, inner) {
  for (const of of picturesIn(part)) of.made?.dispose();
  part.replaceChildren(...inner.filter(Boolean));
}

/** The fill of a stage; hatched for several stages that are not known separately. */
const fill = stage => STAGES[stage] ? { color: STAGES[stage] }
  : { color: "#8c959f55", decal: { symbol: "rect", dashArrayX: [1, 0], dashArrayY: [3, 4], rotation: -Math.PI / 4, color: "#8c959f" } };
/** The line style of one of several runs or servers. */
const lineOf = at => ({ color: LINES[at % LINES.length], width: 2, type: ["solid", "dashed", "dotted"][Math.floor(at / LINES.length) % 3] });

/**
 * The ECharts options of a chart. `x` and `y` are the names of the axes with further options; `tip` makes the tooltip of the points under
 * the pointer; `legend` are the names of the series in the legend, or `true` for all.
 */
function chartOf({ x, y, series, legend = true, tip: formatter, grid, ...more }) {
  const axis = ([name, special], place) => ({ type: "value", name, min: 0, ...place, ...special, axisLabel: { hideOverlap: true, fontSize: 11, ...special?.axisLabel } });
  return {
    animation: false, backgroundColor: "transparent", aria: { enabled: true }, textStyle: { fontFamily: "system-ui, sans-serif" },
    grid: { left: 12, right: 20, top: legend ? 58 : 30, bottom: 34, ...grid },
    legend: { show: Boolean(legend), type: "scroll", top: 2, left: 0, padding: [5, 5, 5, 0], itemWidth: 18, itemHeight: 10, ...(Array.isArray(legend) ? { data: legend } : {}) },
    tooltip: { trigger: "axis", confine: true, formatter, axisPointer: { type: series.some(of => of.stack) ? "shadow" : "line", label: { show: false } } },
    xAxis: axis(x, { nameLocation: "middle", nameGap: 24, splitLine: { show: false } }),
    yAxis: axis(y, { nameTextStyle: { align: "left", padding: [0, 0, 0, -6] } }),
    series, ...more,
  };
}
/** A series of a line. */
const lineSeries = (name, data, lineStyle, more) => ({ type: "line", name, symbol: "none", lineStyle, itemStyle: { color: lineStyle.color }, data, ...more });
/** A series of a stage in stacked bars. */
const barSeries = (stage, name, data, more) => ({ type: "bar", stack: "all", name, itemStyle: fill(stage), data, ...more });

/** Makes a tooltip: a heading, and rows of a color, a name and a value. */
function tip(head, lines) {
  const rows = lines.map(([color, name, value]) => {
    const dot = make("span", "", "swatch", { style: `background: ${color}` });
    return box("tr", "", box("td", "", dot, name), make("td", value));
  });
  return box("div", "tip", make("b", head), box("table", "", ...rows));
}

/**
 * Makes a figure: a title, a chart that is drawn when it is scrolled near, a caption that says how to read it, and a button that saves it.
 * `option` makes the chart's options for a width; `height` returns pixels; `tools` changes what it shows.
 */
function picture(of) {
  of.chart = make("div", null, "chart");
  of.height = of.height ?? (() => SMALL.matches ? 260 : 300);
  of.chart.style.height = of.height() + "px";
  const save = make("button", "SVG", "save", { title: "Save this chart", onclick: () => saveChart(of) });
  of.chart.picture = of;
  OBSERVER.observe(of.chart);
  return box("figure", "", box("header", "", make("h3", of.title), markOf(of.mark), save), of.tools && box("div", "tools", of.tools), of.chart, words("figcaption", of.caption));
}
/** A chart's options, and the additional height, pixels, for a legend of several lines. */
function options(of, width) {
  const made = of.option(width);
  const names = new Set(!made.legend.show ? [] : made.legend.data ?? made.series.map(one => one.name).filter(known));
  let lines = 1, used = 0;
  for (const name of names) {
    const wide = Math.min(width, 34 + 6.8 * name.length);
    if (used + wide > width) { lines++; used = 0; }
    used += wide;
  }
  // A legend of many lines is scrolled instead.
  const more = lines > 6 ? 0 : (lines - 1) * 22;
  if (more) Object.assign(made.legend, { type: "plain", width, itemGap: 8 });
  made.grid.top += more;
  return [made, more];
}
function draw(of) {
  // It may have been removed since it was seen.
  if (!of.chart.isConnected) return;
  const [made, more] = options(of, of.chart.clientWidth);
  of.chart.style.height = of.height() + more + "px";
  of.made?.dispose();
  of.made = echarts.init(of.chart, DARK.matches ? "dark" : null);
  of.made.setOption(made);
}
/** Saves a chart on white, with its title. */
function saveChart(of) {
  const width = 960, [made, more] = options(of, width);
  made.backgroundColor = "#ffffff";
  made.title = { text: of.title, left: 12, top: 8, textStyle: { fontSize: 15 } };
  // The mark of a run that is not valid is part of the picture, which may be shown without the page.
  if (of.mark) made.graphic = [{ type: "text", right: 20, top: 10, style: { text: of.mark, fill: BAD, font: "700 15px system-ui, sans-serif" } }];
  made.grid.top += 38;
  made.legend.top += 38;
  const drawn = echarts.init(null, null, { renderer: "svg", ssr: true, width, height: Math.max(480, of.height() + more + 60) });
  drawn.setOption(made);
  const href = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(drawn.renderToSVGString());
  drawn.dispose();
  make("a", "", "", { href, download: of.title.toLowerCase().replace(/[^a-z0-9]+/g, "-") + ".svg" }).click();
}
let resized = 0;
const redraw = () => picturesIn(document).filter(of => of.made).forEach(draw);
addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(redraw, 120); });
DARK.addEventListener("change", redraw);
addEventListener("beforeprint", () => picturesIn(document).forEach(draw));
