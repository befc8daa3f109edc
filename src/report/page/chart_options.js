const pairs = (xs, ys, times = 1) => xs.map((x, at) => [known(x) ? x * times : null, ys[at]]);
const most = values => values.reduce((most, value) => Math.max(most, value ?? 0), 0);
/** Something that lasts, as a band of a chart over time which the legend names. */
const band = (name, color, opacity, from, to) => ({ type: "line", name, symbol: "rect", lineStyle: { opacity: 0 }, itemStyle: { color }, tooltip: { show: false }, data: [],
  markArea: { silent: true, itemStyle: { color, opacity }, data: [[from, to]] } });
/** Where server faults lie; one that was not taken away lasts to the end. */
const bands = (run, c, end) => run.faults.flatMap(episode => episode.faults).map(fault =>
  band(`${fault.server}: ${fault.kind} at ${number(fault.down, 1)} s`, c.bad, .12, { xAxis: fault.down }, { xAxis: fault.over ?? end }));

/** The distribution of a latency, a line a run. */
const cdfOption = (runs, metric, state) => c => {
  const unit = unitFor(most(runs.flatMap(run => run.curves[metric].values)));
  const line = (run, at) => {
    const { values, shares } = run.curves[metric];
    const points = pairs(values, shares.map(share => share * 100), unit.times);
    const few = points.length <= 60;
    // A line begins at the axis, where no request is yet.
    if (points.length && shares[0] > 0 && few) points.unshift([points[0][0], 0]);
    return lineSeries(c, nameOf(run), state.log ? points.filter(([x]) => x > 0) : points, at,
      { step: points.length <= 60 ? "end" : false, symbol: "circle", symbolSize: 6, showSymbol: false, triggerLineEvent: true, emphasis: { disabled: true } });
  };
  return chartOf(c, { legend: runs.length > 1,
    x: [unit.name, state.log ? { type: "log", min: null, logBase: 10 } : {}], y: ["% of requests that took no longer", { max: 100 }],
    tooltip: { trigger: "item" }, tip: at => tip(at.seriesName, [[at.color, `${number(at.value[1])} % took no longer than`, duration(at.value[0] / unit.times)]]),
    series: runs.map(line) });
};

/** Of what the bars are, on an axis. */
const eachOf = unit => `${unit.name} a request${isFirst ? ", until its first token" : ""}, on average`;
/** Stages of all runs: mean seconds a request, a bar a run. On a phone its name stands above it. */
const whereOption = runs => (c, width) => {
  const spent = runs.map(spentOf), unit = unitFor(most(spent.map(of => of.mean)));
  const mean = (of, name) => of.stages.find(stage => stage.name === name)?.mean ?? 0;
  const sums = spent.map(of => of.stages.reduce((sum, stage) => sum + stage.mean, 0));
  const stages = inOrder(new Map(spent.flatMap(of => of.stages).map(stage => [stage.name, stage])).values());
  const isSeen = name => spent.some((of, at) => mean(of, name) >= 0.005 * sums[at]);
  const label = { color: c.ink, interval: 0, hideOverlap: false, lineHeight: 14, fontSize: 12, width: 320, overflow: "break" };
  const above = { inside: true, margin: 0, align: "left", verticalAlign: "bottom", padding: [0, 0, 10, 0], fontSize: 11, width: width - 40, overflow: "truncate" };
  return chartOf(c, { legend: [...new Set(stages.filter(stage => isSeen(stage.name)).map(stage => stage.label))], grid: { top: 34 }, x: [eachOf(unit)],
    y: ["", { type: "category", min: null, inverse: true, data: runs.map(nameOf), axisLabel: width < 600 ? { ...label, ...above } : label, axisTick: { show: false }, splitLine: { show: false } }],
    tip: all => tip(all[0].name, all.filter(one => one.value).map(one => [one.color, one.seriesName, duration(mean(spent[one.dataIndex], stages[one.seriesIndex].name))])),
    series: stages.map(({ name, label }) =>
      barSeries(c, name, label, spent.map((of, at) => mean(of, name) / (sums[at] || 1) * of.mean * unit.times), { barMaxWidth: width < 600 ? 16 : 26, ...(width < 600 ? { barCategoryGap: "66%" } : {}) })) });
};

/** The axis of bars for stretches of a run, `slot` seconds each. */
const slotAxis = (c, name, bars, slot) => [name, { type: "category", min: null, data: bars.map((_, at) => number(at * slot)), axisTick: { show: false },
  axisLabel: { color: c.soft, fontSize: 11, interval: [1, 2, 5, 10, 20, 50].find(step => bars.length / step <= (SMALL.matches ? 5 : 10)) - 1 } }];

/** Stages by the time of arrival. */
const overOption = (run, state) => c => {
  const { over, stages } = spentOf(run);
  const sums = over.requests.map((count, slot) => count ? over.seconds.reduce((sum, of) => sum + (of[slot] ?? 0), 0) : 0);
  const unit = unitFor(most(over.mean));
  const value = (of, slot) => !over.requests[slot] ? null : (of[slot] ?? 0) / (sums[slot] || 1) * (state.share ? 100 : over.mean[slot] * unit.times);
  const isSeen = name => stages.some(stage => stage.name === name && stage.share >= 0.002);
  return chartOf(c, { legend: over.stages.filter(stage => isSeen(stage.name)).map(stage => stage.label),
    x: slotAxis(c, "arrived this many seconds into the run", over.requests, over.slot),
    y: [state.share ? `% of the requests' time${isFirst ? " until the first token" : ""}` : eachOf(unit), state.share ? { max: 100 } : {}],
    tip: all => tip(`${all[0].name} s: ${several(over.requests[all[0].dataIndex], "request")}, ${duration(over.mean[all[0].dataIndex])} on average`,
      all.filter(one => one.value).map(one => [one.color, one.seriesName, state.share ? `${number(one.value)} %` : duration(over.seconds[one.seriesIndex][one.dataIndex])])),
    series: over.stages.map((stage, at) => barSeries(c, stage.name, stage.label, over.requests.map((_, slot) => value(over.seconds[at], slot)), { barCategoryGap: "8%" })) });
};

/** What requests waited for, by when that began. */
const waitingOption = over => c => {
  const slots = over.causes[0].seconds.map((_, at) => over.causes.reduce((sum, of) => sum + of.seconds[at], 0));
  const unit = unitFor(most(slots));
  return chartOf(c, { legend: over.causes.map(of => of.cause),
    x: slotAxis(c, "began to wait this many seconds into the run", slots, over.slot),
    y: [`${unit.name} of waiting, all requests together`],
    tip: all => tip(`${all[0].name} s: ${duration(slots[all[0].dataIndex])}`, all.filter(one => one.value).map(one => [one.color, one.seriesName, duration(one.value / unit.times)])),
    series: over.causes.map(({ cause, seconds }, at) => ({ ...barSeries(c, cause, cause, seconds.map(seconds => seconds * unit.times), { barCategoryGap: "8%" }), itemStyle: { color: c.stages[cause] ?? c.lines[at % c.lines.length] } })) });
};

/** Single requests, a bar each. */
const waterfallOption = (all, stages, state) => (c, width) => {
  const requests = all.map(of => isFirst ? { ...of, total: of.until_first_token, parts: of.parts.filter(([at]) => !stages[at].is_after) } : of);
  const unit = unitFor(most(requests.map(of => state.own ? of.total : of.start + of.total)));
  const isSeen = at => requests.some(of => of.parts.some(([index, seconds]) => index === at && seconds > 0.01 * of.total));
  const shown = Math.min(requests.length, SMALL.matches ? 18 : 30);
  const none = { lineStyle: { opacity: 0 }, areaStyle: { opacity: 0 } };
  const slider = { type: "slider", filterMode: "none", borderColor: c.line, fillerColor: c.band.replace(/[\d.]+\)$/, ".10)"), backgroundColor: "transparent", handleStyle: { color: c.soft, borderColor: c.soft },
    textStyle: { color: c.soft, fontSize: 10 }, dataBackground: none, selectedDataBackground: none, moveHandleStyle: { color: c.line }, brushSelect: false };
  const took = (of, at) => Math.max(0, of.parts.filter(([index]) => index === at).reduce((sum, [, seconds]) => sum + seconds, 0));
  return chartOf(c, { legend: stages.filter((_, at) => isSeen(at)).map(stage => stage.label), grid: { right: 34, top: 34, bottom: 74 },
    x: [state.own ? `${unit.name} since it ${state.is_scheduled ? "was to be sent" : "arrived"}` : `${unit.name} into the run`, { splitLine: { show: true, lineStyle: { color: c.faint } } }],
    y: ["", { type: "category", min: null, inverse: true, data: requests.map(of => "#" + of.id.slice(of.id.lastIndexOf("-") + 1)), splitLine: { show: false }, axisTick: { show: false },
      axisLabel: { color: c.soft, fontSize: 10, width: width < 500 ? 44 : 90, overflow: "truncate" } }],
    dataZoom: [{ ...slider, xAxisIndex: 0, height: 20, bottom: 8, labelFormatter: value => number(value) },
      { ...slider, yAxisIndex: 0, width: 16, right: 6, startValue: state.first, endValue: state.first + shown - 1, showDetail: false }],
    tip: all => {
      const of = requests[all[0].dataIndex];
      return tip(`${of.id}: ${duration(of.total)}${of.outcome === "ok" ? "" : ", " + of.outcome}`,
        of.parts.map(([at, seconds]) => [fill(c, stages[at].name).color, stages[at].label, duration(seconds)]));
    },
    series: [{ type: "bar", stack: "all", silent: true, itemStyle: { color: "transparent" }, tooltip: { show: false }, data: requests.map(of => state.own ? 0 : of.start * unit.times) },
      ...stages.map((stage, at) => barSeries(c, stage.name, stage.label, requests.map(of => took(of, at) * unit.times), { barCategoryGap: "18%", cursor: "pointer" }))] });
};

/** Points with a hole where nobody answered for a while: longer than four times what is usual between two. */
function broken(points) {
  const gaps = points.slice(1).map(([time], at) => time - points[at][0]);
  const usual = [...gaps].sort((a, b) => a - b)[Math.floor(gaps.length / 2)];
  return points.flatMap((point, at) => gaps[at] > Math.max(4 * usual, 1.5) ? [point, [point[0] + usual / 2, null]] : [point]);
}
/** Something over time: `lines` of a name, times, values, and a style's place. */
const timesOption = (run, lines, unit, more) => c => chartOf(c, { x: ["seconds into the run", { max: most(lines.flatMap(line => line.times)) || null, axisLabel: { color: c.soft, hideOverlap: true, fontSize: 11, showMaxLabel: false } }], y: [unit, more],
  tip: all => tip(`${number(all[0].value[0])} s`, all.map(one => [one.color, one.seriesName, number(one.value[1])])),
  series: [...lines.map((line, at) => lineSeries(c, line.name, broken(pairs(line.times, line.values)),
    { ...lineOf(c, line.colour ?? at), ...(line.dashed ? { type: "dashed", width: 1.5 } : {}) }, { connectNulls: false })), ...bands(run, c, most(lines.flatMap(line => line.times)))] });

/** By how much the figures of a line may be off: a bar each. */
const errorBars = (c, line, unit) => ({ silent: true, symbol: "rect", symbolSize: [12, 2], label: { show: false }, lineStyle: { type: "solid", color: c.ink, width: 1.5 },
  data: line.figures.flatMap((figure, at) => !known(figure) || !line.off[at] ? [] : [[-1, 1].map(side => ({ coord: [at, Math.max(0, figure * (1 + side * line.off[at])) * unit.times] }))]) });
/** A figure against the values of a setting: a line a combination of the others. */
const sweepOption = (lines, values, name, times, isCount) => c => {
  const isNumber = values.every(value => typeof value === "number");
  const unit = isCount ? { name: times, times: 1 } : unitFor(most(lines.flatMap(line => line.figures)));
  const said = value => !known(value) ? "" : isCount ? number(value) : duration(value / unit.times);
  return chartOf(c, { legend: lines.length > 1, y: [unit.name, { boundaryGap: [0, "12%"] }],
    x: [name, { type: "category", min: null, data: values.map(written), axisLabel: { color: c.ink, fontSize: 11, interval: 0, hideOverlap: false, lineHeight: 13, formatter: value => value.length > 9 ? value.replace(/([_-])/, "$1\n") : value },
      nameGap: values.some(value => written(value).length > 9) ? 38 : 26 }],
    tip: all => tip(`${name} ${all[0].name}`, all.filter(one => known(one.value)).map(one => [one.color, one.seriesName, said(one.value)])),
    series: lines.map((line, at) => lineSeries(c, line.name, line.figures.map(figure => known(figure) ? figure * unit.times : null), at,
      { type: isNumber ? "line" : "bar", symbol: "emptyCircle", symbolSize: 7, barMaxWidth: 34,
        markLine: isNumber || lines.length === 1 ? errorBars(c, line, unit) : undefined,
        label: { show: lines.length === 1, position: "top", color: c.ink, textBorderColor: c.paper, textBorderWidth: 3, fontSize: 11, formatter: of => said(of.value) } })) });
};
