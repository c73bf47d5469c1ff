// Measures the pages of the console with a running fleet: node bench.mjs [DEVICES] [ROUNDS]
//
// It prints for each page the medians of first byte and first paint with a warm cache, what a first visit transfers
// without fonts, and for two pages what share of a core their tab takes while 100 of the devices that it shows change
// each second. fleetd, its PostgreSQL, the simulated devices and the browser share the machine.
import { eventually, newPage, newSession, startBrowser, startFleetd } from './server.mjs';

const [devices = 5000, rounds = 15] = process.argv.slice(2).map(Number);
const goals = { byte: 25, paint: 150, size: 60, tab: 5 };
const pages = process.env.PAGES?.split(',') ?? ['/', '/devices', '/devices?view=wall', '/dashboards', '/firmware', '/campaigns', '/calls', '/alerts', '/settings'];
const perSecond = 100, seconds = 20;

const median = list => list.toSorted((a, b) => a - b)[Math.floor(list.length / 2)];
const sleep = ms => new Promise(r => setTimeout(r, ms));
const judged = (n, goal, unit) => `${n.toFixed(1)}${unit}${n > goal ? ' (missed)' : ''}`;

/** A token of an administrator. */
async function newToken(browser, url, session) {
  const page = await newPage(browser, url, { storageState: session });
  await page.goto('/settings');
  await page.click('summary:has-text("Create a token")');
  const form = page.locator('form[action="/settings/tokens"]');
  await form.locator('input[name=name]').fill('bench');
  await form.locator('input[name=role][value=admin]').check();
  await form.locator('button').click();
  const token = await page.locator('.copyline code').first().textContent();
  await page.context().close();
  return token;
}

/** What one load of a page takes, and transfers. */
async function load(page, path) {
  await page.goto(path, { waitUntil: 'load' });
  return page.evaluate(async () => {
    const paint = await new Promise(resolve => new PerformanceObserver((list, o) => {
      const first = list.getEntriesByName('first-contentful-paint')[0];
      if (first) { o.disconnect(); resolve(first.startTime); }
    }).observe({ type: 'paint', buffered: true }));
    const [nav] = performance.getEntriesByType('navigation');
    const files = performance.getEntriesByType('resource').filter(r => r.initiatorType !== 'fetch' && !/\.woff2$/.test(r.name));
    return { byte: nav.responseStart - nav.requestStart, paint, size: [nav, ...files].reduce((sum, r) => sum + r.transferSize, 0) };
  });
}

/** Changes the devices of the first page of the list until it is stopped. */
function changeDevices(url, token, ids) {
  let n = 0, failed = 0;
  const timer = setInterval(() => {
    const id = ids[n++ % ids.length];
    fetch(`${url}/api/v1/devices/${id}`, { method: 'PATCH', body: JSON.stringify({ tags: [`bench-${n % 7}`] }),
      headers: { Authorization: `Bearer ${token}`, 'Content-Type': 'application/json' } })
      .then(r => { if (!r.ok) failed++; return r.arrayBuffer(); }, () => failed++);
  }, 1000 / perSecond);
  return { stop() { clearInterval(timer); return { n, failed }; } };
}

const [fleetd, browser] = await Promise.all([startFleetd(devices), startBrowser()]);
try {
  const session = await newSession(browser, fleetd.url), token = await newToken(browser, fleetd.url, session);
  const rest = async path => (await fetch(fleetd.url + '/api/v1' + path, { headers: { Authorization: `Bearer ${token}` } })).json();
  await eventually('the fleet is online', async () => (await rest('/stats')).presence?.online >= devices * 0.99, 600_000);

  const page = await newPage(browser, fleetd.url, { storageState: session });
  console.log('| Page | First byte, ms | First paint, ms | First visit, kB |');
  console.log('|---|---:|---:|---:|');
  for (const path of pages) {
    const cold = await newPage(browser, fleetd.url, { storageState: session });
    const { size } = await load(cold, path);
    await cold.context().close();
    const took = [];
    for (let i = -1; i < rounds; i++) { // the first round fills caches
      const one = await load(page, path);
      if (i >= 0) took.push(one);
    }
    const of = (name, goal) => judged(median(took.map(one => one[name])), goal, '');
    console.log(`| ${path} | ${of('byte', goals.byte)} | ${of('paint', goals.paint)} | ${judged(size / 1000, goals.size, '')} |`);
  }

  console.log(`\n| Tab, ${perSecond} changes a second | Share of a core |`);
  console.log('|---|---:|');
  for (const path of ['/devices', '/']) {
    await page.goto(path);
    const ids = (await rest('/devices?limit=50')).items.map(d => d.id);
    const cdp = await page.context().newCDPSession(page);
    await cdp.send('Performance.enable', { timeDomain: 'threadTicks' });
    const task = async () => (await cdp.send('Performance.getMetrics')).metrics.find(m => m.name === 'TaskDuration').value;
    const changes = changeDevices(fleetd.url, token, ids);
    await sleep(2000);
    const before = await task(), began = performance.now();
    await sleep(seconds * 1000);
    const share = 100 * (await task() - before) / ((performance.now() - began) / 1000);
    const { n, failed } = changes.stop();
    if (failed > 0 || n < perSecond * seconds * 0.8) console.log(`(only ${n - failed} changes were made, ${failed} failed)`);
    console.log(`| ${path} | ${judged(share, goals.tab, ' %')} |`);
  }
} finally {
  await browser.close();
  await fleetd.stop();
}
