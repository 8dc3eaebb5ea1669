// page.mjs - the checks of tests/fleet/page.bats on the live page in a browser.
//
// node page.mjs URL SHOTS SERVER PID: checks the page of a running training, kills PID, which is server SERVER, and
// checks again. Prints its findings, and ends at the first failure. SHOTS: folder for the screenshots.
import assert from 'node:assert/strict';
import { chromium } from 'playwright-core';

const [url, shots, server, pid] = process.argv.slice(2);
const flags = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
  '--disable-component-update', '--disable-sync', '--disable-lcd-text'];
const WITHIN_MS = 2000, POLL_MS = 50, PATIENCE_MS = 30000;

const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: flags });
const page = await browser.newPage({ viewport: { width: 1280, height: 900 } });
const complaints = [], strangers = [];
page.on('console', m => { if (m.type() === 'error' || m.type() === 'warning') complaints.push(m.text()); });
page.on('pageerror', e => complaints.push(e.message));
page.on('request', r => { if (!r.url().startsWith('data:') && new URL(r.url()).origin !== new URL(url).origin) strangers.push(r.url()); });

const has = (selector, text) => page.waitForFunction(([s, t]) => document.querySelector(s)?.innerText.includes(t), [selector, text],
  { polling: POLL_MS, timeout: PATIENCE_MS });

/* Every control, picture, table and region of the accessibility tree has a name. */
async function allHaveNames() {
  const wanted = ['button', 'combobox', 'checkbox', 'searchbox', 'link', 'image', 'img', 'meter', 'table', 'region', 'log', 'group'];
  const tree = await (await page.context().newCDPSession(page)).send('Accessibility.getFullAXTree');
  const nodes = tree.nodes.filter(n => !n.ignored && wanted.includes(n.role?.value));
  for (const n of nodes) assert.ok(n.name?.value?.trim(), 'a ' + n.role.value + ' without a name');
  for (const role of ['button', 'combobox', 'checkbox', 'searchbox', 'table', 'log']) assert.ok(nodes.some(n => n.role.value === role), 'no ' + role);
  return nodes.length;
}

/* Tab reaches every control and every scrolling region, in page order, and leaves the page. */
async function keyboardReachesAll() {
  const wanted = await page.evaluate(() => [...document.querySelectorAll('a[href], button, select, input, [tabindex="0"]')].map((e, i) => {
    e.dataset.stop = String(i);
    return String(i);
  }));
  const seen = [];
  await page.evaluate(() => { document.activeElement.blur(); window.scrollTo(0, 0); });
  for (let i = 0; i < wanted.length; i++) {
    await page.keyboard.press('Tab');
    seen.push(await page.evaluate(() => document.activeElement.dataset.stop));
  }
  assert.deepEqual(seen, wanted);
  return seen.length;
}

/* The lowest contrast of any text with its background, as WCAG defines it. */
const leastContrast = () => page.evaluate(() => {
  const rgb = text => text.match(/[\d.]+/g).map(Number);
  const light = c => { const [r, g, b] = rgb(c).map(v => (v / 255 <= .04045 ? v / 255 / 12.92 : ((v / 255 + .055) / 1.055) ** 2.4)); return .2126 * r + .7152 * g + .0722 * b; };
  const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (rgb(c)[3] !== 0) return c; } return 'rgb(255, 255, 255)'; };
  let least = 21;
  for (const e of document.querySelectorAll('body *')) {
    if (e.matches('script, .skip') || !e.getClientRects().length || ![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
    const style = getComputedStyle(e), a = light(e instanceof SVGElement ? style.fill : style.color), b = light(behind(e));
    least = Math.min(least, (Math.max(a, b) + .05) / (Math.min(a, b) + .05));
  }
  return least;
});

async function picture(colorScheme, suffix = '') {
  await page.emulateMedia({ colorScheme });
  await page.screenshot({ path: shots + '/page-' + colorScheme + suffix + '.png', fullPage: true });
}

process.on('uncaughtException', async error => {
  console.error('%s\nthe console said: %o\nthe page shows:\n%s', error.stack, complaints, await page.innerText('body').catch(e => e.message));
  await browser.close();
  process.exit(1);
});

/* ---- a running training ----------------------------------------------------------------------- */
await page.goto(url);
assert.equal(new URL(page.url()).search, '', 'a token stays in the address');
await has('#map', 'server ' + server + ': active');
await has('#map', 'worker 1: active');
await has('#charts', 'loss');
await has('#facts', 'loss');
await has('#facts', ' of ');
await has('#facts', 'Time left');
await has('#events', 'is active');
await has('#balance', 'shards on');
await page.waitForFunction(() => document.querySelector('#charts figure path').getAttribute('d').length > 60, undefined, { timeout: PATIENCE_MS });
for (const landmark of ['banner', 'main']) assert.equal(await page.getByRole(landmark).count(), 1, landmark);
assert.equal(await page.getByRole('heading', { level: 1 }).count(), 1);
console.log('names    %d controls, tables and pictures say what they are', await allHaveNames());
console.log('keyboard %d stops', await keyboardReachesAll());

for (const colorScheme of ['light', 'dark']) {
  await page.emulateMedia({ colorScheme });
  const least = await leastContrast();
  assert.ok(least >= 4.5, colorScheme + ': contrast ' + least.toFixed(2));
  console.log('contrast at least %s in %s', least.toFixed(1), colorScheme);
}
await page.emulateMedia({ colorScheme: 'light' });

await page.focus('#pause');
await page.keyboard.press('Space');
assert.equal(await page.getAttribute('#pause', 'aria-pressed'), 'true');
await page.keyboard.press('Space');
assert.equal(await page.getAttribute('#pause', 'aria-pressed'), 'false');
await page.focus('#ask-stuck');
await page.keyboard.press('Enter');
await page.waitForFunction(() => /asked at|nobody has made/.test(document.querySelector('#stuck-state').innerText), undefined, { timeout: PATIENCE_MS });
assert.ok(!(await page.innerText('#stuck')).includes('has not answered'), 'workers did not say what they are in');
await page.focus('#find');
await page.keyboard.type('server 1');
await page.waitForFunction(() => document.querySelectorAll('#members tr').length === 1, undefined, { timeout: PATIENCE_MS });
await page.fill('#find', '');
await page.evaluate(() => document.activeElement.blur());

/* What is big and first agrees with what the scheduler says. */
const answer = await (await page.context().request.get(new URL('/status', url).href)).json();
const scalar = answer.members.filter(m => m.role === 'worker').map(m => m.metrics.loss).find(x => x !== undefined);
assert.ok(Number.isFinite(Number(scalar)), 'no loss in /status');
assert.ok((await page.innerText('#facts')).includes(' of ' + answer.steps), 'the steps in all are not those of /status');
assert.ok(!(await page.innerText('#members')).includes('launcher'), 'a launcher is listed unasked');
await page.check('#all');
await has('#members', 'launcher');
await page.uncheck('#all');

/* Each chart says its smallest value and its first time in texts of their own. */
for (const text of await page.locator('#charts svg text').allInnerTexts()) assert.ok(!/ at /.test(text), 'a label of two axes: ' + text);

await page.setViewportSize({ width: 400, height: 844 });
assert.ok(await page.evaluate(() => document.scrollingElement.scrollWidth) <= 400, 'a phone has to scroll sideways');
await picture('light', '-phone');
await picture('dark', '-phone');
await page.emulateMedia({ colorScheme: 'light' });
await page.setViewportSize({ width: 1280, height: 900 });

/* ---- a server is killed ----------------------------------------------------------------------- */
const gone = 'server ' + server + ' \\([^)]*\\) (is dead|has lost its connection)|server ' + server + ': (dead|away)';
const says = ([pattern]) => new RegExp(pattern).test(document.body.innerText);
assert.equal(await page.evaluate(says, [gone]), false, 'it says so before it is so');
const begun = performance.now();
process.kill(Number(pid), 'SIGKILL');
await page.waitForFunction(says, [gone], { polling: POLL_MS, timeout: PATIENCE_MS });
const took = Math.round(performance.now() - begun);
console.log('shown    %d ms after server %s was killed: %s', took, server, await page.evaluate(([p]) => document.body.innerText.match(new RegExp(p))[0], [gone]));
assert.ok(took <= WITHIN_MS, took + ' ms');
await picture('light');
await has('#events', 'other servers took over');
await picture('dark');
assert.deepEqual(complaints, []);
assert.deepEqual(strangers, []);
console.log('console  no errors, no warnings; nothing asked of anybody else');
await browser.close();
