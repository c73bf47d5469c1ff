// Tests the Inspector's command line, over HTTP with a bearer token and over stdio with
// "fleetd mcp", and that of version 2, which also runs on Node 20.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { promisify } from 'node:util';
import { bin, here, startFleetd } from '../fleetd.mjs';

const exec = promisify(execFile);
const inspector = `${here}node_modules/@modelcontextprotocol/inspector/cli/build/cli.js`;
let fleetd, token, home;

before(async () => {
  home = await mkdtemp(join(tmpdir(), 'inspector-'));
  fleetd = await startFleetd(3);
  token = await fleetd.token('inspector', '--role', 'operator', '--kind', 'model', '--tools', '*');
});
after(async () => {
  await rm(home, { recursive: true, force: true });
  await fleetd?.stop();
});

const doors = {
  http: () => [`${fleetd.url}/mcp`, '--transport', 'http', '--header', `Authorization: Bearer ${token}`],
  stdio: () => ['-e', `FLEETD_URL=${fleetd.url}`, '-e', `FLEETD_TOKEN=${token}`, bin, 'mcp'],
};

for (const [name, door] of Object.entries(doors)) {
  const ask = async (...args) => {
    const { stdout } = await exec(process.execPath, [inspector, '--cli', ...door(), ...args], { timeout: 600_000 });
    return JSON.parse(stdout);
  };
  test(`the Inspector over ${name}`, async () => {
    const { tools } = await ask('--method', 'tools/list');
    assert.ok(tools.some(t => t.name === 'find_devices' && t.inputSchema && t.outputSchema), JSON.stringify(tools.map(t => t.name)));
    const found = await ask('--method', 'tools/call', '--tool-name', 'find_devices', '--tool-arg', 'q=presence:online');
    assert.equal(found.structuredContent.devices.length, 3, JSON.stringify(found));
    const { resources } = await ask('--method', 'resources/list');
    assert.ok(Array.isArray(resources));
  });
}

test('the Inspector 2 finds nothing in the schemas', async () => {
  const inspector2 = `${here}node_modules/inspector2/clients/cli/build/index.js`;
  const { stdout, stderr } = await exec(process.execPath, [inspector2, ...doors.http(), '--method', 'tools/list', '--strict'],
    { timeout: 600_000, env: { ...process.env, HOME: home, MCP_CATALOG_PATH: `${home}/mcp.json` } });
  assert.equal(JSON.parse(stdout).tools.length, 14, stdout);
  assert.doesNotMatch(stderr, /warning|error/i, stderr); // --strict prints both there
});
