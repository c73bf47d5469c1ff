// Runs the client of the TypeScript SDK 2.4 in both of its eras: with sessions,
// and without them since 2026-07-28. Without a token the client looks for OAuth.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { eventually, startFleetd } from '../fleetd.mjs';

const devices = 5;
let fleetd;

before(async () => {
  fleetd = await startFleetd(devices);
  await fleetd.rest('POST', '/policies', { name: 'ask first', tools: ['self.screen.set_theme'], kinds: ['model'],
    decision: 'require_approval' });
});
after(() => fleetd?.stop());

const eras = { legacy: '2025-11-25', auto: '2026-07-28' };

async function connect(t, mode, token, capabilities = {}, answer = null) {
  const client = new Client({ name: 'foreign', version: '2.4.0' }, { capabilities, versionNegotiation: { mode } });
  if (answer) client.setRequestHandler('elicitation/create', answer);
  await client.connect(new StreamableHTTPClientTransport(new URL(`${fleetd.url}/mcp`),
    { requestInit: { headers: { authorization: `Bearer ${token}` } } }));
  t.after(() => client.close());
  assert.equal(client.getNegotiatedProtocolVersion(), eras[mode]);
  return client;
}

for (const mode of Object.keys(eras)) {
  test(`a conversation, ${mode}`, async t => {
    const client = await connect(t, mode, await fleetd.token(`sdk2-${mode}`, '--role', 'operator', '--kind', 'model', '--tools', '*'));
    const { tools } = await client.listTools(); // from now on the SDK checks structured content against the schemas
    assert.equal(tools.length, 14);
    assert.ok(JSON.stringify(tools).length <= 16384, 'the list of tools is larger than 16 KB');
    const call = async (name, args, options) => {
      const r = await client.callTool({ name, arguments: args }, options);
      assert.ok(!r.isError, `${name}: ${JSON.stringify(r.content)}`);
      return r.structuredContent;
    };
    const found = await call('find_devices', { q: 'presence:online' });
    assert.equal(found.total, devices);
    const device = found.devices[0].id;
    assert.equal((await call('describe_device', { device })).device.id, device);
    assert.equal((await call('explain_device', { device })).device.id, device);
    assert.equal((await call('describe_tool', { tool: 'self.audio_speaker.set_volume' })).variants.length, 1);
    const loud = await call('call_device', { device, tool: 'self.audio_speaker.set_volume', arguments: { volume: 31 } });
    assert.deepEqual([loud.state, loud.arguments], ['succeeded', { volume: 31 }]);
    const steps = [];
    const many = await call('call_devices', { q: 'presence:online', tool: 'self.audio_speaker.set_volume', arguments: { volume: 20 },
      max_in_flight: 1 }, { onprogress: p => steps.push(p.progress) });
    assert.equal(many.fanout.counts.succeeded, devices);
    assert.equal(steps.at(-1), devices);

    const { resources } = await client.listResources();
    assert.equal(resources.length, devices);
    const { contents: [status] } = await client.readResource({ uri: resources[0].uri });
    assert.equal(JSON.parse(status.text).device.presence, 'online');
    assert.equal((await client.listPrompts()).prompts.length, 3);

    await assert.rejects(client.callTool({ name: 'reboot_all', arguments: {} }), e => e.code === -32602);
  });

  test(`the user is asked for an approval, ${mode}`, async t => {
    const client = await connect(t, mode, await fleetd.token(`asks-${mode}`, '--role', 'operator', '--kind', 'model', '--tools', '*'),
      { elicitation: { url: {} } }, async ({ params }) => {
        assert.equal(params.mode, 'url');
        await fleetd.rest('POST', `/approvals/${params.url.split('/').at(-1)}/approve`, { reason: 'fine' });
        return { action: 'accept' };
      });
    const { items: [device] } = await fleetd.rest('GET', '/devices?q=presence:online&limit=1');
    const r = await client.callTool({ name: 'call_device',
      arguments: { device: device.id, tool: 'self.screen.set_theme', arguments: { theme: 'dark' } } });
    assert.equal(r.structuredContent?.state, 'succeeded', JSON.stringify(r));
  });

  test(`the user enters the number of devices, ${mode}`, async t => {
    const asked = [];
    const client = await connect(t, mode, await fleetd.token(`types-${mode}`, '--role', 'operator'), { elicitation: { form: {} } },
      async ({ params }) => {
        asked.push(params.message);
        return { action: 'accept', content: { devices: devices + 1 } };
      });
    const r = await client.callTool({ name: 'call_devices', arguments: { q: 'presence:online', tool: 'self.reboot' } });
    assert.ok(r.isError && r.content[0].text.startsWith('mcp_not_confirmed'), JSON.stringify(r));
    assert.match(asked.join(), new RegExp(`^self.reboot on ${devices} devices: each restarts`));
  });
}

test('the log of a session', async t => {
  const client = await connect(t, 'legacy', await fleetd.token('logs', '--role', 'operator', '--kind', 'model', '--tools', '*'));
  const lines = [];
  client.setNotificationHandler('notifications/message', n => { lines.push(n.params); });
  await client.setLoggingLevel('notice');
  const { items: [device] } = await fleetd.rest('GET', '/devices?q=presence:online&limit=1');
  await fleetd.rest('POST', `/devices/${device.id}/hold`, { reason: 'on the bench' });
  const line = await eventually('the hold is in the log', () => lines.find(l => l.data.event === 'device_held'));
  assert.deepEqual([line.level, line.data.device, line.data.reason], ['notice', device.id, 'on the bench']);
  await fleetd.rest('POST', `/devices/${device.id}/release`, {});
});

test('without a token it says what is missing', async () => {
  const client = new Client({ name: 'foreign', version: '2.4.0' }, { versionNegotiation: { mode: 'auto' } });
  const authProvider = { redirectUrl: 'http://127.0.0.1/callback', clientMetadata: { redirect_uris: ['http://127.0.0.1/callback'] },
    clientInformation: () => undefined, saveClientInformation: () => {}, tokens: () => undefined, saveTokens: () => {},
    redirectToAuthorization: () => {}, saveCodeVerifier: () => {}, codeVerifier: () => '' };
  await assert.rejects(client.connect(new StreamableHTTPClientTransport(new URL(`${fleetd.url}/mcp`), { authProvider })), e => {
    assert.doesNotMatch(String(e), /Unexpected token/);
    assert.match(`${e} ${e.cause ?? ''}`, /no authorization server; send a token/);
    return true;
  });
});
