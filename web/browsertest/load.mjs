// The browser's load from a campaign's board while the campaign runs: starts a fleetd with many
// simulated devices, upgrades them all at once, and watches the board. Prints one line of JSON:
//    node load.mjs [DEVICES] [SECONDS]
// task_share is the main thread's time in tasks (Performance.getMetrics, in CPU time), cpu_share
// the CPU time of all processes of the browser, both relative to one core; patches counts the
// updates of each region of the page. Then the received updates are repeated at the server's
// maximum rate, every region each time: at_bound is the load of that, however busy the machine kept
// the server.
import { readFile, readdir } from 'node:fs/promises';
import { chromium } from 'playwright-core';
import { browserPath, eventually, newPage, newSession, startFleetd } from './server.mjs';

const [devices, seconds] = [Number(process.argv[2] ?? 5000), Number(process.argv[3] ?? 20)];
const boundMs = 2000; // between two redraws of a board: pace of campaignView
const ticksPerSecond = 100; // of /proc; the same on every known Linux
const sleep = ms => new Promise(r => setTimeout(r, ms));

/** CPU seconds of a process and of all that it started. */
async function cpuOf(root) {
  const parent = new Map(), used = new Map();
  for (const pid of (await readdir('/proc')).filter(name => /^\d+$/.test(name))) {
    const stat = await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => null);
    if (!stat) continue;
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
    parent.set(pid, fields[1]);
    used.set(pid, (Number(fields[11]) + Number(fields[12])) / ticksPerSecond);
  }
  let sum = 0;
  for (const pid of used.keys()) {
    for (let p = pid; p && p !== '0'; p = parent.get(p)) if (p === String(root)) sum += used.get(pid);
  }
  return sum;
}

const fleetd = await startFleetd(devices, '--max-downloads', '500', '--download-rate', '0');
const server = await chromium.launchServer({
  executablePath: browserPath,
  args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--disable-background-networking', '--no-first-run'],
});
const browser = await chromium.connect(server.wsEndpoint());
try {
  const page = await newPage(browser, fleetd.url, { storageState: await newSession(browser, fleetd.url) });
  await page.addInitScript(() => {
    const { EventSource } = window;
    window.EventSource = class extends EventSource {
      constructor(...args) {
        super(...args);
        window.stream = this;
      }
    };
  });
  await eventually('the fleet is there', async () => {
    await page.goto('/devices?q=presence:online+tool:self.upgrade_firmware');
    const text = await page.locator('main').innerText();
    return Math.max(...[...text.matchAll(/[\d,]+/g)].map(m => Number(m[0].replaceAll(',', '')))) >= devices * 0.99;
  }, 300_000);
  await page.goto('/campaigns/new');
  const release = await page.locator('select[name=release] option').nth(1).getAttribute('value');
  const plan = { release, name: 'load', downgrade: '1', in_flight: '1000', 'wave.name': 'all', 'wave.unit': 'percent', 'wave.size': '100',
    'wave.success': '50', 'wave.sample': '5', 'wave.soak': '5s', 'wave.gate': 'auto', 'rule.class': 'any', 'rule.min': '5', 'rule.percent': '90',
    'rule.scope': 'campaign', 'rule.wave': '', 'rule.action': 'pause' };
  await page.goto('/campaigns/new?' + new URLSearchParams(plan));
  await page.click('.plan-do .btn-primary');
  await page.waitForSelector('#campaign-head >> text=/in flight/');
  await page.evaluate(() => {
    window.patches = {};
    window.came = {}; // by region: the last two versions
    window.stream.addEventListener('patch', e => {
      for (const [, id] of e.data.matchAll(/^<\w+ id="([^"]+)"/gm)) {
        window.patches[id] = (window.patches[id] ?? 0) + 1;
        window.came[id] = [e.data, window.came[id]?.[0] ?? e.data];
      }
    });
  });
  const tally = () => page.locator('#campaign-head .tally').innerText().then(s => s.replace(/\s+/g, ' '));
  await eventually('the first devices have succeeded', async () => /[1-9][\d,]* succeeded/.test(await tally()), 120_000);
  await page.locator('#campaign-rate').scrollIntoViewIfNeeded(); // invisible charts are not drawn
  const cdp = await page.context().newCDPSession(page);
  await cdp.send('Performance.enable', { timeDomain: 'threadTicks' });
  const measure = async () => {
    const { metrics } = await cdp.send('Performance.getMetrics');
    return { at: performance.now() / 1000, cpu: await cpuOf(server.process().pid), task: metrics.find(m => m.name === 'TaskDuration').value,
      script: metrics.find(m => m.name === 'ScriptDuration').value, tally: await tally(), patches: await page.evaluate(() => ({ ...window.patches })) };
  };
  const before = await measure();
  await sleep(seconds * 1000);
  const after = await measure(), wall = after.at - before.at;
  const share = (name, from = before, to = after) => Number(((to[name] - from[name]) / (to.at - from.at)).toFixed(4));
  const patches = Object.fromEntries(Object.entries(after.patches).map(([id, n]) => [id, n - (before.patches[id] ?? 0)]));
  await page.evaluate(every => {
    const came = Object.values(window.came);
    window.stream.close();
    let n = 0;
    setInterval(() => {
      n++;
      for (const versions of came) window.stream.dispatchEvent(new MessageEvent('patch', { data: versions[n % 2] }));
    }, every);
  }, boundMs);
  await sleep(boundMs);
  const idle = await measure();
  await sleep(seconds * 1000);
  const full = await measure();
  const at_bound = { task_share: share('task', idle, full), cpu_share: share('cpu', idle, full), regions: Object.keys(after.patches).length };
  console.log(JSON.stringify({ devices, seconds: Number(wall.toFixed(1)), task_share: share('task'), script_share: share('script'), cpu_share: share('cpu'),
    patches, at_bound, from: before.tally, to: after.tally, errors: page.errors }));
} finally {
  await browser.close();
  await server.close();
  await fleetd.stop();
}
