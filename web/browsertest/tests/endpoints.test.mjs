// Adds an endpoint by its form, connects a provider with the address that is shown once, calls its
// tool, and ends the connection with a new token.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { newPage, signIn, startBrowser, startFleetd } from '../server.mjs';

let fleetd, browser;
before(async () => { [fleetd, browser] = await Promise.all([startFleetd(1), startBrowser()]); });
after(async () => {
  await browser?.close();
  await fleetd?.stop();
});

// Connects an MCP server with one tool to the address, from another page of the browser: Node has
// no WebSocket before version 22. Returns a function that waits for the end of the connection.
async function provide(address) {
  const context = await browser.newContext();
  const page = await context.newPage();
  await page.evaluate(address => {
    const answers = {
      initialize: ({ protocolVersion }) => ({ protocolVersion, capabilities: { tools: {} }, serverInfo: { name: 'workshop <b>tools</b>', version: '1.4.2' } }),
      'tools/list': () => ({ tools: [{ name: 'get_temperature', description: 'Temperature', inputSchema: { type: 'object', properties: {} } }] }),
      'tools/call': () => ({ content: [{ type: 'text', text: 'it is 21 degrees' }] }),
      ping: () => ({}),
    };
    const socket = new WebSocket(address);
    socket.onmessage = ({ data }) => {
      const { id, method, params } = JSON.parse(data);
      if (id !== undefined) socket.send(JSON.stringify({ jsonrpc: '2.0', id, result: answers[method](params) }));
    };
    window.ended = new Promise(resolve => { socket.onclose = resolve; });
  }, address);
  return () => page.evaluate(() => window.ended.then(() => true));
}

test('an endpoint is added, connected, called, issued again and deleted', async () => {
  const page = await newPage(browser, fleetd.url);
  await signIn(page);
  await page.goto('/settings/endpoints');
  await page.waitForSelector('#endpoints .empty');
  await page.fill('#add [name=name]', 'No Name');
  await page.click('#add button.btn-primary');
  await page.waitForSelector('#add .problem');
  await page.fill('#add [name=name]', 'workshop-pc');
  await page.click('#add button.btn-primary');
  await page.waitForSelector('#secret');
  const address = await page.textContent('#secret code');
  assert.match(address, /^ws:\/\/127\.[\d.]+:8080\/mcp_endpoint\/mcp\/\?token=fep_[0-9a-f]{64}$/);
  assert.equal(await page.getAttribute('#secret .copy', 'data-copy'), address);
  assert.doesNotMatch(page.url(), /fep_/);

  await page.goto('/settings/endpoints');
  await page.waitForSelector('#endpoint-workshop-pc .is-away');
  const ended = await provide(address);
  await page.waitForSelector('#endpoint-workshop-pc .is-connected'); // without a reload
  assert.match(await page.textContent('#endpoint-workshop-pc'), /workshop <b>tools<\/b> 1\.4\.2/);

  await page.click('#endpoint-workshop-pc a[href="/devices/endpoint.workshop-pc"]');
  await page.waitForSelector('#device-brief a[href="/settings/endpoints/workshop-pc"]');
  await page.goto('/devices/endpoint.workshop-pc/tools/get_temperature');
  await page.click('.tool-form button.btn-primary');
  await page.waitForSelector('#result .is-succeeded');
  assert.match(await page.textContent('#result'), /it is 21 degrees/);

  await page.goto('/settings/endpoints/workshop-pc');
  assert.doesNotMatch(await page.content(), /fep_[0-9a-f]{64}/);
  await page.click('#token-provider summary >> nth=0');
  await page.click('#token-provider form >> nth=0 >> button');
  await page.waitForSelector('#secret');
  const next = await page.textContent('#secret code');
  assert.notEqual(next, address);
  assert.ok(await ended());
  await page.waitForSelector('#endpoint-now .is-away');
  assert.match(await page.textContent('#endpoint-now'), /revoked or issued again/);

  await page.click('#delete > summary');
  await page.fill('#delete [name=confirm]', 'workshop-pc');
  await page.click('#delete button');
  await page.waitForURL(/\/settings\/endpoints$/);
  await page.waitForSelector('#endpoints .empty');
  assert.deepEqual(page.errors.filter(e => !/422/.test(e)), []);
  await page.context().close();
});
