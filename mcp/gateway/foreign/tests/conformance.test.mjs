// Runs the published conformance suite against a build of the gateway's tests that also
// has the suite's own tools, resources and prompts (GATEWAY_TEST_BIN): they go through
// the gateway's sessions, checks and encoding. expected-failures.yaml lists the scenarios
// that fail, with the reasons; the suite itself fails if one of these passes, or another
// one fails.
import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { createInterface } from 'node:readline';
import { test } from 'node:test';
import { here, withToken } from '../fleetd.mjs';

const suite = `${here}node_modules/@modelcontextprotocol/conformance/dist/index.js`;
const gateway = process.env.GATEWAY_TEST_BIN ?? new URL('../../../../bin/gateway-race.test', import.meta.url).pathname;

/** Starts the gateway with the fixtures; stop ends it, and fails if its test did. */
async function startGateway() {
  const child = spawn(gateway, ['-test.run', '^TestServeConformance$', '-test.timeout', '10m'],
    { cwd: `${here}..`, env: { ...process.env, FLEETD_CONFORMANCE: '1' } });
  let output = '';
  child.stderr.on('data', d => output += d);
  const ended = new Promise(resolve => child.on('exit', resolve));
  const address = await new Promise((resolve, reject) => {
    createInterface({ input: child.stdout }).on('line', line => {
      output += `${line}\n`;
      if (line.startsWith('{')) resolve(JSON.parse(line));
    });
    ended.then(code => reject(new Error(`the gateway ended with ${code}:\n${output}`)));
  });
  return { ...address, async stop() {
    child.stdin.end();
    assert.equal(await ended, 0, output);
  } };
}

test('the conformance suite', async t => {
  const fixtures = await startGateway();
  t.after(() => fixtures.stop());
  const door = await withToken(fixtures.url, fixtures.token);
  t.after(door.close);
  const run = (...args) => new Promise(resolve => execFile(process.execPath, ['--import', `${here}node20.mjs`, suite, 'server',
    '--url', `${door.url}/mcp`, ...args], { timeout: 600_000 },
  (err, stdout, stderr) => resolve({ code: err?.code ?? 0, output: stdout + stderr })));
  const { code, output } = await run('--expected-failures', `${here}expected-failures.yaml`);
  const summary = output.slice(output.indexOf('=== SUMMARY'));
  assert.equal(code, 0, summary || output);
  assert.match(summary, /server-initialize: 1 passed/);
  assert.match(summary, /tools-call-mixed-content: 1 passed/);
  const pending = await run('--scenario', 'json-schema-2020-12'); // not in the suite's own list yet
  assert.equal(pending.code, 0, pending.output);
});

test('each expected failure has its reason', async () => {
  const lines = (await readFile(`${here}expected-failures.yaml`, 'utf8')).split('\n').filter(l => /^\s*-/.test(l));
  assert.ok(lines.length > 0);
  for (const line of lines) assert.match(line, /^ {2}- [a-z0-9-]+ +# \S+ \S+/, line);
});
