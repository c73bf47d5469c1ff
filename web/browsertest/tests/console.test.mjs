import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { eventually, newPage, newSession, sendPassword, signIn, startBrowser, startFleetd } from '../server.mjs';

let fleetd, browser, session, page, device;

before(async () => {
  [fleetd, browser] = await Promise.all([startFleetd(6), startBrowser()]);
  session = await newSession(browser, fleetd.url);
  page = await newPage(browser, fleetd.url);
});

// A separate page for steps that make the browser log an error on purpose.
const visitor = () => newPage(browser, fleetd.url, { storageState: session });

async function typeTheWord(on) {
  const input = on.locator('.tool-form input[name=confirm]');
  await input.fill(await input.getAttribute('data-confirm'));
}

after(async () => {
  await browser?.close();
  await fleetd?.stop();
});

test('a wrong password is refused with a message', async () => {
  const other = await newPage(browser, fleetd.url);
  await sendPassword(other, 'admin', 'not-the-password');
  await other.waitForSelector('[role=alert]');
  assert.match(other.url(), /sign-in/);
  await other.context().close();
});

test('the operator signs in and finds the devices online', async () => {
  await signIn(page);
  await page.click('nav >> text=Devices');
  await page.waitForURL('**/devices');
  await eventually('six devices online', async () => {
    await page.goto('/devices?q=presence:online');
    return await page.locator('tbody tr').count() === 6;
  });
});

test('the filter finds one board, and is in the URL', async () => {
  await page.goto('/devices');
  await page.press('body', '/');
  await page.keyboard.type('board:esp-box-3 presence:online');
  await page.keyboard.press('Enter');
  await page.waitForURL(/q=board/);
  await eventually('two devices listed', async () => await page.locator('tbody tr').count() === 2);
  device = new URL(await page.locator('tbody tr a').first().getAttribute('href'), fleetd.url).pathname;
});

test('a bad filter is explained', async () => {
  const other = await visitor();
  await other.goto('/devices?q=colour:red');
  assert.match(await other.locator('main').innerText(), /colour/);
  await other.context().close();
});

test('the volume is set with a form generated from the schema', async () => {
  await eventually('tools listed', async () => {
    await page.goto(`${device}/tools`);
    return page.locator('text=self.audio_speaker.set_volume').first().isVisible();
  });
  await page.click('.tool-list >> text=self.audio_speaker.set_volume');
  const number = page.locator('input[type=number][data-arg=volume]').first();
  assert.equal(await number.getAttribute('max'), '100');
  await number.fill('37');
  await page.click('.tool-form button.btn-primary');
  await page.waitForSelector('#result >> text=succeeded');
  assert.match(await page.locator('#result').innerText(), /true/);
});

test('the device reports the volume it was given', async () => {
  await page.goto(`${device}/tools/self.get_device_status`);
  await page.click('.tool-form button.btn-primary');
  await page.waitForSelector('#result >> text=succeeded');
  assert.match(await page.locator('#result').innerText(), /volume\D*37/);
});

test('a value that others set appears, but never replaces typed text', async () => {
  const set = async volume => {
    const other = await visitor();
    await other.goto(device);
    await other.click('.quick-volume > summary');
    await other.fill('#act-volume', String(volume));
    await other.click('.quick-volume button');
    await other.waitForSelector('#result >> text=succeeded');
    await other.context().close();
  };
  await page.goto(device);
  await eventually('live', () => page.locator('#live-state:not(.lost):not(:empty)').count());
  await set(52);
  await eventually('it appears', async () => await page.inputValue('#act-volume') === '52' && await page.inputValue('#act-volume-range') === '52');
  await page.click('.quick-volume > summary');
  await page.fill('#act-volume', '9');
  await page.locator('h1').click(); // removes the focus from the field, and closes its menu
  await set(61);
  await page.waitForSelector('#new-pill:not([hidden])');
  assert.equal(await page.inputValue('#act-volume'), '9');
  await page.click('.quick-volume > summary');
  await page.click('.quick-volume button');
  await page.waitForSelector('#result >> text=succeeded');
  await set(37);
  await eventually('what was sent is no draft any more', async () => await page.inputValue('#act-volume') === '37');
});

test('the call is on record: who, what, when, outcome', async () => {
  await page.goto('/calls?tool=self.audio_speaker.set_volume');
  const row = page.locator('tbody tr').first();
  const text = await row.innerText();
  for (const part of ['admin', 'self.audio_speaker.set_volume', 'succeeded']) assert.ok(text.includes(part), `${part} in ${text}`);
  await page.locator('tbody tr a[href^="/calls/"]').first().click();
  await page.waitForURL(/\/calls\/[0-9a-f-]{36}/);
  assert.match(await page.locator('main').innerText(), /"volume": ?37/);
});

test('arguments that violate the schema are refused with a reason', async () => {
  const other = await visitor();
  await other.goto(`${device}/tools/self.audio_speaker.set_volume`);
  await other.evaluate(() => document.querySelectorAll('.tool-form input').forEach(i => { i.removeAttribute('max'); i.removeAttribute('type'); }));
  await other.locator('input[name="arg.volume"]').first().fill('140');
  await other.click('.tool-form button.btn-primary');
  await other.waitForSelector('text=/0 to 100/');
  await other.context().close();
});

test('a snapshot shows the uploaded picture in the page', async () => {
  await page.goto(`${device}/tools/self.screen.snapshot`);
  await page.click('.tool-form button.btn-primary');
  const picture = page.locator('#result img');
  await picture.waitFor();
  await eventually('the picture is decoded', () => picture.evaluate(i => i.complete && i.naturalWidth === 320));
});

test('a reboot asks for a typed word, and is judged by evidence', async () => {
  await page.goto(`${device}/tools/self.reboot`);
  const button = page.locator('.tool-form .btn-danger');
  assert.ok(await button.isDisabled(), 'enabled before the word was typed');
  await typeTheWord(page);
  await button.click();
  await page.waitForSelector('#result >> text=succeeded');
});

test('a call to many devices shows its preview, then its progress', async () => {
  await page.goto('/fanouts/new?q=presence:online&tool=self.audio_speaker.set_volume');
  await page.locator('input[name="arg.volume"]').first().fill('21');
  await page.locator('main form button.btn-primary').last().click();
  await page.waitForSelector('text=/[56] devices?/');
  await page.locator('main form button.btn-primary').last().click();
  await page.waitForURL(/\/fanouts\/[0-9a-f-]{36}/);
  await page.waitForSelector('text=completed');
});

test('presence changes arrive without a reload', async () => {
  await page.goto('/devices');
  const href = await page.locator('tbody tr a').first().getAttribute('href');
  // A restart is short: the page records the texts of its row meanwhile.
  await page.evaluate(href => {
    window.said = [];
    const note = () => {
      const text = document.querySelector(`tbody tr:has(a[href="${href}"])`)?.innerText ?? '';
      const word = text.match(/offline|online/)?.[0];
      if (word && word !== window.said.at(-1)) window.said.push(word);
    };
    note();
    new MutationObserver(note).observe(document.body, { childList: true, subtree: true, characterData: true });
  }, href);
  const other = await visitor();
  await other.goto(`${href}/tools/self.reboot`);
  await typeTheWord(other);
  await other.locator('.tool-form .btn-danger').click();
  await eventually('offline, then online again', () => page.evaluate(() => window.said.join() === 'online,offline,online'));
  await other.context().close();
});

test('without JavaScript the same form works', async () => {
  const plain = await newPage(browser, fleetd.url, { javaScriptEnabled: false });
  await signIn(plain);
  await plain.goto(`${device}/tools/self.audio_speaker.set_volume`);
  await plain.locator('input[name="arg.volume"]').first().fill('11');
  await plain.click('.tool-form button.btn-primary');
  await plain.waitForSelector('text=succeeded');
  await plain.context().close();
});

test('pages are in Chinese for operators who choose it', async () => {
  const zh = await newPage(browser, fleetd.url, { locale: 'zh-CN' });
  await signIn(zh);
  assert.match(await zh.locator('nav').first().innerText(), /设备/);
  await zh.context().close();
});

test('no page logged an error', () => assert.deepEqual(page.errors, []));
