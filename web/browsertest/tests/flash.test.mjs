import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { after, before, test } from 'node:test';
import { chromium } from 'playwright-core';
import { install } from '../board.mjs';
import { build, flashed } from '../build.mjs';
import { testPages } from '../looks.mjs';
import { browserPath, eventually, newPage, newSession, signIn, startBrowser, startFleetd } from '../server.mjs';

const files = build();
const sha256 = bytes => createHash('sha256').update(bytes).digest('hex');
let fleetd, browser, image, session;

before(async () => {
  [fleetd, browser] = await Promise.all([startFleetd(2), startBrowser()]);
  session = await newSession(browser, fleetd.url);
});

after(async () => {
  await browser?.close();
  await fleetd?.stop();
});

/** A signed-in page with a board at its serial port. */
async function withBoard(options) {
  const page = await newPage(browser, fleetd.url, { storageState: session });
  await page.addInitScript(install, options ?? {});
  return page;
}

/** The content of the board's flash. */
const flashOf = page => page.evaluate(async () => {
  const hash = new Uint8Array(await crypto.subtle.digest('SHA-256', window.board.flash));
  return [...hash].map(b => b.toString(16).padStart(2, '0')).join('');
});

const say = page => page.locator('ewt-install-dialog');

/** Errors that a page must not log; those about a blank board that speaks no Improv are expected. */
const errors = page => page.errors.filter(e => !/Improv (initialization failed|Wi-Fi Serial not detected)|Error fetching current state: TIMEOUT/.test(e));

/** The dialog's last message. */
const message = page => say(page).evaluate(d => d.shadowRoot.querySelector('ewt-page-message')?.label ?? '');

/** Goes through the dialog until it writes. */
async function startInstall(page, erase) {
  await page.click('esp-web-install-button button');
  await say(page).locator('text=Install fleet_unit').click();
  if (erase) await say(page).locator('ew-checkbox').click();
  await say(page).locator('ew-text-button', { hasText: 'Next' }).click();
  await say(page).locator('text=Confirm Installation').waitFor();
  await say(page).locator('ew-text-button', { hasText: 'Install' }).click();
}

/**
 * Types the password again whenever the dialog loses it: a field that is still being
 * set up loses typed text, and nothing on the page shows when it is ready.
 */
async function fillPassword(page, text) {
  const field = say(page).locator('ew-filled-text-field[name=password]');
  await eventually('the field holds the password', async () => {
    await field.locator('input').fill(text);
    return field.evaluate((f, text) => f.updateComplete.then(() => f.value === text), text);
  });
}

test('without firmware for blank boards the page explains how to add it', async () => {
  const page = await withBoard();
  await page.goto('/firmware');
  await page.goto('/flash');
  assert.match(await page.locator('#choose').innerText(), /No released image includes a layout/);
  assert.equal(await page.locator('#install').count(), 0);
  await page.setInputFiles('#layouts input[type=file]', files.slice(0, 3));
  await page.click('#layouts form button');
  assert.match(await page.locator('[role=alert]').innerText(), /no application/);
  page.errors.length = 0; // the browser logs the status 422
  await page.setInputFiles('#layouts input[type=file]', files);
  await page.click('#layouts form button');
  await page.waitForURL(/\/firmware\/images\/[0-9a-f]{64}$/);
  image = page.url().split('/').pop();
  const layout = await page.locator('#layout').innerText();
  for (const part of ['0x0', '0x8000', '0xf000', '0x40000', 'otadata', 'ota_0']) assert.ok(layout.includes(part), `${part} in ${layout}`);
  await page.goto(`/firmware/releases/new?image=${image}`);
  await page.click('button[value=released]');
  await page.waitForURL(/\/firmware\/releases\/[0-9a-f-]{36}$/);
  await page.click('main >> text=Flash a board');
  await page.waitForSelector('[data-state=ready]');
  assert.deepEqual(errors(page), []);
  await page.context().close();
});

test('an image is installed on an erased board, which gets its Wi-Fi and joins', async () => {
  const page = await withBoard();
  await page.goto('/flash');
  await page.waitForSelector('[data-state=ready]');
  await startInstall(page, true);
  await say(page).locator('ewt-page-message[label="Installation complete!"]').waitFor();
  const board = await page.evaluate(() => ({ erased: board.erased, writes: board.writes, faults: board.faults, mode: board.mode, ram: board.ram }));
  assert.deepEqual(board.writes, files.map(f => [f.offset, Math.ceil(f.buffer.length / 4) * 4]));
  assert.deepEqual([board.erased, board.faults, board.mode], [true, [], 'app']);
  assert.ok(board.ram > 1000, 'the flasher stub was not loaded');
  assert.equal(await flashOf(page), sha256(flashed(files, 0xff)), 'the flash is not the parts and nothing else');

  await say(page).locator('ew-text-button', { hasText: 'Next' }).click();
  await say(page).locator('text=Configure Wi-Fi').waitFor();
  await fillPassword(page, 'secret of the lab');
  await say(page).locator('ew-text-button', { hasText: 'Connect' }).click();
  await eventually('the board has its Wi-Fi', () => page.evaluate(() => board.wifi));
  assert.deepEqual(await page.evaluate(() => board.wifi), ['lab', 'secret of the lab']);

  await poll('a0:85:e3:99:88:77');
  await page.waitForSelector('#joining >> text=esp32c3-supermini');
  const link = page.locator('#joining a', { hasText: 'A0:85:E3:99:88:77' }).or(page.locator('#joining a', { hasText: 'a0:85:e3:99:88:77' }));
  assert.match(await link.first().getAttribute('href'), /\/devices\/a085e3998877$/);
  assert.deepEqual(errors(page), [], 'what the policy forbids, or another error');
  await page.context().close();
});

/** The boot poll of the installed firmware. */
async function poll(mac) {
  const answer = await fetch(`${fleetd.url}/xiaozhi/ota/`, {
    method: 'POST', headers: { 'Device-Id': mac, 'Client-Id': '6f1c9c1e-0d0f-4c6e-9f53-0a4d3a1f2b11', 'Content-Type': 'application/json' },
    body: JSON.stringify({ version: 2, mac_address: mac, chip_model_name: 'esp32c3', application: { name: 'fleet_unit', version: '1.4.0', elf_sha256: files[3].buffer.subarray(176, 208).toString('hex') },
      board: { type: 'esp32c3-supermini', name: 'esp32c3-supermini' } }),
  });
  assert.equal(answer.status, 200);
}

test('without erasing, the content between the parts stays', async () => {
  const page = await withBoard({ old: 0x5a });
  await page.goto(`/flash?image=${image}`);
  await page.waitForSelector('[data-state=ready]');
  await startInstall(page, false);
  await say(page).locator('ewt-page-message[label="Installation complete!"]').waitFor();
  assert.equal(await page.evaluate(() => board.erased), false);
  assert.equal(await flashOf(page), sha256(flashed(files, 0x5a)));
  assert.deepEqual(errors(page), []);
  await page.context().close();
});

test('a board with another chip is refused, and stays unchanged', async () => {
  const page = await withBoard({ chip: 'esp32', old: 0x33 });
  await page.goto('/flash');
  await page.waitForSelector('[data-state=ready]');
  await startInstall(page, true);
  await eventually('a refusal', async () => /Your ESP32 board is not supported/.test(await message(page)));
  assert.equal(await flashOf(page), sha256(Buffer.alloc(4 << 20, 0x33)));
  await page.context().close();
});

test('without a chosen port, the page explains what to look for', async () => {
  const page = await withBoard({ refusePort: true });
  await page.goto('/flash');
  await page.waitForSelector('[data-state=ready]');
  await page.click('esp-web-install-button button');
  await page.locator('ewt-no-port-picked-dialog >> text=No port selected').waitFor();
  assert.deepEqual(errors(page), []);
  await page.context().close();
});

test('a browser without Web Serial gets an explanation and the command line', async () => {
  const page = await newPage(browser, fleetd.url);
  await page.addInitScript(() => { delete Navigator.prototype.serial; });
  await signIn(page);
  await page.goto('/flash');
  await page.waitForSelector('[data-state=unsupported]');
  assert.match(await page.locator('.flash-states').innerText(), /does not support Web Serial/);
  assert.ok(!await page.locator('esp-web-install-button').isVisible());
  assert.match(await page.locator('#command-line').innerText(), /esptool --chip esp32c3 --port PORT write-flash 0x0 bootloader\.bin 0x8000 /);
  assert.deepEqual(errors(page), []);
  await page.context().close();
});

test('a page from another host without https explains why there is no button', async () => {
  const other = await chromium.launch({ executablePath: browserPath,
    args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', `--host-resolver-rules=MAP fleet.test ${new URL(fleetd.url).hostname}`] });
  try {
    const page = await newPage(other, fleetd.url.replace(new URL(fleetd.url).hostname, 'fleet.test'));
    await signIn(page);
    await page.goto('/flash');
    await page.waitForSelector('[data-state=insecure]');
    assert.match(await page.locator('.flash-states').innerText(), /https/);
    assert.ok(!await page.locator('esp-web-install-button').isVisible());
  } finally {
    await other.close();
  }
});

testPages('the page', () => ({ browser, url: fleetd.url, session }), () =>
  [['/flash', '[data-state]'], `/firmware/images/${image}`]);

test('a revoked image cannot be installed, not even by an open page', async () => {
  const page = await withBoard();
  await page.goto(`/flash?image=${image}`);
  await page.waitForSelector('[data-state=ready]');
  const admin = await newPage(browser, fleetd.url, { storageState: session });
  await page.click('esp-web-install-button button');
  await say(page).locator('text=Install fleet_unit').click();
  await admin.goto(`/firmware/images/${image}`);
  await admin.click('summary:has-text("Revoke this image")');
  const form = admin.locator('form[action$="/revoke"]');
  await form.locator('input[name=reason]').fill('burns');
  await form.locator('input[name=confirm]').fill('1.4.0');
  await form.locator('button').click();
  await admin.waitForSelector('text=Revoked by admin');
  await say(page).locator('ew-text-button', { hasText: 'Next' }).click();
  await say(page).locator('ew-text-button', { hasText: 'Install' }).click();
  await eventually('a refusal', async () => /failed: 409/.test(await message(page)));
  assert.equal(await flashOf(page), sha256(Buffer.alloc(4 << 20, 0xa5)));
  await admin.context().close();
  await page.context().close();
});
