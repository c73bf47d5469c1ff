// Programs of others dial in: a server and a client of the TypeScript SDK, over its own
// WebSocket transport, on the socket library of most Node programs.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { WebSocketClientTransport } from '@modelcontextprotocol/sdk/client/websocket.js';
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import WebSocket from 'ws';
import { eventually, startFleetd } from '../fleetd.mjs';

globalThis.WebSocket = WebSocket; // Node 20 has none

let fleetd;
before(async () => { fleetd = await startFleetd(0); });
after(() => fleetd?.stop());

const dial = path => new WebSocketClientTransport(new URL(fleetd.url.replace('http', 'ws') + path));

/** Starts a provider and returns it with the number of calls it has had. */
async function provide(path) {
  const server = new McpServer({ name: 'typescript', version: '3.2.1' });
  const provider = { server, calls: 0, closed: false };
  server.registerTool('self.pc.hostname', { description: 'Name of this computer', inputSchema: {} }, async () => {
    provider.calls++;
    return { content: [{ type: 'text', text: 'workshop' }] };
  });
  const transport = dial(path);
  await server.connect(transport);
  server.server.onclose = () => { provider.closed = true; };
  return provider;
}

test('a server dials in, and a client calls its tools through fleetd', async () => {
  const made = await fleetd.rest('POST', '/endpoints', { name: 'typescript' });
  const provider = await provide(made.path);
  await eventually('connected', async () => (await fleetd.rest('GET', '/endpoints/typescript')).connected);
  const { server_name, protocol } = await fleetd.rest('GET', '/endpoints/typescript');
  assert.equal(server_name, 'typescript');
  assert.match(protocol, /^202/);
  await eventually('tools', async () => (await fleetd.rest('GET', '/devices/endpoint.typescript')).tools_count === 1);

  const { path } = await fleetd.rest('POST', '/endpoints/typescript/token', { kind: 'consumer' });
  const client = new Client({ name: 'consumer', version: '1' });
  await client.connect(dial(path));
  const { tools } = await client.listTools();
  assert.deepEqual(tools.map(t => t.name), ['self.pc.hostname']);
  const result = await client.callTool({ name: 'self.pc.hostname', arguments: {} });
  assert.equal(result.content[0].text, 'workshop');
  await client.ping();
  await assert.rejects(client.listPrompts());
  assert.equal(provider.calls, 1);

  // A second program with the same token replaces the first.
  const second = await provide(made.path);
  await eventually('replaced', async () => provider.closed);
  await eventually('reconnected', async () => (await fleetd.rest('GET', '/endpoints/typescript')).connected);
  await client.callTool({ name: 'self.pc.hostname', arguments: {} });
  assert.deepEqual([provider.calls, second.calls], [1, 1]);

  await fleetd.rest('DELETE', '/endpoints/typescript');
  await eventually('both are disconnected', async () => second.closed);
  await assert.rejects(dial(made.path).start());
});
