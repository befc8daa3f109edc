const maxOf = values => values.reduce((max, value) => Math.max(max, value ?? 0), 0);
const sumOf = values => values.reduce((sum, value) => sum + (value ?? 0), 0);
/** An axis of seconds. */
const SECONDS = { axisLabel: { formatter: s => s >= 1 ? number(s) + " s" : s >= 1e-3 ? number(s * 1e3) + " ms" : s > 0 ? number(s * 1e6) + " µs" : "0" } };
/** The bands of injected faults, with names in the legend; one that was not removed lasts to the end. */
const bands = (run, end) => run.faults.flatMap(episode => episode.faults).map(({ server, kind, down, over }) => ({
  type: "line", name: `${server}: ${kind} at ${number(down, 1)} s`, symbol: "rect", lineStyle: { opacity: 0 }, itemStyle: { color: BAD }, data: [],
  markArea: { silent: true, itemStyle: { color: BAD, opacity: .12 }, data: [[{ xAxis: down }, { xAxis: over ?? end }]] } }));

/** The distribution of a latency, a line for each run. */
const cdfOption = (runs, { name, label }) => () => {
  const line = (run, at) => {
    const points = run.curves[name];
    // The line begins at 0 %.
    return lineSeries(nameOf(run), [[points[0][0], 0], ...points], lineOf(at), { step: "end" });
  };
  return chartOf({ legend: runs.length > 1, x: [label, SECONDS], y: ["% of requests that took no longer", { max: 100 }],
    tip: all => tip("took no longer", all.map(one => [one.color, `${one.seriesName}: ${number(one.value[1])} %`, duration(one.value[0])])),
    series: runs.map(line) });
};

/** The style of a label that is broken to a width and cut at a height. */
const cut = (width, height) => ({ width, height, overflow: "break", lineOverflow: "truncate", ellipsis: "…" });
/** An axis of names. */
const category = (data, more) => ({ type: "category", min: null, data, axisTick: { show: false }, splitLine: { show: false }, ...more });
/** The mean stages of each run as bars. */
const whereOption = runs => width => {
  const spent = runs.map(spentOf);
  const mean = (of, name) => of.stages.find(stage => stage.name === name)?.mean ?? 0;
  const sums = spent.map(of => sumOf(of.stages.map(stage => stage.mean)));
  const stages = inOrder(new Map(spent.flatMap(of => of.stages).map(stage => [stage.name, stage])).values());
  const isVisible = name => spent.some((of, at) => mean(of, name) >= 0.005 * sums[at]);
  const label = { interval: 0, hideOverlap: false, lineHeight: 14, fontSize: 12, ...cut(Math.min(320, width * 0.4), 28) };
  return chartOf({ legend: [...new Set(stages.filter(stage => isVisible(stage.name)).map(stage => stage.label))], grid: { top: 34 }, x: [`a request${isFirst ? ", until its first token" : ""}, on average`, SECONDS],
    y: ["", category(runs.map(nameOf), { inverse: true, axisLabel: label })],
    tip: all => tip(all[0].name, all.filter(one => one.value).map(one => [one.color, one.seriesName, duration(mean(spent[one.dataIndex], stages[one.seriesIndex].name))])),
    series: stages.map(({ name, label }) =>
      barSeries(name, label, spent.map((of, at) => mean(of, name) / (sums[at] || 1) * of.mean), { barMaxWidth: 26 })) });
};

/** Stacked bars by slots of time, each with the heading of its tooltip. `said` is the text of a bar there. */
const slotBars = (slot, heads, { when, said, series, ...more }) => chartOf({ ...more, x: [when, category(heads.map((_, at) => number(at * slot)))],
  tip: all => tip(`${all[0].name} s: ${heads[all[0].dataIndex]}`, all.filter(one => one.value).map(one => [one.color, one.seriesName, said(one)])),
  series: series.map(one => ({ ...one, barCategoryGap: "8%" })) });

/** The stages by the time of arrival. */
const overOption = run => () => {
  const { over: { slot, slots, stages }, stages: means } = spentOf(run);
  const shown = ({ seconds }, name) => (seconds[name] ?? 0) / (sumOf(Object.values(seconds)) || 1) * 100;
  const isVisible = name => means.some(stage => stage.name === name && stage.share >= 0.002);
  return slotBars(slot, slots.map(of => `${several(of.requests, "request")}, ${duration(of.mean)} on average`), {
    legend: stages.filter(stage => isVisible(stage.name)).map(stage => stage.label), when: "arrived this many seconds into the run",
    y: [`% of the requests' time${isFirst ? " until the first token" : ""}`, { max: 100 }],
    said: one => `${number(one.value)} %, ${duration(slots[one.dataIndex].seconds[stages[one.seriesIndex].name])}`,
    series: stages.map(({ name, label }) => barSeries(name, label, slots.map(of => shown(of, name)))) });
};

/** The causes of waiting by the time at which it began. */
const waitingOption = ({ causes, slot }) => () => {
  const sums = causes[0].seconds.map((_, at) => sumOf(causes.map(of => of.seconds[at])));
  return slotBars(slot, sums.map(duration), { y: ["waiting, all requests together", SECONDS], when: "began to wait this many seconds into the run", said: one => duration(one.value),
    series: causes.map(({ cause, seconds }, at) => barSeries(cause, cause, seconds, { itemStyle: { color: STAGES[cause] ?? lineOf(at).color } })) });
};

/** Single requests as bars. */
const waterfallOption = (requests, all, isScheduled) => width => {
  const stages = all.filter(stage => !isFirst || !stage.is_after), length = of => isFirst ? of.until_first_token : of.total;
  const isVisible = ({ name }) => requests.some(of => of.seconds[name] > 0.01 * length(of));
  const slider = { type: "slider", filterMode: "none", showDataShadow: false, brushSelect: false };
  return chartOf({ legend: stages.filter(isVisible).map(stage => stage.label), grid: { right: 34, top: 34, bottom: 74 },
    x: [`since it ${isScheduled ? "was to be sent" : "arrived"}`, { ...SECONDS, splitLine: { show: true } }],
    y: ["", category(requests.map(of => "#" + of.id.slice(of.id.lastIndexOf("-") + 1)), { inverse: true, axisLabel: { fontSize: 10, width: width < 500 ? 44 : 90, overflow: "truncate" } })],
    dataZoom: [{ ...slider, xAxisIndex: 0, height: 20, bottom: 8, labelFormatter: duration },
      { ...slider, yAxisIndex: 0, width: 16, right: 6, startValue: 0, endValue: (SMALL.matches ? 18 : 30) - 1, showDetail: false }],
    tip: all => {
      const of = requests[all[0].dataIndex];
      return tip(`${of.id}: ${duration(length(of))}${of.outcome === "ok" ? "" : ", " + of.outcome}`,
        stages.filter(({ name }) => known(of.seconds[name])).map(({ name, label }) => [fill(name).color, label, duration(of.seconds[name])]));
    },
    series: stages.map(({ name, label }) => barSeries(name, label, requests.map(of => Math.max(0, of.seconds[name] ?? 0)), { barCategoryGap: "18%" })) });
};

/** Adds a gap to a line where points are missing: more than four times the median distance. */
function withGaps(points) {
  const gaps = points.slice(1).map(([time], at) => time - points[at][0]);
  const median = [...gaps].sort((a, b) => a - b)[Math.floor(gaps.length / 2)];
  return points.flatMap((point, at) => gaps[at] > Math.max(4 * median, 1.5) ? [point, [point[0] + median / 2, null]] : [point]);
}
/** Lines over time, each with a name, points, and the index of its style. */
const timesOption = (run, lines, unit, more) => () => {
  const end = maxOf(lines.flatMap(line => line.points.map(([time]) => time)));
  return chartOf({ x: ["seconds into the run", { max: end || null, axisLabel: { showMaxLabel: false } }], y: [unit, more],
    tip: all => tip(`${number(all[0].value[0])} s`, all.map(one => [one.color, one.seriesName, number(one.value[1])])),
    series: [...lines.map((line, at) => lineSeries(line.name, withGaps(line.points),
      { ...lineOf(line.color ?? at), ...(line.dashed ? { type: "dashed", width: 1.5 } : {}) })), ...bands(run, end)] });
};

/** The error bars of a line. */
const errorBars = line => ({ silent: true, symbol: "rect", symbolSize: [12, 2], label: { show: false }, lineStyle: { type: "solid", color: "#7d8590", width: 1.5 },
  data: line.figures.flatMap((figure, at) => !known(figure) || !line.off[at] ? [] : [[-1, 1].map(side => ({ coord: [at, Math.max(0, figure * (1 + side * line.off[at]))] }))]) });
/** A figure against the values of a setting, a line for each combination of the others. */
const sweepOption = (lines, values, name, rate) => width => {
  const isNumber = values.every(value => typeof value === "number");
  const format = value => !known(value) ? "" : rate ? number(value) : duration(value);
  // Long values, as those of tables are, have up to three lines; the tooltip has the whole.
  const label = { interval: 0, hideOverlap: false, lineHeight: 13, ...cut((width - 60) / values.length - 6, 39), formatter: value => value.length > 9 ? value.replace(/([_-])/, "$1\n") : value };
  return chartOf({ legend: lines.length > 1, y: [rate ?? "", { ...(rate ? {} : SECONDS), boundaryGap: [0, "12%"] }],
    x: [name, category(values.map(valueText), { axisLabel: label, nameGap: 26 + 13 * Math.min(2, Math.floor(maxOf(values.map(value => valueText(value).length - 1)) / 9)) })],
    tip: all => tip(`${name} ${all[0].name}`, all.filter(one => known(one.value[1])).map(one => [one.color, one.seriesName, format(one.value[1])])),
    // The axis reaches over the ends of the bars: one with an end beyond it is not drawn.
    series: lines.map((line, at) => lineSeries(line.name, line.figures.map((figure, at) => [at, figure, known(figure) ? figure * (1 + (line.off[at] ?? 0)) : null]), lineOf(at),
      { encode: { x: 0, y: [1, 2] }, type: isNumber ? "line" : "bar", symbol: "emptyCircle", symbolSize: 7, barMaxWidth: 34,
        markLine: isNumber || lines.length === 1 ? errorBars(line) : undefined,
        label: { show: lines.length === 1, position: "top", fontSize: 11, formatter: of => format(of.value[1]) } })) });
};
