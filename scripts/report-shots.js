// See report-shots.sh.
"use strict";
const { chromium } = require("playwright-core");

const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync"];
const SIGHTS = [["wide", 1280, "light"], ["wide-dark", 1280, "dark"], ["phone", 360, "light"], ["phone-dark", 360, "dark"]];

async function shoot(browser, file, folder, [name, width, colorScheme]) {
  const wrong = [];
  const page = await browser.newPage({ viewport: { width, height: 900 }, colorScheme });
  page.on("console", said => wrong.push(`console: ${said.text()}`));
  page.on("pageerror", error => wrong.push(`error: ${error.message}`));
  page.on("request", asked => { if (!/^(file|data|blob):/.test(asked.url())) wrong.push(`asks for ${asked.url()}`); });
  await page.goto("file://" + file);
  // Charts are drawn when they come into sight.
  await page.evaluate(() => PICTURES.forEach(draw));
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  if (wide > 0) wrong.push(`is ${wide} pixels too wide`);
  const empty = await page.evaluate(() => PICTURES.filter(of => !of.chart.querySelector("canvas")).map(of => of.title));
  if (empty.length) wrong.push(`draws nothing: ${empty.join(", ")}`);
  if (name === "wide") wrong.push(...await use(page));
  await page.evaluate(() => scrollTo(0, 0));
  await page.screenshot({ path: `${folder}/${name}.png`, fullPage: true });
  await page.close();
  return wrong.map(what => `${name}: ${what}`);
}

/** Presses every button and saves a chart each way. */
async function use(page) {
  const wrong = [];
  const figure = page.locator("figure").first();
  for (const kind of ["PNG", "SVG"]) {
    const [file] = await Promise.all([page.waitForEvent("download"), figure.getByRole("button", { name: kind }).click()]);
    const path = await file.path();
    const text = require("fs").readFileSync(path);
    const begin = kind === "PNG" ? "\x89PNG" : "<svg";
    if (text.subarray(0, 4).toString("latin1") !== begin || text.length < 2000) wrong.push(`${kind} of ${text.length} bytes is none`);
  }
  for (const button of await page.locator("button[aria-pressed=false]").all()) await button.click();
  for (const button of await page.locator("span[role=group] button:first-child").all()) await button.click();
  return wrong;
}

(async () => {
  const [file, folder] = process.argv.slice(2);
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: FLAGS });
  const wrong = [];
  for (const sight of SIGHTS) wrong.push(...await shoot(browser, file, folder, sight));
  await browser.close();
  for (const what of wrong) console.error(what);
  console.log(`${SIGHTS.length} pictures in ${folder}; ${wrong.length ? wrong.length + " things are wrong" : "nothing is wrong"}`);
  process.exitCode = wrong.length ? 1 : 0;
})();
