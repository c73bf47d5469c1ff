// The tasks of those who run a fleet, with their number of clicks. Each begins at the overview; typed words, keys and
// choices from a list are not clicks.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { countClicks } from '../clicks.mjs';
import { eventually, newPage, newSession, restWith, signIn, startBrowser, startFleetd } from '../server.mjs';

const devices = 60;
let fleetd, browser, session, page, phone, rest;
const { click, add, reset, atMost, task } = countClicks(() => page);
const onPhone = countClicks(() => phone);

before(async () => {
  [fleetd, browser] = await Promise.all([startFleetd(devices), startBrowser()]);
  session = await newSession(browser, fleetd.url);
  page = await newPage(browser, fleetd.url, { storageState: session });
  phone = await newPage(browser, fleetd.url, { storageState: session, viewport: { width: 390, height: 844 }, isMobile: true, hasTouch: true });
  await page.goto('/settings');
  rest = restWith(fleetd.url, await newToken());
  await eventually('the fleet is online', async () => (await rest('GET', '/stats')).presence.online === devices);
});

after(async () => {
  await browser?.close();
  await fleetd?.stop();
});

async function newToken(kind = 'program', role = 'admin') {
  await click('summary:has-text("Create a token")');
  const form = page.locator('form[action="/settings/tokens"]');
  await form.locator('input[name=name]').fill(`${kind}-${role}`);
  if (kind !== 'program') { add(); await form.locator(`input[name=kind][value=${kind}]`).check(); }
  if (role !== 'viewer') { add(); await form.locator(`input[name=role][value=${role}]`).check(); }
  await click('form[action="/settings/tokens"] .btn-primary');
  return page.locator('.copyline code').first().textContent();
}

task('tagging all devices', 5, async () => {
  await click('nav >> text=Devices');
  await click('input[data-select-all]');
  await click('.actbar input[name=all]');
  await click('.actbar button[value=tag]');
  await page.fill('input[name=tags]', 'site-1/room-2');
  await page.keyboard.press('Enter');
  await click('form:has(input[name=step][value=apply]) .btn-primary');
  await page.waitForSelector('.toast');
  assert.equal((await rest('GET', '/devices?q=tag:site-1/room-2&limit=200')).items.length, devices);
});

test('a tag is completed by keyboard', async () => {
  const id = (await rest('GET', '/devices?limit=1')).items[0].id;
  await page.goto(`/devices/${id}`);
  await page.click('#device-head details:has(input[name=tags]) > summary');
  const field = page.locator('#device-head input[name=tags]');
  await field.fill('attic, si');
  await page.waitForSelector('#completion [role=option]:has-text("site-1/room-2")');
  await page.keyboard.press('ArrowDown');
  await page.keyboard.press('Enter');
  assert.equal(await field.inputValue(), 'attic, site-1/room-2 ');
  assert.equal(await page.locator('#completion').count(), 0);
  assert.deepEqual(page.errors, []);
});

task('undoing it', 1, async () => {
  await page.goto('/devices'); // without the message
  await rest('POST', '/devices/bulk', { act: 'untag', q: 'tag:site-1/room-2', tags: ['site-1/room-2'] });
  reset();
  const first = (await rest('GET', '/devices?limit=1')).items[0].id;
  await page.goto(`/devices/${first}`);
  await page.evaluate(() => {
    const form = document.querySelector('form[action$="/edit"]:has(input[name=tags])');
    form.closest('details').open = true;
  });
  await page.fill('form[action$="/edit"] input[name=tags]', 'attic');
  await page.keyboard.press('Enter');
  await page.waitForSelector('.toast');
  await click('.toast button');
  await page.waitForSelector('.toast:has-text("Undone")');
  assert.equal((await rest('GET', '/devices?q=tag:attic')).items.length, 0);
});

task('calling all devices, and seeing who said what', 5, async () => {
  await click('nav >> text=Devices');
  await click('input[data-select-all]');
  await click('.actbar input[name=all]');
  await click('.actbar button[value=call]');
  await page.selectOption('select[name=tool]', 'self.get_device_status');
  await page.locator('form:has(input[name=step][value=preview]) input:visible').first().press('Enter');
  await click('main .btn-primary:has-text("Call ")');
  await page.waitForURL(/\/fanouts\/[0-9a-f-]{36}$/);
  await page.waitForSelector('.answers li, .answers tr');
  await page.waitForSelector('text=/completed/');
});

task('seeing who rebooted a device last week', 3, async () => {
  const id = (await rest('GET', '/devices?q=tool:self.reboot&limit=1')).items[0].id;
  await rest('POST', `/devices/${id}/calls`, { tool: 'self.reboot' }).catch(() => {});
  await page.goto('/');
  await click('nav >> text=Activity');
  await page.fill('input[name=tool]', 'self.reboot');
  await click('.timefield:has(input[name=since]) > button');
  await click('.timepick-presets button:last-child');
  await page.waitForURL(/since=/);
  await page.waitForSelector('#main tbody tr:has-text("program-admin")');
});

task('the adoption of a version over 30 days', 2, async () => {
  await click('main a[href^="/dashboards"], .subnav a[href="/dashboards"]');
  await click('.filters a[href*="30d"], .filters a:has-text("30")');
  await page.waitForURL(/30d/);
  await page.waitForSelector('.filters [aria-current=true]:has-text("30")');
});

task('a token for a model, ready to paste', 4, async () => {
  await click('nav >> text=Settings');
  await newToken('model', 'viewer');
  await page.waitForSelector('text=/mcp/');
});

// alertAbout makes a board restart until an alert is open.
async function alertAbout(board) {
  await rest('PATCH', '/alerts/thresholds', { open_after_ms: 0, conditions: [{ kind: 'crash_loop', count: 2 }] });
  await eventually('an alert', async () => {
    await fetch(`${fleetd.url}/xiaozhi/ota/`, { method: 'POST', body: '{}',
      headers: { 'Device-Id': board, 'Client-Id': 'c1', 'User-Agent': 'esp-box-3/2.4.2' } });
    await new Promise(r => setTimeout(r, 2500)); // polls of one device within a short time are stored as one
    return (await rest('GET', '/alerts?state=open')).items.some(a => a.state === 'open');
  });
}

const acknowledged = async () => (await rest('GET', '/alerts?state=open')).items.filter(a => a.state === 'acknowledged').map(a => a.note);

task('acknowledging an alert', 2, async () => {
  await alertAbout('a0:85:e3:99:22:33');
  await page.goto('/');
  await click('#alerts-now .menu-row > summary');
  await page.fill('#alerts-now input[name=note]', 'a loose cable');
  await click('#alerts-now form[action$="/acknowledge"] button');
  await page.waitForSelector('#alerts-now .is-acknowledged');
  assert.deepEqual(await acknowledged(), ['a loose cable']);
});

onPhone.task('acknowledging an alert on a phone', 2, async () => {
  // The alert opens again, because twice as many devices restart again and again.
  await alertAbout('a0:85:e3:99:22:44');
  await phone.goto('/');
  await onPhone.click('#alerts-now .menu-row > summary');
  await phone.fill('#alerts-now input[name=note]', 'two loose cables');
  await onPhone.click('#alerts-now form[action$="/acknowledge"] button');
  await phone.waitForSelector('#alerts-now .is-acknowledged');
  assert.deepEqual(await acknowledged(), ['two loose cables']);
});

test('approving on a phone takes at most 3 clicks', async () => {
  await rest('POST', '/policies', { name: 'volume', decision: 'require_approval', enabled: true, tools: ['self.audio_speaker.*'] });
  const caller = (await rest('POST', '/tokens', { name: 'script', kind: 'program', role: 'operator' })).token;
  const id = (await rest('GET', '/devices?q=tool:self.audio_speaker.set_volume+presence:online&limit=1')).items[0].id;
  const asked = await rest('POST', `/devices/${id}/calls`, { tool: 'self.audio_speaker.set_volume', arguments: { volume: 30 } }, caller);
  // The maker of a token may not approve its calls.
  await rest('POST', '/operators', { name: 'grace', role: 'admin', password: 'long-enough-password' });
  const phone = await newPage(browser, fleetd.url, { viewport: { width: 390, height: 844 }, isMobile: true, hasTouch: true });
  await signIn(phone, 'grace', 'long-enough-password');
  reset();
  await phone.goto('/');
  await click('.top a[href="/approvals"]', phone);
  await click('main a[href^="/approvals/"]', phone);
  await click('main form button:has-text("Approve")', phone);
  await eventually('the call goes on', async () => (await rest('GET', `/calls/${asked.id}`)).state !== 'pending_approval');
  atMost(3);
  assert.deepEqual(phone.errors, []);
  await phone.context().close();
});

test('a swipe leads to the next tab of a device, and back', async () => {
  const id = (await rest('GET', '/devices?q=presence:online&limit=1')).items[0].id;
  const phone = await newPage(browser, fleetd.url, { storageState: session, viewport: { width: 390, height: 844 }, isMobile: true, hasTouch: true });
  const input = await phone.context().newCDPSession(phone);
  const swipe = async (from, to) => {
    await input.send('Input.dispatchTouchEvent', { type: 'touchStart', touchPoints: [{ x: from, y: 160 }] });
    await input.send('Input.dispatchTouchEvent', { type: 'touchMove', touchPoints: [{ x: (from + to) / 2, y: 160 }] });
    await input.send('Input.dispatchTouchEvent', { type: 'touchMove', touchPoints: [{ x: to, y: 160 }] });
    await input.send('Input.dispatchTouchEvent', { type: 'touchEnd', touchPoints: [] });
  };
  await phone.goto(`/devices/${id}`);
  await swipe(320, 60);
  await phone.waitForURL(`**/devices/${id}/*`);
  const second = phone.url();
  await swipe(60, 320);
  await phone.waitForURL(`**/devices/${id}`);
  await swipe(320, 290); // too short
  await swipe(60, 320); // there is none before the first
  await new Promise(r => setTimeout(r, 500));
  assert.notEqual(phone.url(), second);
  assert.equal(new URL(phone.url()).pathname, `/devices/${id}`);
  assert.deepEqual(phone.errors, []);
  await phone.context().close();
});

task('revoking a session', 3, async () => {
  const other = await newSession(browser, fleetd.url);
  await page.goto('/');
  await click('.top .menu > summary');
  await click('.top a[href="/settings/account"]');
  await click('#sessions form[action*="/sessions/"] button');
  await page.waitForSelector('#flash >> text=/ended/');
  const ended = await newPage(browser, fleetd.url, { storageState: other });
  await ended.goto('/devices');
  assert.equal(new URL(ended.url()).pathname, '/sign-in');
  await ended.context().close();
});
