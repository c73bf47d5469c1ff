// Starts a real fleetd with simulated devices for one test file. FLEETD_BIN names
// the program.
import { execFile, spawn } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer, request } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';

const exec = promisify(execFile);

export const bin = process.env.FLEETD_BIN ?? new URL('../../../bin/fleetd', import.meta.url).pathname;
export const here = new URL('.', import.meta.url).pathname;

// An address of this machine that no other test uses: all of 127.0.0.0/8 is loopback.
const below = n => 1 + Math.floor((n - 1) * Math.random());
const freeHost = () => `127.${below(255)}.${below(255)}.${below(255)}`;

export const sleep = ms => new Promise(r => setTimeout(r, ms));

/** Starts fleetd with the given number of simulated devices, and waits for their tools. */
export async function startFleetd(devices, ...flags) {
  const dir = await mkdtemp(join(tmpdir(), 'fleetd-mcp-'));
  const data = join(dir, 'data');
  const host = freeHost();
  const url = `http://${host}:8080`;
  const child = spawn(bin, ['serve', '--data-dir', data, '--http-addr', `${host}:8080`, '--mqtt-addr', `${host}:1883`,
    '--admin-addr', `${host}:9464`, '--enrolment', 'open', '--demo', String(devices), '--admin-password', 'foreign-test', ...flags]);
  let output = '';
  child.stdout.on('data', d => output += d);
  child.stderr.on('data', d => output += d);
  const ended = new Promise(resolve => child.on('exit', resolve));
  for (let i = 0; ; i++) {
    if (await fetch(`http://${host}:9464/readyz`).then(r => r.ok, () => false)) break;
    if (i > 1800 || child.exitCode !== null) throw new Error(`fleetd did not start:\n${output}`);
    await sleep(100);
  }
  const others = [];
  const fleetd = {
    url,
    output: () => output,
    /** Adds simulated devices, with the flags of "fleetd sim". They end with fleetd. */
    simulate(...flags) {
      const sim = spawn(bin, ['sim', '--ota-url', `${url}/xiaozhi/ota/`, '--progress', '0', ...flags], { stdio: 'ignore' });
      others.push({ sim, ended: new Promise(resolve => sim.on('exit', resolve)) });
    },
    /** Reads a number of /metrics. */
    async metric(name) {
      const text = await fetch(`http://${host}:9464/metrics`).then(r => r.text());
      const line = text.split('\n').find(l => l.startsWith(`${name} `));
      if (!line) throw new Error(`/metrics has no ${name}`);
      return Number(line.slice(name.length + 1));
    },
    /** Makes a token and returns its secret. */
    async token(name, ...args) {
      const { stdout } = await exec(bin, ['token', 'create', name, '--data-dir', data, '--json', ...args]);
      return JSON.parse(stdout).token;
    },
    /** Sends a request to REST as an administrator. */
    async rest(method, path, body) {
      this.admin ??= await this.token('rest', '--role', 'admin');
      const r = await fetch(`${url}/api/v1${path}`, { method, body: body && JSON.stringify(body),
        headers: { authorization: `Bearer ${this.admin}`, 'content-type': 'application/json' } });
      const text = await r.text();
      if (!r.ok) throw new Error(`${method} ${path}: ${r.status} ${text}`);
      return text ? JSON.parse(text) : null;
    },
    async stop() {
      for (const { sim, ended } of others) {
        sim.kill('SIGINT');
        await ended;
      }
      child.kill('SIGINT');
      const code = await ended;
      await rm(dir, { recursive: true, force: true });
      if (code !== 0) throw new Error(`fleetd ended with ${code}:\n${output}`);
    },
  };
  await eventually('all devices are listed', async () => {
    const { items } = await fleetd.rest('GET', '/devices?q=presence:online&limit=500');
    return items.filter(d => d.tools_count > 0).length === devices;
  });
  return fleetd;
}

/**
 * Starts a proxy that adds the token to the requests of a program that has none. Its own
 * address in Host and Origin becomes fleetd's; any other address stays.
 */
export async function withToken(url, token) {
  const { hostname, port, host } = new URL(url);
  const server = createServer((req, res) => {
    const headers = { ...req.headers, authorization: `Bearer ${token}` };
    const own = `127.0.0.1:${server.address().port}`;
    for (const name of ['host', 'origin']) if (headers[name]) headers[name] = headers[name].replace(own, host);
    const to = request({ hostname, port, path: req.url, method: req.method, headers }, from => {
      res.writeHead(from.statusCode, from.headers);
      from.pipe(res);
    });
    to.on('error', () => res.destroy());
    res.on('close', () => to.destroy());
    req.pipe(to);
  });
  await new Promise(resolve => server.listen(0, '127.0.0.1', resolve));
  return { url: `http://127.0.0.1:${server.address().port}`, close: () => { server.closeAllConnections(); server.close(); } };
}

/** Waits until check returns something true. */
export async function eventually(what, check, ms = 60_000) {
  for (const end = Date.now() + ms; Date.now() < end; await sleep(200)) {
    const v = await check();
    if (v) return v;
  }
  throw new Error(`not within ${ms} ms: ${what}`);
}
