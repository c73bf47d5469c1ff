// Every page, in common widths, and the weight of the first one.
import assert from 'node:assert/strict';
import { gzipSync } from 'node:zlib';
import { after, before, test } from 'node:test';
import { complaints, testPages } from '../looks.mjs';
import { eventually, newPage, newSession, startBrowser, startFleetd } from '../server.mjs';

let fleetd, browser, session, device, call, hostile, answers, shots;

before(async () => {
  [fleetd, browser] = await Promise.all([startFleetd(3), startBrowser()]);
  session = await newSession(browser, fleetd.url);
  const page = await newPage(browser, fleetd.url, { storageState: session });
  device = await eventually('a device with tools', async () => {
    await page.goto('/devices?q=board:esp-box-3+tool:self.reboot');
    const link = page.locator('tbody tr a').first();
    return await link.count() ? link.getAttribute('href') : '';
  });
  await page.goto(`${device}/tools/self.get_device_status`);
  await page.click('.tool-form button.btn-primary');
  await page.waitForSelector('#result >> text=succeeded');
  await page.goto('/calls');
  call = await page.locator('tbody tr a[href^="/calls/"]').first().getAttribute('href');
  answers = await callMany(page);
  shots = await takePictures(page);
  await awaitApproval(page);
  hostile = await addHostile(page);
  await page.context().close();
});

// A bulk call whose page groups the answers.
async function callMany(page) {
  await page.goto('/fanouts/new?q=presence:online&tool=self.get_device_status');
  await page.locator('main form button.btn-primary').last().click();
  await page.waitForSelector('text=/[1-9] devices?/');
  await page.locator('main form button.btn-primary').last().click();
  await page.waitForURL(/\/fanouts\/[0-9a-f-]{36}/);
  await page.waitForSelector('.answers li');
  return new URL(page.url()).pathname;
}

// Two pictures of the device's screen.
async function takePictures(page) {
  await page.goto(`${device}/screen`);
  for (let i = 0; i < 2; i++) {
    await page.click('.snapform button');
    await eventually(`picture ${i + 1} is in the gallery`, async () => {
      await page.goto(`${device}/screen`);
      return await page.locator('.gallery input[name=p]').count() > i;
    });
  }
  return page.locator('.gallery input[name=p]').evaluateAll(boxes => boxes.map(b => b.value));
}

// A call that waits for an approval: each page shows the count next to an icon.
async function awaitApproval(page) {
  await page.goto('/settings/policies');
  const form = page.locator('#add form[action="/settings/policies"]');
  const version = await form.locator('input[name=version]').inputValue();
  const send = (path, fields) => page.request.post(path, { form: fields, maxRedirects: 0, headers: { Origin: fleetd.url } });
  const tool = 'self.screen.set_brightness';
  await send('/settings/policies', { name: 'dim', decision: 'require_approval', enabled: '1', tools: tool, version });
  await eventually('a call waits for an approval', async () => {
    await send(`${device}/tools/${tool}`, { 'arg.brightness': '20' });
    await page.goto('/approvals');
    return page.locator('#approvals-badge.badge').count();
  }, 30_000);
}

// A board whose texts are all as long, or as odd, as the server accepts.
async function addHostile(page) {
  await fetch(`${fleetd.url}/xiaozhi/ota/`, { method: 'POST',
    headers: { 'Device-Id': 'a0:85:e3:00:00:99', 'Client-Id': 'c-hostile', 'User-Agent': `${'wide-board-'.repeat(6)}/9` },
    body: JSON.stringify({ application: { name: 'x'.repeat(60), version: `2.4.2-${'rc'.repeat(28)}` }, board: { type: 'wide-board-'.repeat(6) } }) });
  const path = '/devices/a085e3000099';
  await eventually('the hostile board is listed', async () => (await page.goto(path)).status() === 200);
  const edit = async (field, value) => {
    const menu = page.locator(`#device-head details:has(input[name=${field}])`);
    await menu.locator('> summary').click();
    await menu.locator(`input[name=${field}]`).fill(value);
    await menu.locator('button.btn-primary').click();
  };
  await edit('name', `\u202e${'مختبر'.repeat(8)}👩‍🔬${'W'.repeat(40)}`);
  await page.waitForSelector('#device-head h1 >> text=/W{10}/');
  await edit('tags', Array.from({ length: 8 }, (_, i) => `${'t'.repeat(28)}${i}`).join(' '));
  await page.waitForSelector('#device-head .tag >> text=/t{10}/');
  return path;
}

after(async () => {
  await browser?.close();
  await fleetd?.stop();
});

const wide = () => ['/', '/devices', device, hostile, `${device}/tools/self.audio_speaker.set_volume`, '/calls', call, '/audit', '/fanouts', answers,
  '/approvals', '/alerts', '/campaigns', '/firmware', '/settings', '/settings/policies', '/settings/voice', '/settings/serials'];

const all = () => [...wide(), `${hostile}/facts`, `${hostile}/firmware`, '/devices?q=nothing-matches', `${device}/tools`, `${device}/tools/self.reboot`, `${device}/configuration`,
  `${device}/firmware`, `${device}/screen`, `${device}/screen?kind=camera`, `/pictures/${shots[0]}`,
  `/pictures/compare?a=${shots[0]}&b=${shots[1]}`, `/pictures/compare?a=${shots[0]}&b=${shots[1]}&view=overlay`, `${answers}/pictures`, `${device}/facts`, `${device}/activity`, `/bulk?act=tag&all=1&q=`, '/import', '/claim',
  '/conversations', '/find?q=box', '/alerts?state=ended', '/approvals?state=decided', '/settings/alerts', '/settings/keys', '/settings/redaction', '/settings/log-streams', '/audit/record', '/history', '/dashboards', '/dashboards?range=1y', '/changes', '/places', `/places/${'t'.repeat(28)}0`,
  `/fanouts/new?q=&tool=self.audio_speaker.set_volume`, '/help'];

testPages('all pages', () => ({ browser, url: fleetd.url, session }), all);

test('nothing scrolls sideways between a phone and a desktop', async () => {
  const page = await newPage(browser, fleetd.url, { storageState: session });
  const found = [];
  for (const width of [600, 768, 1000, 1180]) {
    await page.setViewportSize({ width, height: 800 });
    for (const path of wide()) {
      found.push(...(await complaints(page, path, { accessible: false })).map(c => `${width}: ${c}`));
    }
  }
  assert.deepEqual(found, []);
  await page.context().close();
});

test('the first page is under 60 kB gzipped, without fonts', async () => {
  const page = await newPage(browser, fleetd.url);
  const sizes = [];
  page.on('response', r => {
    if (r.status() !== 200 || r.request().resourceType() === 'font') return;
    sizes.push(r.body().then(body => [new URL(r.url()).pathname, gzipSync(body).length]));
  });
  await page.goto('/sign-in', { waitUntil: 'networkidle' });
  const sent = await Promise.all(sizes), bytes = sent.reduce((sum, [, size]) => sum + size, 0);
  assert.ok(sent.length > 4 && bytes < 60_000, `${bytes} bytes: ${sent.join(' ')}`);
  await page.context().close();
});
