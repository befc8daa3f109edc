const pairs = (xs, ys, times = 1) => xs.map((x, at) => [known(x) ? x * times : null, ys[at]]);
const maxOf = values => values.reduce((max, value) => Math.max(max, value ?? 0), 0);
/** A period, as a band of a chart over time with a name in the legend. */
const band = (name, color, opacity, from, to) => ({ type: "line", name, symbol: "rect", lineStyle: { opacity: 0 }, itemStyle: { color }, tooltip: { show: false }, data: [],
  markArea: { silent: true, itemStyle: { color, opacity }, data: [[from, to]] } });
/** The bands of injected faults; one that was not removed lasts to the end. */
const bands = (run, c, end) => run.faults.flatMap(episode => episode.faults).map(fault =>
  band(`${fault.server}: ${fault.kind} at ${number(fault.down, 1)} s`, c.bad, .12, { xAxis: fault.down }, { xAxis: fault.over ?? end }));

/** The distribution of a latency, a line for each run. */
const cdfOption = (runs, { name, label }) => c => {
  const unit = unitFor(maxOf(runs.flatMap(run => run.curves[name].values)));
  const line = (run, at) => {
    const { values, shares } = run.curves[name];
    const points = pairs(values, shares.map(share => share * 100), unit.times);
    const few = points.length <= 60;
    // The line begins at 0 %.
    if (points.length && shares[0] > 0 && few) points.unshift([points[0][0], 0]);
    return lineSeries(c, nameOf(run), points, at,
      { step: points.length <= 60 ? "end" : false, symbol: "circle", symbolSize: 6, showSymbol: false, triggerLineEvent: true, emphasis: { disabled: true } });
  };
  return chartOf(c, { legend: runs.length > 1,
    x: [`${label}, ${unit.name}`], y: ["% of requests that took no longer", { max: 100 }],
    tooltip: { trigger: "item" }, tip: at => tip(at.seriesName, [[at.color, `${number(at.value[1])} % took no longer than`, duration(at.value[0] / unit.times)]]),
    series: runs.map(line) });
};

/** The style of a label that is broken to a width and cut at a height. */
const cut = (width, height) => ({ width, height, overflow: "break", lineOverflow: "truncate", ellipsis: "…" });
/** The name of the axis of mean times. */
const eachOf = unit => `${unit.name} a request${isFirst ? ", until its first token" : ""}, on average`;
/** The mean stages of each run as bars. */
const whereOption = runs => (c, width) => {
  const spent = runs.map(spentOf), unit = unitFor(maxOf(spent.map(of => of.mean)));
  const mean = (of, name) => of.stages.find(stage => stage.name === name)?.mean ?? 0;
  const sums = spent.map(of => of.stages.reduce((sum, stage) => sum + stage.mean, 0));
  const stages = inOrder(new Map(spent.flatMap(of => of.stages).map(stage => [stage.name, stage])).values());
  const isVisible = name => spent.some((of, at) => mean(of, name) >= 0.005 * sums[at]);
  const label = { color: c.ink, interval: 0, hideOverlap: false, lineHeight: 14, fontSize: 12, ...cut(Math.min(320, width * 0.4), 28) };
  return chartOf(c, { legend: [...new Set(stages.filter(stage => isVisible(stage.name)).map(stage => stage.label))], grid: { top: 34 }, x: [eachOf(unit)],
    y: ["", { type: "category", min: null, inverse: true, data: runs.map(nameOf), axisLabel: label, axisTick: { show: false }, splitLine: { show: false } }],
    tip: all => tip(all[0].name, all.filter(one => one.value).map(one => [one.color, one.seriesName, duration(mean(spent[one.dataIndex], stages[one.seriesIndex].name))])),
    series: stages.map(({ name, label }) =>
      barSeries(c, name, label, spent.map((of, at) => mean(of, name) / (sums[at] || 1) * of.mean * unit.times), { barMaxWidth: 26 })) });
};

/** The axis of bars for slots of `slot` seconds. */
const slotAxis = (c, name, bars, slot) => [name, { type: "category", min: null, data: bars.map((_, at) => number(at * slot)), axisTick: { show: false },
  axisLabel: { color: c.soft, fontSize: 11, interval: [1, 2, 5, 10, 20, 50].find(step => bars.length / step <= (SMALL.matches ? 5 : 10)) - 1 } }];

/** The stages by the time of arrival. */
const overOption = (run, state) => c => {
  const { over, stages } = spentOf(run);
  const sums = over.requests.map((count, slot) => count ? over.seconds.reduce((sum, of) => sum + (of[slot] ?? 0), 0) : 0);
  const unit = unitFor(maxOf(over.mean));
  const value = (of, slot) => !over.requests[slot] ? null : (of[slot] ?? 0) / (sums[slot] || 1) * (state.share ? 100 : over.mean[slot] * unit.times);
  const isVisible = name => stages.some(stage => stage.name === name && stage.share >= 0.002);
  return chartOf(c, { legend: over.stages.filter(stage => isVisible(stage.name)).map(stage => stage.label),
    x: slotAxis(c, "arrived this many seconds into the run", over.requests, over.slot),
    y: [state.share ? `% of the requests' time${isFirst ? " until the first token" : ""}` : eachOf(unit), state.share ? { max: 100 } : {}],
    tip: all => tip(`${all[0].name} s: ${several(over.requests[all[0].dataIndex], "request")}, ${duration(over.mean[all[0].dataIndex])} on average`,
      all.filter(one => one.value).map(one => [one.color, one.seriesName, state.share ? `${number(one.value)} %` : duration(over.seconds[one.seriesIndex][one.dataIndex])])),
    series: over.stages.map((stage, at) => barSeries(c, stage.name, stage.label, over.requests.map((_, slot) => value(over.seconds[at], slot)), { barCategoryGap: "8%" })) });
};

/** The causes of waiting by the time at which it began. */
const waitingOption = over => c => {
  const slots = over.causes[0].seconds.map((_, at) => over.causes.reduce((sum, of) => sum + of.seconds[at], 0));
  const unit = unitFor(maxOf(slots));
  return chartOf(c, { legend: over.causes.map(of => of.cause),
    x: slotAxis(c, "began to wait this many seconds into the run", slots, over.slot),
    y: [`${unit.name} of waiting, all requests together`],
    tip: all => tip(`${all[0].name} s: ${duration(slots[all[0].dataIndex])}`, all.filter(one => one.value).map(one => [one.color, one.seriesName, duration(one.value / unit.times)])),
    series: over.causes.map(({ cause, seconds }, at) => ({ ...barSeries(c, cause, cause, seconds.map(seconds => seconds * unit.times), { barCategoryGap: "8%" }), itemStyle: { color: c.stages[cause] ?? c.lines[at % c.lines.length] } })) });
};

/** Single requests as bars. */
const waterfallOption = (all, stages, isScheduled) => (c, width) => {
  const requests = all.map(of => isFirst ? { ...of, total: of.until_first_token, parts: of.parts.filter(([at]) => !stages[at].is_after) } : of);
  const unit = unitFor(maxOf(requests.map(of => of.total)));
  const isVisible = at => requests.some(of => of.parts.some(([index, seconds]) => index === at && seconds > 0.01 * of.total));
  const shown = Math.min(requests.length, SMALL.matches ? 18 : 30);
  const slider = { type: "slider", filterMode: "none", showDataShadow: false, borderColor: c.line, backgroundColor: "transparent", textStyle: { color: c.soft, fontSize: 10 }, brushSelect: false };
  const took = (of, at) => Math.max(0, of.parts.filter(([index]) => index === at).reduce((sum, [, seconds]) => sum + seconds, 0));
  return chartOf(c, { legend: stages.filter((_, at) => isVisible(at)).map(stage => stage.label), grid: { right: 34, top: 34, bottom: 74 },
    x: [`${unit.name} since it ${isScheduled ? "was to be sent" : "arrived"}`, { splitLine: { show: true, lineStyle: { color: c.faint } } }],
    y: ["", { type: "category", min: null, inverse: true, data: requests.map(of => "#" + of.id.slice(of.id.lastIndexOf("-") + 1)), splitLine: { show: false }, axisTick: { show: false },
      axisLabel: { color: c.soft, fontSize: 10, width: width < 500 ? 44 : 90, overflow: "truncate" } }],
    dataZoom: [{ ...slider, xAxisIndex: 0, height: 20, bottom: 8, labelFormatter: value => number(value) },
      { ...slider, yAxisIndex: 0, width: 16, right: 6, startValue: 0, endValue: shown - 1, showDetail: false }],
    tip: all => {
      const of = requests[all[0].dataIndex];
      return tip(`${of.id}: ${duration(of.total)}${of.outcome === "ok" ? "" : ", " + of.outcome}`,
        of.parts.map(([at, seconds]) => [fill(c, stages[at].name).color, stages[at].label, duration(seconds)]));
    },
    series: stages.map((stage, at) => barSeries(c, stage.name, stage.label, requests.map(of => took(of, at) * unit.times), { barCategoryGap: "18%" })) });
};

/** Adds a gap to a line where points are missing: more than four times the median distance. */
function withGaps(points) {
  const gaps = points.slice(1).map(([time], at) => time - points[at][0]);
  const median = [...gaps].sort((a, b) => a - b)[Math.floor(gaps.length / 2)];
  return points.flatMap((point, at) => gaps[at] > Math.max(4 * median, 1.5) ? [point, [point[0] + median / 2, null]] : [point]);
}
/** Lines over time, each with a name, times, values, and the index of its style. */
const timesOption = (run, lines, unit, more) => c => chartOf(c, { x: ["seconds into the run", { max: maxOf(lines.flatMap(line => line.times)) || null, axisLabel: { color: c.soft, hideOverlap: true, fontSize: 11, showMaxLabel: false } }], y: [unit, more],
  tip: all => tip(`${number(all[0].value[0])} s`, all.map(one => [one.color, one.seriesName, number(one.value[1])])),
  series: [...lines.map((line, at) => lineSeries(c, line.name, withGaps(pairs(line.times, line.values)),
    { ...lineOf(c, line.color ?? at), ...(line.dashed ? { type: "dashed", width: 1.5 } : {}) }, { connectNulls: false })), ...bands(run, c, maxOf(lines.flatMap(line => line.times)))] });

/** The error bars of a line. */
const errorBars = (c, line, unit) => ({ silent: true, symbol: "rect", symbolSize: [12, 2], label: { show: false }, lineStyle: { type: "solid", color: c.ink, width: 1.5 },
  data: line.figures.flatMap((figure, at) => !known(figure) || !line.off[at] ? [] : [[-1, 1].map(side => ({ coord: [at, Math.max(0, figure * (1 + side * line.off[at])) * unit.times] }))]) });
/** A figure against the values of a setting, a line for each combination of the others. */
const sweepOption = (lines, values, name, times, isCount) => (c, width) => {
  const isNumber = values.every(value => typeof value === "number");
  const unit = isCount ? { name: times, times: 1 } : unitFor(maxOf(lines.flatMap(line => line.figures)));
  const format = value => !known(value) ? "" : isCount ? number(value) : duration(value / unit.times);
  return chartOf(c, { legend: lines.length > 1, y: [unit.name, { boundaryGap: [0, "12%"] }],
    // Long values, as those of tables are, have up to three lines; the tooltip has the whole.
    x: [name, { type: "category", min: null, data: values.map(valueText), axisLabel: { color: c.ink, fontSize: 11, interval: 0, hideOverlap: false, lineHeight: 13, ...cut((width - 60) / values.length - 6, 39),
      formatter: value => value.length > 9 ? value.replace(/([_-])/, "$1\n") : value }, nameGap: 26 + 13 * Math.min(2, Math.floor(maxOf(values.map(value => valueText(value).length - 1)) / 9)) }],
    tip: all => tip(`${name} ${all[0].name}`, all.filter(one => known(one.value)).map(one => [one.color, one.seriesName, format(one.value)])),
    series: lines.map((line, at) => lineSeries(c, line.name, line.figures.map(figure => known(figure) ? figure * unit.times : null), at,
      { type: isNumber ? "line" : "bar", symbol: "emptyCircle", symbolSize: 7, barMaxWidth: 34,
        markLine: isNumber || lines.length === 1 ? errorBars(c, line, unit) : undefined,
        label: { show: lines.length === 1, position: "top", color: c.ink, textBorderColor: c.paper, textBorderWidth: 3, fontSize: 11, formatter: of => format(of.value) } })) });
};
