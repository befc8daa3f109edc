// What the scripts share that look at pages: Chromium, and pages of which all that is wrong is told.
"use strict";
const { chromium } = require("playwright-core");

const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync"];

const launch = () => chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: FLAGS });

/** A new page. What its console says, and what it asks for that `isOwn` does not hold for, goes to `wrong`. */
async function watched(browser, options, wrong, isOwn) {
  const page = await browser.newPage(options);
  page.on("console", said => wrong.push(`console: ${said.text()}`));
  page.on("pageerror", error => wrong.push(`error: ${error.message}`));
  page.on("request", asked => { if (!isOwn(asked.url())) wrong.push(`asks for ${asked.url()}`); });
  return page;
}

/** Looks at `what` in each of the sights, whose names come first; `look` gives what is wrong. Fails if anything is. */
async function lookAt(what, sights, look) {
  const browser = await launch();
  const wrong = [];
  for (const sight of sights) wrong.push(...(await look(browser, sight)).map(fault => `${sight[0]}: ${fault}`));
  await browser.close();
  for (const fault of wrong) console.error(fault);
  console.log(`${what}; ${wrong.length ? wrong.length + " things are wrong" : "nothing is wrong"}`);
  process.exitCode = wrong.length ? 1 : 0;
}

module.exports = { launch, lookAt, watched };
