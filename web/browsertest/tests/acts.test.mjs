// The acts on a device's page: a call is in the time line at once, and a phone has one button that
// unfolds them.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { eventually, newPage, newSession, startBrowser, startFleetd } from '../server.mjs';

let fleetd, browser, session, id;

before(async () => {
  [fleetd, browser] = await Promise.all([startFleetd(2), startBrowser()]);
  session = await newSession(browser, fleetd.url);
  const page = await newPage(browser, fleetd.url, { storageState: session });
  id = await eventually('a device with a volume', async () => {
    await page.goto('/devices?q=presence:online+tool:self.audio_speaker.set_volume+tool:self.reboot');
    const link = page.locator('tbody tr a').first();
    return await link.count() ? (await link.getAttribute('href')).split('/').pop() : '';
  });
  await page.context().close();
});

after(async () => {
  await browser?.close();
  await fleetd?.stop();
});

// open opens the device's page and waits until it is live.
async function open(options) {
  const page = await newPage(browser, fleetd.url, { storageState: session, ...options });
  await page.goto(`/devices/${id}`);
  await eventually('live', () => page.locator('#live-state:not(.lost):not(:empty)').count());
  return page;
}

// hold delays calls on their way to fleetd until the returned function is called.
async function hold(page) {
  let go;
  const gone = new Promise(resolve => go = resolve);
  await page.route('**/tools/**', async route => { await gone; await route.continue(); });
  return go;
}

async function setVolume(page, volume) {
  await page.click('.quick-volume > summary');
  await page.fill('#act-volume', String(volume));
  await page.click('.quick-volume .btn-primary');
}

for (const [width, name] of [[1440, 'desktop'], [390, 'phone']]) {
  test(`a call is a row of the time line before fleetd has it, and then its entry, on a ${name}`, async () => {
    const page = await open({ viewport: { width, height: 844 } });
    const rows = page.locator('#timeline .line li');
    const go = await hold(page), before = await rows.count();
    if (width === 390) await page.click('.act-button summary');
    await setVolume(page, width % 100);
    const sending = page.locator('.line-sending');
    await sending.waitFor();
    assert.match(await sending.innerText(), /self\.audio_speaker\.set_volume\s+sending…/);
    assert.equal(await rows.count(), before + 1);
    assert.match(await rows.first().getAttribute('class'), /line-sending/, 'it is the first row');
    go();
    await page.waitForSelector(`#timeline .line li >> text="volume":${width % 100}`);
    await eventually('the entry replaces the row', async () => await sending.count() === 0);
    assert.equal(await rows.count(), before + 1);
    assert.deepEqual(page.errors, []);
    await page.context().close();
  });
}

test('a call that never arrived is no row', async () => {
  const page = await open();
  await page.route('**/tools/**', route => route.abort());
  await setVolume(page, 12);
  await page.waitForSelector('#flash .note-bad');
  await eventually('no row', async () => await page.locator('.line-sending').count() === 0);
  assert.doesNotMatch(await page.locator('#timeline').innerText(), /"volume":12/);
  await page.context().close();
});

test('a list of something else has no row for a call', async () => {
  const page = await newPage(browser, fleetd.url, { storageState: session });
  await page.goto(`/devices/${id}?show=presence`);
  const go = await hold(page);
  const sent = page.waitForRequest('**/tools/**');
  await setVolume(page, 13);
  await sent;
  assert.equal(await page.locator('.line-sending').count(), 0);
  go();
  await page.waitForSelector('#result >> text=succeeded');
  await page.context().close();
});

test('on a phone one button unfolds the acts, and a touch elsewhere or Escape folds them', async () => {
  const page = await open({ viewport: { width: 390, height: 844 }, hasTouch: true });
  const reboot = page.locator('.quick-danger > summary'), button = page.locator('.act-button summary');
  assert.equal(await reboot.isVisible(), false);
  const box = await button.boundingBox();
  assert.ok(box.width >= 44 && box.y + box.height < 844 && box.x + box.width <= 390, 'within reach');
  await button.tap();
  assert.ok(await reboot.isVisible());
  await page.touchscreen.tap(40, 200);
  assert.equal(await reboot.isVisible(), false);
  await button.focus();
  await page.keyboard.press('Enter');
  assert.ok(await reboot.isVisible(), 'by keyboard');
  await page.keyboard.press('Escape');
  assert.equal(await reboot.isVisible(), false);
  await page.context().close();

  const wide = await open();
  assert.equal(await wide.locator('.act-button').isVisible(), false);
  assert.ok(await wide.locator('.quick-danger > summary').isVisible());
  await wide.context().close();
});

test('without JavaScript the button unfolds the acts', async () => {
  const page = await newPage(browser, fleetd.url, { storageState: session, javaScriptEnabled: false, viewport: { width: 390, height: 844 } });
  await page.goto(`/devices/${id}`);
  await page.click('.act-button summary');
  await setVolume(page, 14);
  await page.waitForSelector('#result >> text=succeeded');
  await page.context().close();
});
