// The published conformance suite, against /mcp. What it demands and fleetd
// refuses stands in expected-failures.yaml with the reason; the suite itself
// fails if one of these passes, or another one fails.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { test } from 'node:test';
import { here, startFleetd, withToken } from '../fleetd.mjs';

const suite = `${here}node_modules/@modelcontextprotocol/conformance/dist/index.js`;

test('the conformance suite', async t => {
  const fleetd = await startFleetd(3);
  t.after(() => fleetd.stop());
  const door = await withToken(fleetd.url, await fleetd.token('conformance', '--role', 'operator'));
  t.after(door.close);
  const { code, output } = await new Promise(resolve => execFile(process.execPath, ['--import', `${here}node20.mjs`, suite, 'server',
    '--url', `${door.url}/mcp`, '--expected-failures', `${here}expected-failures.yaml`], { timeout: 600_000 },
  (err, stdout, stderr) => resolve({ code: err?.code ?? 0, output: stdout + stderr })));
  const summary = output.slice(output.indexOf('=== SUMMARY'));
  assert.equal(code, 0, summary || output);
  assert.match(summary, /server-initialize: 1 passed/);
});

test('each expected failure has its reason', async () => {
  const lines = (await readFile(`${here}expected-failures.yaml`, 'utf8')).split('\n').filter(l => /^\s*-/.test(l));
  assert.ok(lines.length > 0);
  for (const line of lines) assert.match(line, /^ {2}- [a-z0-9-]+ +# \S+ \S+/, line);
});
