// Operators and their sessions, webhooks and alerts; and how the pages of settings, alerts and conversations look.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { testPages } from '../looks.mjs';
import { eventually, newPage, newSession, password, signIn, startBrowser, startFleetd } from '../server.mjs';

const mac = 'a0:85:e3:11:22:33';
let fleetd, browser, page, session, token;

const rest = async (method, path, body) => {
  const response = await fetch(`${fleetd.url}/api/v1${path}`, { method, body: body && JSON.stringify(body),
    headers: { Authorization: `Bearer ${token}`, 'Content-Type': 'application/json' } });
  assert.ok(response.ok, `${method} ${path}: ${response.status} ${await response.clone().text()}`);
  return response.status === 204 ? null : response.json();
};

before(async () => {
  [fleetd, browser] = await Promise.all([startFleetd(6, '--demo-voice', '--voice-udp-addr', '127.0.0.1:0'), startBrowser()]);
  session = await newSession(browser, fleetd.url);
  page = await newPage(browser, fleetd.url, { storageState: session });
  await page.goto('/settings');
  await page.click('summary:has-text("Create a token")');
  const form = page.locator('form[action="/settings/tokens"]');
  await form.locator('input[name=name]').fill('test');
  await form.locator('input[name=role][value=admin]').check();
  await form.locator('button.btn').click();
  token = await page.locator('.note .copyline code').textContent();
});

after(async () => {
  await browser?.close();
  await fleetd?.stop();
});

test('a device that restarts again and again is an alert', async () => {
  await rest('PATCH', '/alerts/thresholds', { open_after_ms: 0, conditions: [{ kind: 'crash_loop', count: 2 }] });
  const link = await eventually('an alert', async () => {
    await fetch(`${fleetd.url}/xiaozhi/ota/`, { method: 'POST', body: '{}',
      headers: { 'Device-Id': mac, 'Client-Id': 'c1', 'User-Agent': 'esp-box-3/2.4.2' } });
    await new Promise(r => setTimeout(r, 2500)); // polls of one device within a short time are stored as one
    await page.goto('/alerts');
    const card = page.locator('#main a[href^="/alerts/"]').first();
    return await card.count() ? card.getAttribute('href') : '';
  });
  await page.goto(link);
  await page.click('#main .menu-row > summary');
  await page.fill('input[name=note]', 'a loose cable');
  await page.click('form[action$="/acknowledge"] button');
  await page.waitForSelector('text=a loose cable');
  assert.deepEqual(page.errors, []);
});

test('an ended session leads to the sign-in, and back', async () => {
  const other = await newPage(browser, fleetd.url);
  await signIn(other);
  await other.goto('/settings/voice');
  await page.goto('/settings/account');
  const rows = page.locator('#sessions li');
  assert.ok(await rows.count() >= 2);
  assert.equal(await rows.filter({ hasText: 'this session' }).count(), 1);
  await page.click('#sessions form[action$="/sessions/end"] button');
  await page.waitForSelector('#flash >> text=/have ended/');
  assert.equal(await rows.count(), 1);
  await other.goto('/settings/voice');
  assert.equal(new URL(other.url()).pathname, '/sign-in');
  await other.fill('input[name=name]', 'admin');
  await other.fill('input[name=password]', password);
  await other.click('form:has(input[name=password]) button');
  await other.waitForURL('**/settings/voice');
  assert.deepEqual([...page.errors, ...other.errors], []);
  await other.context().close();
});

test('an admin gives a role and a password, and adds a webhook', async () => {
  const grace = await rest('POST', '/operators', { name: 'grace', role: 'viewer', password: 'long-enough-password' });
  await page.goto('/settings');
  await page.click('a:has-text("grace")');
  await page.check('input[name=role][value=operator]');
  await page.click('form[action$="/access"] button');
  await page.waitForSelector('#flash >> text=/role and scope/');
  await page.fill('input[name=password]', 'another-long-password');
  await page.click('form[action$="/password"] button');
  await page.waitForSelector('#flash >> text=/password of grace is set/');
  const other = await newPage(browser, fleetd.url);
  await signIn(other, 'grace', 'another-long-password');
  assert.equal((await rest('GET', `/operators/${grace.id}/sessions`)).items.length, 1);
  assert.equal((await other.goto('/settings/system')).status(), 403);
  await other.context().close();
  await page.goto('/settings/webhooks');
  await page.fill('input[name=name]', 'chat');
  await page.fill('input[name=url]', 'http://127.0.0.1:1/hook');
  await page.click('form[action="/settings/webhooks"] button');
  await page.waitForSelector('text=/shown only once/');
  await page.click('form[action$="/test"] button');
  await page.waitForSelector('#flash >> text=/was not delivered/');
  assert.deepEqual(page.errors, []);
});

let found;

test('there is something to look at', async () => {
  found = { talk: await eventually('a conversation', async () => (await rest('GET', '/conversations')).items[0]?.id),
    alert: (await rest('GET', '/alerts')).items[0].id, voice: (await rest('GET', '/upstreams')).items[0].id,
    operator: (await rest('GET', '/operators')).items.find(o => o.name === 'grace').id };
});

testPages('the pages', () => ({ browser, url: fleetd.url, session }), () => ['/settings', '/settings/account',
  `/settings/operators/${found.operator}`, '/settings/webhooks', '/settings/system', '/settings/voice', `/settings/voice/${found.voice}`,
  '/conversations', `/conversations/${found.talk}`, '/alerts', '/alerts?state=ended', `/alerts/${found.alert}`, '/settings/alerts']);
