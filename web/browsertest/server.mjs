// Starts a real fleetd with simulated devices, and a real Chromium, for one test file. FLEETD_BIN
// is the path of the program; FLEETD_CHROMIUM that of the browser.
import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { chromium } from 'playwright-core';

export const password = 'browser-test-password';

const program = process.env.FLEETD_BIN ?? new URL('../../bin/fleetd', import.meta.url).pathname;

// An address of this machine that no other test uses: all of 127.0.0.0/8 is loopback.
const below = n => 1 + Math.floor((n - 1) * Math.random());
const freeHost = () => `127.${below(255)}.${below(255)}.${below(255)}`;

const sleep = ms => new Promise(r => setTimeout(r, ms));

// Limits of waits only stop waits without end: a busy machine may take its time.
const hangs = 180_000;

// descendants lists the processes that a process has started, directly or indirectly.
async function descendants(pid) {
  const threads = await readdir(`/proc/${pid}/task`).catch(() => []);
  const children = threads.map(thread => readFile(`/proc/${pid}/task/${thread}/children`, 'utf8').catch(() => ''));
  const pids = (await Promise.all(children)).join(' ').split(' ').filter(Boolean).map(Number);
  return [...pids, ...(await Promise.all(pids.map(descendants))).flat()];
}

/** Starts fleetd with the given number of simulated devices. */
export async function startFleetd(devices, ...flags) {
  const dir = await mkdtemp(join(tmpdir(), 'fleetd-browser-'));
  const host = freeHost();
  const url = `http://${host}:8080`;
  const launch = () => spawn(program, ['serve', '--data-dir', join(dir, 'data'), '--http-addr', `${host}:8080`, '--mqtt-addr', `${host}:1883`,
    '--admin-addr', `${host}:9464`, '--enrolment', 'open', '--demo', String(devices), '--admin-password', password, ...flags]);
  let output = '', child, ended;
  const start = async () => {
    child = launch();
    child.stdout.on('data', d => output += d);
    child.stderr.on('data', d => output += d);
    ended = new Promise(resolve => child.on('exit', resolve));
    for (let i = 0; ; i++) {
      const ready = await fetch(`http://${host}:9464/readyz`).then(r => r.ok, () => false);
      if (ready) break;
      if (i > 1800 || child.exitCode !== null) throw new Error(`fleetd did not start:\n${output}`);
      await sleep(100);
    }
  };
  await start();
  return {
    url,
    output: () => output,
    /** Freezes PostgreSQL like a hanging machine, and returns a function that resumes it. */
    async freezeDatabase() {
      const pids = await descendants(child.pid);
      for (const pid of pids) process.kill(pid, 'SIGSTOP');
      return () => { for (const pid of pids) try { process.kill(pid, 'SIGCONT'); } catch {} };
    },
    /** Stops fleetd, and starts it again on the same data. */
    async restart() {
      child.kill('SIGINT');
      await ended;
      await start();
    },
    async stop() {
      child.kill('SIGINT');
      const code = await ended;
      await rm(dir, { recursive: true, force: true });
      if (code !== 0) throw new Error(`fleetd ended with ${code}:\n${output}`);
    },
  };
}

/** Runs simulated devices against a server, in a process of their own. */
export function startSim(url, devices, firstMac, ...flags) {
  const child = spawn(program, ['sim', '--ota-url', `${url}/xiaozhi/ota/`, '--devices', String(devices), '--first-mac', firstMac,
    '--boards', 'esp-box-3', ...flags], { stdio: 'ignore' });
  const ended = new Promise(resolve => child.on('exit', resolve));
  return {
    /** Ends all devices at once; none disconnects cleanly. */
    async cut() {
      child.kill('SIGKILL');
      await ended;
    },
  };
}

/**
 * A network between the browser and a server. hold drops all later data, in both directions,
 * and leaves its connections open. pass lets new connections through again, but no held one;
 * cut breaks all connections.
 */
export async function startNetwork(url) {
  const { hostname, port } = new URL(url);
  const open = new Set(), asked = [];
  let holds = false;
  const network = createServer(near => {
    const far = connect(Number(port), hostname);
    const pair = [near, far];
    open.add(pair);
    for (const [from, to] of [pair, [far, near]]) {
      from.on('error', () => {});
      from.on('data', data => {
        if (!pair.held && !holds) to.write(data);
        else if (from === near) asked.push(data.toString('latin1').split(' HTTP/')[0]);
      });
      from.on('close', () => {
        if (pair.held && from === far) return; // the browser does not notice
        to.destroy();
        open.delete(pair);
      });
    }
    pair.held = holds;
  });
  await new Promise(resolve => network.listen(Number(port), freeHost(), resolve));
  return {
    url: `http://${network.address().address}:${port}`,
    hold() { holds = true; for (const pair of open) pair.held = true; },
    pass() { holds = false; },
    asked, // the held requests of the browser: "GET /path"
    cut() { for (const pair of open) for (const end of pair) end.destroy(); },
    async stop() { this.cut(); await new Promise(resolve => network.close(resolve)); },
  };
}

/** The path of the browser: FLEETD_CHROMIUM, or the browser that scripts/setup installs. */
export const browserPath = process.env.FLEETD_CHROMIUM ??
  ['/usr/bin/chromium-headless-shell', '/usr/bin/chromium'].find(path => existsSync(path));

export const startBrowser = () => chromium.launch({
  executablePath: browserPath,
  args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--disable-background-networking', '--no-first-run'],
  timeout: hangs,
});

/** A page that collects the errors on its console, because a page must not log any. */
export async function newPage(browser, url, options = {}) {
  const context = await browser.newContext({ baseURL: url, viewport: { width: 1440, height: 900 }, ...options });
  context.setDefaultTimeout(hangs);
  const page = await context.newPage();
  page.errors = [];
  page.on('pageerror', e => page.errors.push(e.message));
  // htmx logs a request that is aborted because its page is left; a request that fails it logs as
  // htmx:sendError.
  const aborted = /^htmx:(afterRequest|sendAbort), /;
  page.on('console', m => m.type() === 'error' && !aborted.test(m.text()) && page.errors.push(m.text()));
  return page;
}

/** Submits the sign-in form, whatever the outcome. */
export async function sendPassword(page, name, word) {
  await page.goto('/sign-in');
  await page.fill('input[name=name]', name);
  await page.fill('input[name=password]', word);
  await page.click('form:has(input[name=password]) button');
}

/** Signs in, and waits for the next page. */
export async function signIn(page, name = 'admin', word = password) {
  await sendPassword(page, name, word);
  await page.waitForURL(url => url.pathname !== '/sign-in');
  await page.waitForSelector('h1');
}

/**
 * Returns a browser's session, for storageState of newPage. The server allows ten
 * sign-ins a minute, and hashes the password at each.
 */
export async function newSession(browser, url, word = password) {
  const page = await newPage(browser, url);
  await signIn(page, 'admin', word);
  if (page.errors.length) throw new Error(`the sign-in logged errors: ${page.errors}`);
  const session = await page.context().storageState();
  await page.context().close();
  return session;
}

/** Makes a token for programs on the page of settings. */
export async function newToken(page, role = 'admin') {
  await page.goto('/settings');
  await page.click('summary:has-text("Create a token")');
  const form = page.locator('form[action="/settings/tokens"]');
  await form.locator('input[name=name]').fill(`program-${role}`);
  await form.locator(`input[name=role][value=${role}]`).check();
  await form.locator('.btn-primary').click();
  return page.locator('.copyline code').first().textContent();
}

/** Returns a function that makes requests of the REST API with a token, or with another one that by names. */
export const restWith = (url, token) => async (method, path, body, by = token) => {
  const response = await fetch(`${url}/api/v1${path}`, { method, body: body && JSON.stringify(body),
    headers: { Authorization: `Bearer ${by}`, 'Content-Type': 'application/json' } });
  if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${await response.text()}`);
  return response.status === 204 ? null : response.json();
};

/** Waits until check returns a true value. */
export async function eventually(what, check, ms = hangs) {
  for (const end = Date.now() + ms; Date.now() < end; await sleep(200)) {
    const v = await check();
    if (v) return v;
  }
  throw new Error(`not within ${ms} ms: ${what}`);
}
