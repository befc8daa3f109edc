// See report-shots.sh.
"use strict";
const fs = require("fs");
const { lookAt, watched } = require("./browser.js");

const SIGHTS = [["wide", 1300, "light"], ["wide-dark", 1300, "dark"], ["phone", 360, "light"], ["phone-dark", 360, "dark"]];

async function shoot(browser, file, folder, [name, width, colorScheme]) {
  const wrong = [];
  const isOwn = asked => /^(file|data|blob):/.test(asked);
  const page = await watched(browser, { viewport: { width, height: 900 }, colorScheme }, wrong, isOwn);
  await page.goto("file://" + file);
  // A script that does not run leaves nothing to look at.
  if (wrong.length) return wrong;
  // Charts are drawn when they come into sight.
  await page.evaluate(() => picturesIn(document).forEach(draw));
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  if (wide > 0) wrong.push(`is ${wide} pixels too wide`);
  const empty = await page.evaluate(() => picturesIn(document).filter(of => !of.chart.querySelector("canvas")).map(of => of.title));
  if (empty.length) wrong.push(`draws nothing: ${empty.join(", ")}`);
  // A bar of which an end is beyond the axis is not drawn.
  const beyond = await page.evaluate(() => picturesIn(document).filter(({ made }) => made.getOption().series.some((series, seriesIndex) =>
    (series.markLine?.data ?? []).flat().some(({ coord }) => !made.containPixel({ gridIndex: 0 }, made.convertToPixel({ seriesIndex }, coord))))).map(of => of.title));
  if (beyond.length) wrong.push(`lacks error bars: ${beyond.join(", ")}`);
  const lost = await page.evaluate(() => [...document.querySelectorAll("a[href^='#']")].filter(of => !$(of.hash.slice(1))?.getClientRects().length).map(of => of.textContent));
  if (lost.length) wrong.push(`has links to what is not shown: ${lost.join(", ")}`);
  const made = await page.evaluate(() => document.querySelectorAll("main img, main script, main iframe, main [onerror]").length);
  if (made) wrong.push(`has ${made} elements that text of rows has made`);
  const json = file.replace(/\.html$/, ".json");
  if (fs.existsSync(json)) wrong.push(...await page.evaluate(apart, JSON.parse(fs.readFileSync(json)).runs));
  await page.evaluate(() => { if (RUNS.length) choose(RUNS[0]); picturesIn(document).forEach(draw); });
  // Its row has a bar of 3 pixels on the left.
  const bare = await page.evaluate(() => [...document.querySelectorAll("tr.chosen th")].some(of => parseFloat(getComputedStyle(of).paddingLeft) < 4));
  if (bare) wrong.push("draws the bar of the chosen run over its name");
  if (name === "wide") wrong.push(...await use(page));
  if (fs.existsSync(json)) wrong.push(...await first(page, JSON.parse(fs.readFileSync(json)).runs[0]));
  await page.evaluate(() => scrollTo(0, 0));
  await page.screenshot({ path: `${folder}/${name}.png`, fullPage: true });
  const isDrawn = await page.evaluate(() => {
    const [of] = picturesIn(document), made = of?.made;
    of?.chart.remove();
    if (of) draw(of);
    return of?.made !== made;
  });
  if (isDrawn) wrong.push("draws a chart that was removed");
  await page.close();
  return wrong;
}

/** In the page: where a run's table of latencies, its notes and warnings do not say what the report's JSON does. */
function apart(runs) {
  if (runs.length !== RUNS.length) return [`shows ${RUNS.length} runs of ${runs.length}`];
  return RUNS.flatMap((run, at) => {
    choose(run);
    const rows = [...document.querySelectorAll("#figures tbody tr")].map(row => [...row.cells].map(cell => cell.textContent));
    const wanted = DATA.listed.map(({ name, label }) => [upper(label), runs[at].summary.latency[name]]).filter(([, of]) => of?.count);
    if (rows.length !== wanted.length) return [`${run.run}: ${rows.length} latencies of ${wanted.length}`];
    const leftOut = $("left-out").textContent, told = [...runs[at].notes, ...runs[at].warnings].map(text => text.replaceAll("`", ""));
    const untold = told.filter(text => !leftOut.includes(text)).map(text => `${run.run}: does not say ${text}`);
    return untold.concat(wanted.flatMap(([label, of], place) => {
      const want = [label, number(of.count), duration(of.mean), duration(of.p50), duration(of.p90), duration(of.p99), duration(of.max)];
      return want.every((text, column) => rows[place][column].startsWith(text)) ? [] : [`${run.run}: ${rows[place].join(" | ")} is not ${want.join(" | ")}`];
    }));
  });
}

/** Ticks "until the first token only" by keyboard: the stages of the first run must be those of the JSON. */
async function first(page, run) {
  const box = page.locator("#stages input.first");
  if (!run || !await box.count()) return [];
  const wrong = [], { until_first_token: until, parts } = run.summary.time_spent;
  for (const [isFirst, wanted] of [[true, until.parts], [false, parts]]) {
    await box.focus();
    if (await box.isChecked() !== isFirst) await page.keyboard.press("Space");
    wrong.push(...await page.evaluate(([wanted, isFirst]) => {
      picturesIn(document).forEach(draw);
      const text = $("stages-text").textContent, { stages } = spentOf(RUNS[0]);
      return wanted.flatMap(part => {
        const stage = stages.find(stage => stage.name === part.stage);
        const said = part.share >= 0.005 ? `${percent(part.share)} · ${duration(part.mean)}` : duration(part.mean);
        return stage && text.includes(said) ? [] : [`${part.stage}: ${said} is not said ${isFirst ? "until the first token" : "of all"}`];
      });
    }, [wanted, isFirst]));
  }
  return wrong;
}

/** Saves a chart, and chooses everything that can be chosen. */
async function use(page) {
  const wrong = [];
  const figure = page.locator("figure").first();
  if (!await figure.count()) return wrong;
  const [file] = await Promise.all([page.waitForEvent("download"), figure.getByRole("button", { name: "SVG" }).click()]);
  const text = fs.readFileSync(await file.path(), "utf8");
  if (!text.startsWith("<svg") || text.length < 2000) wrong.push(`SVG of ${text.length} bytes is none`);
  for (const select of await page.locator(".tools select").all()) {
    for (const at of [...await select.locator("option").all()].keys()) await select.selectOption({ index: at });
    await select.selectOption({ index: 0 });
  }
  return wrong;
}

const [file, folder] = process.argv.slice(2);
lookAt(`${SIGHTS.length} pictures in ${folder}`, SIGHTS, (browser, sight) => shoot(browser, file, folder, sight));
