const pairs = (xs, ys, times = 1) => xs.map((x, at) => [known(x) ? x * times : null, ys[at]]);
const most = values => values.reduce((most, value) => Math.max(most, value ?? 0), 0);
/** Where server faults lie, as bands of a chart over time; one that was not taken away lasts to the end. */
function bands(run, c, end) {
  const spans = run.faults.flatMap(episode => episode.faults).map(fault =>
    [{ name: `${fault.server}: ${fault.kind}`, xAxis: fault.down }, { xAxis: fault.over ?? end }]);
  if (!spans.length) return undefined;
  return { silent: true, itemStyle: { color: c.band }, label: { color: c.soft, fontSize: 11, position: "insideTop" }, data: spans };
}

/** The distribution of a latency, a line a run. */
function cdfOption(runs, metric, state) {
  return c => {
    const unit = unitFor(most(runs.flatMap(run => run.curves[metric].values)));
    return { ...base(c, { legend: runs.length > 1 }),
      xAxis: across(c, unit.name, state.log ? { type: "log", min: null, logBase: 10 } : {}),
      yAxis: up(c, "% of requests that took no longer", { max: 100 }),
      tooltip: { ...base(c, {}).tooltip, trigger: "item", formatter: at =>
        tip(at.seriesName, [[at.color, `${number(at.value[1])} % took no longer than`, duration(at.value[0] / unit.times)]]) },
      series: runs.map((run, at) => {
        const { values, shares } = run.curves[metric];
        // A line begins at the axis, where no request is yet.
        const points = pairs(values, shares.map(share => share * 100), unit.times);
        if (points.length && shares[0] > 0 && points.length <= 60) points.unshift([points[0][0], 0]);
        return { type: "line", name: nameOf(run), step: points.length <= 60 ? "end" : false, symbol: "circle", symbolSize: 6, showSymbol: false, triggerLineEvent: true,
          lineStyle: lineOf(c, at), itemStyle: { color: lineOf(c, at).color }, emphasis: { disabled: true },
          data: state.log ? points.filter(([x]) => x > 0) : points };
      }) };
  };
}

/** Stages of all runs: mean seconds a request, a bar a run. */
function whereOption(runs) {
  return c => {
    const unit = unitFor(most(runs.map(run => run.mean)));
    const sums = runs.map(run => run.stages.reduce((sum, stage) => sum + stage.mean, 0));
    const mean = (run, name) => run.stages.find(stage => stage.name === name)?.mean ?? 0;
    const names = stageNames(runs.map(run => run.stages));
    const made = base(c, { legend: true });
    return { ...made, grid: { ...made.grid, top: 34, left: 12 },
      xAxis: across(c, `${unit.name} a request, on average`),
      yAxis: { ...up(c, ""), type: "category", min: null, inverse: true, data: runs.map(nameOf), axisLabel: { color: c.ink, width: SMALL.matches ? 90 : 220, overflow: "truncate", fontSize: 12 }, splitLine: { show: false } },
      tooltip: { ...made.tooltip, axisPointer: { type: "shadow" }, formatter: all =>
        tip(all[0].name, all.filter(one => one.value).map(one => [one.color, one.seriesName, duration(mean(runs[one.dataIndex], one.seriesName))])) },
      series: names.map(name => ({ type: "bar", stack: "all", name, barMaxWidth: 26, itemStyle: fill(c, name),
        data: runs.map((run, at) => mean(run, name) / (sums[at] || 1) * run.mean * unit.times) })) };
  };
}
/** The names of stages in the order of a request's life. */
function stageNames(lists) {
  const found = new Map();
  for (const stage of lists.flat()) found.set(stage.name, stage.order);
  return [...found].sort((a, b) => a[1] - b[1]).map(([name]) => name);
}

/** Stages by the time of arrival. */
function overOption(run, state) {
  return c => {
    const over = run.over;
    const sums = over.requests.map((count, slot) => count ? over.seconds.reduce((sum, of) => sum + (of[slot] ?? 0), 0) : 0);
    const unit = unitFor(most(over.mean));
    const value = (of, slot) => !over.requests[slot] ? null : (of[slot] ?? 0) / (sums[slot] || 1) * (state.share ? 100 : over.mean[slot] * unit.times);
    const made = base(c, { legend: true, names: over.stages.filter(({ name }) => run.stages.some(stage => stage.name === name && stage.share >= 0.002)).map(stage => stage.label) });
    return { ...made,
      xAxis: across(c, "arrived this many seconds into the run", { type: "category", min: null, data: over.requests.map((_, slot) => number(slot * over.slot)), axisTick: { show: false },
        axisLabel: { color: c.soft, fontSize: 11, interval: [1, 2, 5, 10, 20, 50].find(step => over.requests.length / step <= (SMALL.matches ? 5 : 10)) - 1 } }),
      yAxis: up(c, state.share ? "% of the requests' time" : `${unit.name} a request, on average`, state.share ? { max: 100 } : {}),
      tooltip: { ...made.tooltip, axisPointer: { type: "shadow" }, formatter: all =>
        tip(`${all[0].name} s: ${several(over.requests[all[0].dataIndex], "request")}, ${duration(over.mean[all[0].dataIndex])} on average`,
          all.filter(one => one.value).map(one => [one.color, one.seriesName, state.share ? `${number(one.value)} %` : duration(over.seconds[one.seriesIndex][one.dataIndex])])) },
      series: over.stages.map((stage, at) => ({ type: "bar", stack: "all", name: stage.label, barCategoryGap: "8%", itemStyle: fill(c, stage.name),
        data: over.requests.map((_, slot) => value(over.seconds[at], slot)) })) };
  };
}

/** Single requests, a bar each. */
function waterfallOption(requests, stages, state) {
  return (c, width) => {
    const unit = unitFor(most(requests.map(of => state.own ? of.total : of.start + of.total)));
    const isSeen = at => requests.some(of => of.parts.some(([index, seconds]) => index === at && seconds > 0.01 * of.total));
    const made = base(c, { legend: true, names: stages.filter((_, at) => isSeen(at)).map(stage => stage.label) });
    const shown = Math.min(requests.length, SMALL.matches ? 18 : 30);
    const slider = { borderColor: c.line, fillerColor: c.band.replace(/[\d.]+\)$/, ".10)"), backgroundColor: "transparent", handleStyle: { color: c.soft, borderColor: c.soft }, textStyle: { color: c.soft, fontSize: 10 },
      dataBackground: { lineStyle: { opacity: 0 }, areaStyle: { opacity: 0 } }, selectedDataBackground: { lineStyle: { opacity: 0 }, areaStyle: { opacity: 0 } }, moveHandleStyle: { color: c.line }, brushSelect: false };
    return { ...made, grid: { left: 12, right: 34, top: 34, bottom: 74 },
      xAxis: across(c, state.own ? `${unit.name} since it ${state.is_scheduled ? "was to be sent" : "arrived"}` : `${unit.name} into the run`, { splitLine: { show: true, lineStyle: { color: c.faint } } }),
      yAxis: { ...up(c, ""), type: "category", min: null, inverse: true, data: requests.map(of => "#" + of.id.slice(of.id.lastIndexOf("-") + 1)), splitLine: { show: false }, axisTick: { show: false },
        axisLabel: { color: c.soft, fontSize: 10, width: width < 500 ? 44 : 90, overflow: "truncate" } },
      dataZoom: [
        { type: "slider", xAxisIndex: 0, height: 20, bottom: 8, filterMode: "none", labelFormatter: value => number(value), ...slider },
        { type: "slider", yAxisIndex: 0, width: 16, right: 6, filterMode: "none", startValue: state.first, endValue: state.first + shown - 1, showDetail: false, ...slider } ],
      tooltip: { ...made.tooltip, axisPointer: { type: "shadow" }, formatter: all => {
        const of = requests[all[0].dataIndex];
        return tip(`${of.id}: ${duration(of.total)}${of.outcome === "ok" ? "" : ", " + of.outcome}`,
          of.parts.map(([at, seconds]) => [fill(c, stages[at].name).color, stages[at].label, duration(seconds)]));
      } },
      series: [
        { type: "bar", stack: "all", silent: true, itemStyle: { color: "transparent" }, tooltip: { show: false }, data: requests.map(of => state.own ? 0 : of.start * unit.times) },
        ...stages.map((stage, at) => ({ type: "bar", stack: "all", name: stage.label, barCategoryGap: "18%", cursor: "pointer", itemStyle: fill(c, stage.name),
          data: requests.map(of => Math.max(0, of.parts.filter(([index]) => index === at).reduce((sum, [, seconds]) => sum + seconds, 0)) * unit.times) })),
      ] };
  };
}

/** Arrivals counted over time, against what a Poisson process of the asked rate would do. */
function countsOption(run) {
  return c => {
    const { slot, counts } = run.arrivals;
    const made = base(c, { legend: true });
    const x = at => (at + 0.5) * slot;
    const rate = run.poisson;
    const expected = known(rate) ? rate * slot : null;
    const spread = known(expected) ? 2 * Math.sqrt(expected) : 0;
    const edges = [0, counts.sent.length * slot];
    return { ...made,
      xAxis: across(c, "seconds into the run"), yAxis: up(c, `requests in ${duration(slot)}`, { minInterval: 1 }),
      series: [
        known(expected) ? { type: "line", name: "Poisson: 19 of 20 counts lie here", symbol: "rect", lineStyle: { opacity: 0 }, itemStyle: { color: c.soft }, tooltip: { show: false }, data: [],
          markArea: { silent: true, itemStyle: { color: c.soft, opacity: 0.15 }, data: [[{ xAxis: edges[0], yAxis: Math.max(0, expected - spread) }, { xAxis: edges[1], yAxis: expected + spread }]] } } : null,
        counts.asked ? { type: "line", name: "asked by the schedule", step: "middle", symbol: "none", lineStyle: { color: c.lines[1], width: 5, opacity: 0.4 }, itemStyle: { color: c.lines[1], opacity: 0.5 }, data: counts.asked.map((n, at) => [x(at), n]) } : null,
        { type: "line", name: counts.asked ? "sent" : "arrived", step: "middle", symbol: "none", lineStyle: lineOf(c, 0), itemStyle: { color: c.lines[0] }, data: counts.sent.map((n, at) => [x(at), n]) },
      ].filter(Boolean) };
  };
}
/** Whether the run's gaps were to be those of a Poisson process; if so, of this rate. */
const isPoisson = run => known(run.poisson);

/** The gaps between arrivals as distributions. */
function gapsOption(run) {
  return c => {
    const { sent, asked } = run.arrivals;
    const unit = unitFor(most(sent.values));
    const made = base(c, { legend: true });
    const end = most(sent.values);
    const mean = isPoisson(run) ? 1 / run.poisson : sent.mean;
    const theory = Array.from({ length: 121 }, (_, at) => end * at / 120);
    const line = (name, of, style) => ({ type: "line", name, symbol: "none", lineStyle: style, itemStyle: { color: style.color }, data: pairs(of.values, of.shares.map(share => share * 100), unit.times) });
    return { ...made,
      xAxis: across(c, `${unit.name} between two requests`), yAxis: up(c, "% of gaps that are no longer", { max: 100 }),
      tooltip: { show: false },
      series: [
        line(isPoisson(run) ? "Poisson at the asked rate" : "Poisson of the same mean, to compare", { values: theory, shares: theory.map(gap => 1 - Math.exp(-gap / mean)) }, { color: c.soft, width: 2, type: "dashed" }),
        asked ? line("asked by the schedule", asked, { color: c.lines[1], width: 5, opacity: 0.4 }) : null,
        line(asked ? "sent" : "arrived", sent, { color: c.lines[0], width: 2 }),
      ].filter(Boolean) };
  };
}

/** Points with a hole where nobody answered for a while: longer than four times what is usual between two. */
function broken(points) {
  const gaps = points.slice(1).map(([time], at) => time - points[at][0]);
  const usual = [...gaps].sort((a, b) => a - b)[Math.floor(gaps.length / 2)];
  return points.flatMap((point, at) => gaps[at] > Math.max(4 * usual, 1.5) ? [point, [point[0] + usual / 2, null]] : [point]);
}
/** Something over time: `lines` of a name, times, values, and a style's place. */
function timesOption(run, lines, unit, more) {
  return c => {
    const end = most(lines.flatMap(line => line.times));
    const made = base(c, { legend: true });
    return { ...made,
      xAxis: across(c, "seconds into the run"), yAxis: up(c, unit, more),
      tooltip: { ...made.tooltip, formatter: all => tip(`${number(all[0].value[0])} s`, all.map(one => [one.color, one.seriesName, number(one.value[1])])) },
      series: lines.map((line, at) => {
        const style = { ...lineOf(c, line.colour ?? at), ...(line.dashed ? { type: "dashed", width: 1.5 } : {}) };
        return { type: "line", name: line.name, symbol: "none", connectNulls: false, lineStyle: style, itemStyle: { color: style.color }, data: broken(pairs(line.times, line.values)), markArea: at ? undefined : bands(run, c, end) };
      }) };
  };
}

/** A figure against the values of a setting: a line a combination of the others. */
function sweepOption(lines, values, name, times, isCount) {
  return c => {
    const made = base(c, { legend: lines.length > 1 });
    const figures = lines.flatMap(line => line.figures).filter(known);
    const isNumber = values.every(value => typeof value === "number");
    const unit = isCount ? { name: times, times: 1 } : unitFor(most(figures));
    return { ...made,
      xAxis: across(c, name, { type: "category", min: null, data: values.map(written), axisLabel: { color: c.ink, fontSize: 11, interval: 0, hideOverlap: false, lineHeight: 13, formatter: value => value.length > 9 ? value.replace(/([_-])/, "$1\n") : value }, nameGap: values.some(value => written(value).length > 9) ? 38 : 26 }),
      yAxis: up(c, unit.name, { boundaryGap: [0, "12%"] }),
      tooltip: { ...made.tooltip, formatter: all => tip(`${name} ${all[0].name}`, all.filter(one => known(one.value)).map(one => [one.color, one.seriesName, isCount ? number(one.value) : duration(one.value / unit.times)])) },
      series: lines.map((line, at) => ({ type: isNumber ? "line" : "bar", name: line.name, symbolSize: 7, barMaxWidth: 34, lineStyle: lineOf(c, at), itemStyle: { color: lineOf(c, at).color },
        label: { show: lines.length === 1, position: "top", color: c.ink, fontSize: 11, formatter: of => known(of.value) ? isCount ? number(of.value) : duration(of.value / unit.times) : "" },
        data: line.figures.map(figure => known(figure) ? figure * unit.times : null) })) };
  };
}
