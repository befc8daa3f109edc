/** Colors of charts, which cannot use style sheets. */
const INKS = {
  light: { paper: "#ffffff", ink: "#1b1f24", soft: "#57606a", line: "#d8dee4", faint: "#eaeef2", bad: "#b3261e",
    lines: ["#0072b2", "#d55e00", "#009e73", "#a6508a", "#b07a00", "#2f9bd6", "#6e4fc9", "#6e7781"],
    stages: STAGES.light,
    hatch: ["#e3e7eb", "#8c959f"] },
  dark: { paper: "#0d1117", ink: "#e6edf3", soft: "#9aa4af", line: "#30363d", faint: "#21262d", bad: "#ff8a80",
    lines: ["#4aa8ff", "#ff8f4a", "#2ec79b", "#e08fc4", "#e0b040", "#8fd0ff", "#b39bff", "#9aa4af"],
    stages: STAGES.dark,
    hatch: ["#3b424b", "#8b949e"] },
};
const SMALL = matchMedia("(max-width: 760px)");
let PICTURES = [];
/** Draws charts when they are scrolled near, so that a page with many opens fast. */
const OBSERVER = new IntersectionObserver(entries => {
  for (const entry of entries) if (entry.isIntersecting) { OBSERVER.unobserve(entry.target); draw(PICTURES.find(of => of.chart === entry.target)); }
}, { rootMargin: "600px" });
const inks = () => DARK.matches ? INKS.dark : INKS.light;

/** The fill of a stage; hatched for several stages that are not known separately. */
function fill(c, name) {
  if (!name.includes("+")) return { color: c.stages[name] ?? c.soft };
  return { color: c.hatch[0], decal: { symbol: "rect", dashArrayX: [1, 0], dashArrayY: [3, 4], rotation: -Math.PI / 4, color: c.hatch[1] } };
}
/** The line style of one of several runs or servers. */
const lineOf = (c, at) => ({ color: c.lines[at % c.lines.length], width: 2, type: ["solid", "dashed", "dotted"][Math.floor(at / c.lines.length) % 3] });

/**
 * The ECharts options of a chart. `x` and `y` are the names of the axes with further options; `tip` makes the tooltip of the points under
 * the pointer; `legend` are the names of the series in the legend, or `true` for all.
 */
function chartOf(c, { x, y, series, legend = true, tip: formatter, grid, tooltip, ...more }) {
  const axis = ([name, special], place) => ({ type: "value", name, min: 0, ...place, axisLabel: { color: c.soft, hideOverlap: true, fontSize: 11 },
    axisLine: { lineStyle: { color: c.line } }, axisTick: { lineStyle: { color: c.line } }, ...special });
  const named = { color: c.soft, fontSize: 12 };
  return {
    animation: false, backgroundColor: "transparent", aria: { enabled: true },
    textStyle: { fontFamily: "system-ui, sans-serif", color: c.ink },
    grid: { left: 12, right: 20, top: legend ? 58 : 30, bottom: 34, ...grid },
    legend: legend ? { type: "scroll", top: 2, left: 0, padding: [5, 5, 5, 0], ...(legend === true ? {} : { data: legend }), textStyle: { color: c.ink, fontSize: 12, lineHeight: 14 },
      pageTextStyle: { color: c.soft }, pageIconColor: c.ink, pageIconInactiveColor: c.line, itemWidth: 18, itemHeight: 10, inactiveColor: c.soft } : { show: false },
    tooltip: { trigger: "axis", confine: true, backgroundColor: c.paper, borderColor: c.line, textStyle: { color: c.ink, fontSize: 12 }, formatter,
      axisPointer: { type: series.some(of => of?.stack) ? "shadow" : "line", lineStyle: { color: c.soft }, crossStyle: { color: c.soft }, label: { show: false } }, ...tooltip },
    xAxis: axis(x, { nameLocation: "middle", nameGap: 24, nameTextStyle: named, splitLine: { show: false } }),
    yAxis: axis(y, { nameLocation: "end", nameTextStyle: { ...named, align: "left", padding: [0, 0, 0, -6] }, splitLine: { lineStyle: { color: c.faint } } }),
    series: series.filter(Boolean), ...more,
  };
}
/** A series of a line; `style` is the index of its color, or a line style. */
function lineSeries(c, name, data, style, more) {
  const lineStyle = typeof style === "number" ? lineOf(c, style) : { width: 2, ...style };
  return { type: "line", name, symbol: "none", lineStyle, itemStyle: { color: lineStyle.color }, data, ...more };
}
/** A series of a stage in stacked bars. */
const barSeries = (c, stage, name, data, more) => ({ type: "bar", stack: "all", name, itemStyle: fill(c, stage), data, ...more });

/** Makes a tooltip: a heading, and rows of a color, a name and a value. */
function tip(head, lines) {
  const rows = lines.map(([color, name, value]) => {
    const dot = make("span", "", "swatch");
    dot.style.cssText = `display:inline-block;margin-right:.35rem;background:${color}`;
    return box("tr", "", box("td", "", dot, name), make("td", value));
  });
  return box("div", "tip", make("b", head), box("table", "", ...rows));
}

/**
 * Makes a figure: a title, a chart that is drawn when it is scrolled near, a caption that says how to read it, and a button that saves it.
 * `option` makes the chart's options for colors and a width; `height` returns pixels.
 */
function picture(of) {
  of.chart = make("div", null, "chart");
  of.height = of.height ?? (() => SMALL.matches ? 260 : 300);
  of.chart.style.height = of.height() + "px";
  const save = make("button", "SVG", "save");
  save.type = "button";
  save.setAttribute("aria-label", `Save the chart “${of.title}” as SVG`);
  save.onclick = () => saveChart(of);
  PICTURES.push(of);
  OBSERVER.observe(of.chart);
  return box("figure", "", box("header", "", make("h3", of.title), markOf(of.mark), save), of.tools ?? null, of.chart, words("figcaption", of.caption));
}
/** A chart's options, and the additional height, pixels, for a legend of several lines. */
function options(of, c, width) {
  const made = of.option(c, width);
  const names = new Set(made.legend.show === false ? [] : made.legend.data ?? made.series.map(one => one.name).filter(known));
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
  if (!of?.chart.isConnected) return;
  const [made, more] = options(of, inks(), of.chart.clientWidth);
  of.chart.style.height = of.height() + more + "px";
  of.made ??= echarts.init(of.chart, null, { renderer: "canvas" });
  of.made.resize();
  of.made.setOption(made, true);
}
/** Saves a chart on white, with its title. */
function saveChart(of) {
  const width = 960, [made, more] = options(of, INKS.light, width);
  made.backgroundColor = "#ffffff";
  made.title = { text: of.title, left: 12, top: 8, textStyle: { fontSize: 15, color: INKS.light.ink } };
  // The mark of a run that is not valid is part of the picture, which may be shown without the page.
  if (of.mark) made.graphic = [{ type: "text", right: 20, top: 10, silent: true, z: 90, style: { text: of.mark, fill: INKS.light[of.mark === "INVALID" ? "bad" : "soft"], font: "700 15px system-ui, sans-serif" } }];
  made.grid.top += 38;
  if (made.legend.show !== false) made.legend.top += 38;
  const drawn = echarts.init(null, null, { renderer: "svg", ssr: true, width, height: Math.max(480, of.height() + more + 60) });
  drawn.setOption(made);
  const link = make("a");
  link.href = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(drawn.renderToSVGString());
  drawn.dispose();
  link.download = of.title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "") + ".svg";
  link.click();
}
/** Removes charts that are no longer on the page. */
function removeDetached() {
  for (const of of PICTURES) if (!of.chart.isConnected) of.made?.dispose();
  PICTURES = PICTURES.filter(of => of.chart.isConnected);
}
let resized = 0;
const redraw = () => { for (const of of PICTURES) if (of.made) draw(of); };
addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(redraw, 120); });
DARK.addEventListener("change", redraw);
addEventListener("beforeprint", () => PICTURES.forEach(draw));
