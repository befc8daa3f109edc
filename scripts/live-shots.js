// See live-shots.sh: URL of a live page, a folder for pictures.
"use strict";
const { lookAt, watched } = require("./browser.js");

const SIGHTS = [["wide", 1300, 900, "light"], ["phone", 360, 740, "light"], ["phone-dark", 360, 740, "dark"]];

/** In the page: what it says that is not what it read. */
function apart({ window: all }, isFirst) {
  const text = id => document.getElementById(id).textContent;
  const { sentence, parts } = all.spent[isFirst ? "until_first_token" : "all"];
  const wrong = [];
  if (text("verdict") !== sentence + ".") wrong.push(`says "${text("verdict")}" for "${sentence}"`);
  const items = [...document.querySelectorAll("#share li")].map(item => item.textContent), large = parts.filter(part => part.share >= 0.005);
  if (items.length !== large.length) wrong.push(`names ${items.length} of ${large.length} stages`);
  large.forEach((part, at) => {
    const share = Number(items[at]?.match(/([\d.]+) % ·/)?.[1] ?? NaN);
    if (!items[at]?.includes(part.label)) wrong.push(`${items[at]} is not ${part.label}`);
    else if (Math.abs(share - part.share * 100) > 0.5) wrong.push(`${items[at]} is not ${part.share}`);
  });
  parts.sort((a, b) => a.order - b.order);
  const whole = parts.reduce((sum, part) => sum + Math.max(0, part.seconds), 0);
  const drawn = parts.filter(part => part.seconds > 0), bar = document.querySelector("#share .share");
  // There is a pixel between two parts.
  drawn.forEach((part, at) => {
    const width = bar.children[at]?.getBoundingClientRect().width / bar.getBoundingClientRect().width;
    if (!(Math.abs(width - part.seconds / whole) < 0.04)) wrong.push(`the bar of ${part.label} is ${width} wide`);
  });
  const counts = all.quantiles.filter(one => one.count > 0).map(one => one.count.toLocaleString("en"));
  const shown = [...document.querySelectorAll("#quantiles tr")].slice(1).map(row => row.lastChild.textContent);
  if (counts.join() !== shown.join()) wrong.push(`counts ${shown} of ${counts}`);
  if (!text("facts").includes(`${all.requests.toLocaleString("en")} ended`)) wrong.push(`"${text("facts")}" lacks ${all.requests}`);
  return wrong;
}

async function look(browser, url, folder, [name, width, height, colorScheme]) {
  const wrong = [];
  let news = null;
  const isOwn = asked => asked.startsWith(url) || asked.startsWith("data:");
  const page = await watched(browser, { viewport: { width, height }, colorScheme }, wrong, isOwn);
  page.on("response", async answer => { if (answer.url().includes("/live.json")) news = await answer.json().catch(() => news); });
  await page.goto(url);
  await page.waitForSelector("#list li");
  // Gets nothing new once a hostile request is among the last ones: on a busy machine it may soon be gone.
  const hostile = page.locator("#list").getByText("<script>");
  const hold = route => route.fulfill({ json: { ...news, requests: [] } });
  for (let tries = 0; tries < 20; tries++) {
    await hostile.first().waitFor({ timeout: 60_000 });
    await page.route(/live\.json/, hold);
    await page.waitForTimeout(300);
    if (await hostile.count()) break;
    await page.unroute(/live\.json/, hold);
  }
  const box = page.getByLabel("until the first token only");
  for (const isFirst of [false, true]) {
    if (isFirst) await box.press("Space");
    wrong.push(...(await page.evaluate(`(${apart})(${JSON.stringify(news)}, ${isFirst})`)));
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    if (wide > 0) wrong.push(`is ${wide} pixels too wide`);
    const end = await page.evaluate(() => document.querySelector("#share .share").getBoundingClientRect().bottom);
    if (end > height) wrong.push(`the bar is not on the first screen: it ends at ${end} of ${height}`);
    await page.screenshot({ path: `${folder}/live-${name}${isFirst ? "-first" : ""}.png` });
  }
  if (!await hostile.count()) wrong.push("does not show the hostile model as text");
  const made = await page.evaluate(() => document.querySelectorAll("main img, main script, main iframe").length);
  if (made) wrong.push(`has ${made} elements that text of requests has made`);
  const [answer] = await Promise.all([page.waitForResponse(/requests\/\d+\.json/), page.locator("#list button").first().click()]);
  await page.waitForSelector("dialog[open] #cells tr");
  const said = await page.locator("#one").textContent(), { columns } = await answer.json();
  for (const { name, values: [value] } of columns.filter(of => of.unit === "time" && of.values[0] !== null)) {
    const micros = String(Math.round(value * 1e6) % 1e6).padStart(6, "0");
    if (!said.includes(`.${micros} UTC`)) wrong.push(`${name} lacks its microseconds, ${micros}`);
  }
  if (!columns.some(of => of.unit === "time")) wrong.push("knows no time of a request");
  if (said.includes("](")) wrong.push("shows the address of a link of Markdown");
  await page.close();
  return wrong;
}

const [url, folder] = process.argv.slice(2);
lookAt(`the live page in ${folder}`, SIGHTS, (browser, sight) => look(browser, url, folder, sight));
