// Driver of a browser for chromium.py: reads one JSON command per line from stdin, and writes one JSON result per line to stdout.
//   {"page": N, "call": ["keyboard", "press"], "args": [...]}     N.keyboard.press(...)
//   {"open": {...options of the context}}, {"close": N}, {"axe": N}, {"problems": N}
// Arguments: the directory whose node_modules contains playwright-core and axe-core, and the path of the browser.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [modules, executablePath] = process.argv.slice(2);
const require = createRequire(`${modules}/`);
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const RUN_IN_PAGE = new Set(["evaluate", "waitForFunction", "$eval", "$$eval", "addInitScript"]);

const browser = await chromium.launch({
  executablePath,
  args: ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
});
const pages = new Map();
let last = 0;

async function open(options) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  page.setDefaultTimeout(20000);
  const problems = [];
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) problems.push(`${message.text()} (${message.location().url})`);
  });
  page.on("pageerror", (error) => problems.push(`${error}`));
  pages.set(++last, { context, page, problems });
  return last;
}

async function call({ page, problems }, path, args) {
  let target = page;
  for (const name of path.slice(0, -1)) target = target[name];
  const name = path[path.length - 1];
  const given = RUN_IN_PAGE.has(name)
    ? args.map((one) => (typeof one === "string" && /^(async )?\(/.test(one) ? (0, eval)(`(${one})`) : one))
    : args;
  const result = await target[name](...given);
  if (name === "screenshot" || result === undefined || problems === undefined) return null;
  return typeof result === "object" &&
    result !== null &&
    (typeof result.dispose === "function" || typeof result.url === "function")
    ? null
    : result;
}

async function runAxe({ page }) {
  await page.evaluate(axe);
  return page.evaluate(async () => {
    const found = await globalThis.axe.run(document, { resultTypes: ["violations"] });
    return found.violations.map((one) => ({
      id: one.id,
      help: one.help,
      nodes: one.nodes.map((node) => `${node.target.join(" ")}: ${node.failureSummary}`),
    }));
  });
}

async function execute(command) {
  if (command.open) return open(command.open);
  const one = pages.get(command.page ?? command.close ?? command.axe ?? command.problems);
  if (command.call) return call(one, command.call, command.args);
  if (command.axe) return runAxe(one);
  if (command.problems) return one.problems.splice(0);
  pages.delete(command.close);
  return one.context.close();
}

process.stdout.write(`${JSON.stringify({ ready: browser.version() })}\n`);
for await (const line of createInterface({ input: process.stdin })) {
  let result;
  try {
    result = { result: (await execute(JSON.parse(line))) ?? null };
  } catch (error) {
    result = { error: String(error.message ?? error) };
  }
  process.stdout.write(`${JSON.stringify(result)}\n`);
}
await browser.close();
