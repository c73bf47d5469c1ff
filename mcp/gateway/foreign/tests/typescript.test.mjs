// Runs a session of the TypeScript SDK's client: find, read, call, a fan-out with
// progress, cancel.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { eventually, startFleetd } from '../fleetd.mjs';

const devices = 12;
let fleetd;

before(async () => { fleetd = await startFleetd(devices); });
after(() => fleetd?.stop());

async function connect(token, path = '/mcp') {
  const client = new Client({ name: 'foreign', version: '1.0.0' });
  await client.connect(new StreamableHTTPClientTransport(new URL(fleetd.url + path),
    { requestInit: { headers: { authorization: `Bearer ${token}` } } }));
  return client;
}

test('a session', async t => {
  const client = await connect(await fleetd.token('typescript', '--role', 'operator', '--kind', 'model', '--tools', '*'));
  t.after(() => client.close());
  const { tools } = await client.listTools(); // from now on the SDK checks structured content against the schemas
  const call = async (name, args, options) => {
    const r = await client.callTool({ name, arguments: args }, undefined, options);
    assert.ok(!r.isError, `${name}: ${JSON.stringify(r.content)}`);
    return r.structuredContent;
  };
  assert.equal(tools.length, 14);

  const found = await call('find_devices', { q: 'presence:online' });
  assert.equal(found.total, devices);
  const device = found.devices[0].id;

  const read = await call('read_device', { device, tool: 'self.get_device_status' });
  assert.equal(read.state, 'succeeded');
  assert.match(read.device_text.text, /audio_speaker/);

  const loud = await call('call_device', { device, tool: 'self.audio_speaker.set_volume', arguments: { volume: 33 }, purpose: 'a test' });
  assert.equal(loud.state, 'succeeded');
  const got = await call('get_call', { id: loud.id });
  assert.equal((got.call ?? got).arguments.volume, 33);
  const record = await fleetd.rest('GET', `/calls/${loud.id}`);
  assert.deepEqual([record.state, record.actor.kind, record.actor.name], ['succeeded', 'model', 'typescript']);

  const wrong = await client.callTool({ name: 'call_device',
    arguments: { device, tool: 'self.audio_speaker.set_volume', arguments: { volume: 133 } } });
  assert.ok(wrong.isError);
  assert.match(JSON.stringify(wrong.content), /100/, 'the error does not say which values are allowed');
  const reboot = await client.callTool({ name: 'call_device', arguments: { device, tool: 'self.reboot' } });
  assert.ok(reboot.isError, 'a model restarted a device');

  const plan = await call('call_devices', { q: 'presence:online', tool: 'self.audio_speaker.set_volume', arguments: { volume: 20 }, dry_run: true });
  assert.equal(plan.plan.targets, devices);
  const steps = [];
  const many = await call('call_devices', { q: 'presence:online', tool: 'self.audio_speaker.set_volume', arguments: { volume: 20 },
    max_in_flight: 1 }, { onprogress: p => steps.push(p) });
  assert.equal(many.fanout.done, devices);
  assert.equal(many.fanout.counts.succeeded, devices);
  assert.ok(steps.every((s, i) => i === 0 || s.progress >= steps[i - 1].progress), JSON.stringify(steps));
});

test('one device and its own tools', async t => {
  const token = await fleetd.token('device', '--role', 'operator', '--kind', 'model', '--tools', '*');
  const { items: [device] } = await fleetd.rest('GET', '/devices?q=presence:online&limit=1');
  const client = await connect(token, `/mcp/devices/${device.id}`);
  t.after(() => client.close());
  const { tools } = await client.listTools();
  assert.ok(tools.some(x => x.name === 'self.audio_speaker.set_volume'), tools.map(x => x.name).join());
  assert.ok(!tools.some(x => /reboot|upgrade/.test(x.name)), 'a tool for people is listed for models');
  const loud = await client.callTool({ name: 'self.audio_speaker.set_volume', arguments: { volume: 21 } });
  assert.ok(!loud.isError, JSON.stringify(loud.content));
  const { items: [record] } = await fleetd.rest('GET', `/devices/${device.id}/calls?limit=1`);
  assert.deepEqual([record.tool, record.arguments.volume, record.state, record.actor.name],
    ['self.audio_speaker.set_volume', 21, 'succeeded', 'device']);
  await assert.rejects(client.callTool({ name: 'self.reboot', arguments: {} }));
});

test('a call that needs approval', async t => {
  const client = await connect(await fleetd.token('asker', '--role', 'operator', '--kind', 'model', '--tools', '*'));
  t.after(() => client.close());
  const { items: [device] } = await fleetd.rest('GET', '/devices?q=presence:online&limit=1');
  await fleetd.rest('POST', '/policies', { name: 'ask first', tools: ['self.screen.set_theme'], kinds: ['model'],
    decision: 'require_approval', position: 0 }).catch(() => fleetd.rest('POST', '/policies', { name: 'ask first',
    tools: ['self.screen.set_theme'], kinds: ['model'], decision: 'require_approval' }));
  const asked = await client.callTool({ name: 'call_device',
    arguments: { device: device.id, tool: 'self.screen.set_theme', arguments: { theme: 'dark' }, purpose: 'a test' } });
  assert.match(JSON.stringify(asked), /pending_approval/);
  const { items: [approval] } = await eventually('it is asked for', async () => {
    const page = await fleetd.rest('GET', '/approvals');
    return page.items.length && page;
  });
  const { items: [waiting] } = await fleetd.rest('GET', '/calls?state=pending_approval');
  await fleetd.rest('POST', `/approvals/${approval.id}/approve`, { reason: 'fine' });
  await eventually('the call is made', async () => {
    const r = await client.callTool({ name: 'get_call', arguments: { id: waiting.id } });
    return (r.structuredContent.call ?? r.structuredContent).state === 'succeeded';
  });
});

// A call that waits for its turn is withdrawn when its client cancels; a call that
// was sent goes on, and its outcome is on record.
test('cancelled calls', async t => {
  fleetd.simulate('--devices', '1', '--first-mac', '02:00:00:fe:00:01', '--faults', 'slow=15s:100%', '--boot-delay', '0s');
  const device = '020000fe0001';
  await eventually('the slow device has tools', async () =>
    (await fleetd.rest('GET', '/devices?q=presence:online&limit=500')).items.some(d => d.id === device && d.tools_count > 0));
  const client = await connect(await fleetd.token('hasty', '--role', 'operator', '--kind', 'model', '--tools', '*'));
  t.after(() => client.close());
  const begin = async volume => {
    const stop = new AbortController();
    const gone = assert.rejects(client.callTool({ name: 'call_device',
      arguments: { device, tool: 'self.audio_speaker.set_volume', arguments: { volume }, timeout_ms: 60_000 } }, undefined,
    { signal: stop.signal }));
    return { cancel: async () => { stop.abort('enough'); await gone; },
      reaches: state => eventually(`the call with volume ${volume} is ${state}`, async () => {
        const { items } = await fleetd.rest('GET', '/calls?actor=hasty');
        const found = items.filter(c => c.arguments.volume === volume);
        assert.ok(found.length <= 1, 'the call is on record twice');
        return found[0]?.state === state && found[0];
      }) };
  };
  const first = await begin(44);
  await first.reaches('sent');
  const second = await begin(55);
  await second.reaches('pending');
  await second.cancel();
  assert.equal((await second.reaches('canceled')).sent_at, null);
  await first.cancel();
  const record = await first.reaches('succeeded');
  assert.ok(record.duration_ms >= 14_000, `the device takes 15 s, and answered after ${record.duration_ms} ms`);
  assert.deepEqual([record.actor.kind, record.error], ['model', null]);
  assert.ok((await client.listTools()).tools.length);
});
