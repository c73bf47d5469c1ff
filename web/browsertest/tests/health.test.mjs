// The pages of a device that runs the included firmware, with virtual devices:
// health, configuration, log and crashes.
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { after, before, test } from 'node:test';
import { testPages } from '../looks.mjs';
import { eventually, newPage, newSession, startBrowser, startFleetd } from '../server.mjs';

const bin = name => new URL(`../../../bin/${name}`, import.meta.url).pathname;
const programs = [process.env.FLEETD_VDEVICES, bin('firmware'), bin('firmware-test/asan/vdevice')]
  .find(dir => dir && existsSync(`${dir}/vdevice`) && existsSync(`${dir}/mkimage`));
const options = { skip: programs ? false : 'no virtual device: set FLEETD_VDEVICES to the directory of vdevice and mkimage' };
const device = '/devices/02f11e000001';
let fleetd, browser, session, page;

before(async () => {
  if (!programs) return;
  [fleetd, browser] = await Promise.all([startFleetd(0, '--demo-virtual', programs), startBrowser()]);
  session = await newSession(browser, fleetd.url);
  page = await newPage(browser, fleetd.url, { storageState: session });
  await eventually('the device offers its tools', async () => {
    await page.goto('/devices?q=presence:online+tool:self.config.set');
    return await page.locator('tbody tr').count() === 2;
  });
});

after(async () => {
  await browser?.close();
  await fleetd?.stop();
});

test('a device reports its health', options, async () => {
  await page.goto(`${device}/health`);
  await page.waitForSelector('#vitals dl'); // the report follows the tools after a moment
  const now = await page.locator('#vitals').innerText();
  for (const part of ['powered on', 'ota_0', 'KiB', 'dBm', '127.0.0.1']) assert.ok(now.includes(part), `${part} in ${now}`);
  assert.equal(await page.locator('a[aria-current=true]', { hasText: /^1 h$/ }).count(), 1, 'a new device does not open with its last hour');
  assert.deepEqual(page.errors, []);
});

test('a drag over a chart shows that time, and the range is in the address', options, async () => {
  await eventually('a chart', async () => {
    await page.goto(`${device}/health?range=1h`);
    return await page.locator('#trends .trend-area').count() > 0;
  });
  const area = page.locator('#trends .trend-area').first(), from = Number(await area.getAttribute('data-from')), to = Number(await area.getAttribute('data-to'));
  await area.scrollIntoViewIfNeeded();
  const box = await area.boundingBox(), at = share => [box.x + share * box.width, box.y + box.height / 2];
  await page.mouse.move(...at(0.5));
  await page.mouse.down();
  await page.mouse.move(...at(0.999));
  await page.mouse.up();
  await page.waitForURL(/\/health\?from=/);
  const query = new URL(page.url()).searchParams, shown = Date.parse(query.get('to')) - Date.parse(query.get('from'));
  assert.ok(Math.abs(shown - (to - from) / 2) < 60_000, `it shows ${shown} ms`);
  assert.match(await page.inputValue('#trends input[name=from]'), /^\d{4}-\d\d-\d\d \d\d:\d\d$/);
  assert.equal(await page.locator('#trends .trend-ranges [aria-current=true]').count(), 0);
  await page.click('#trends .trend-chosen button.btn-primary'); // the same times, from the fields
  await page.waitForURL(/from=\d{4}-\d\d-\d\d/);
  assert.match(await page.inputValue('#trends input[name=to]'), /^\d{4}-\d\d-\d\d \d\d:\d\d$/);
  await page.click('#trends .trend-ranges >> text=24 h');
  await page.waitForURL(/range=24h$/);
  await page.waitForSelector('#trends .trend-area');
  assert.deepEqual(page.errors, []);
});

test('a configuration is read, refused, and applied on trial', options, async () => {
  await page.goto(`${device}/configuration`);
  await page.click('#configuration form[action$="/config/read"] button');
  const heartbeat = page.locator('#configuration input[type=number]');
  await heartbeat.waitFor();
  await heartbeat.evaluate(input => { input.form.noValidate = true; });
  await heartbeat.fill('5');
  await page.click('#configuration button.btn-primary');
  await page.waitForSelector('#configuration [role=alert] >> text=/some values are invalid/');
  page.errors.length = 0; // the browser logs the status 422
  await heartbeat.fill('30');
  await page.click('#configuration button.btn-primary');
  await page.waitForSelector('#config >> text=On trial.');
  await page.waitForSelector('#config >> text=/version 1, reported/');
  assert.equal(await heartbeat.inputValue(), '30');
  assert.deepEqual(page.errors, []);
});

test('a log is fetched, followed, and no longer followed', options, async () => {
  await page.goto(`${device}/logs`);
  await page.click('form[action$="/logs/fetch"] button');
  await page.waitForSelector('#log-lines li >> text=/connected to the broker/');
  await page.click('form[action$="/logs/follow"] button');
  await page.waitForSelector('#log-state form[action$="/stop"]');
  await page.waitForSelector('#log-state >> text=/started by admin/');
  await page.click('form[action$="/stop"] button');
  await page.waitForSelector('#log-state form[action$="/follow"]');
  assert.match(await page.locator('#log-lines').innerText(), /connected to the broker/);
  assert.deepEqual(page.errors, []);
});

testPages('its pages', () => ({ browser, url: fleetd.url, session }), () =>
  [`${device}/health`, `${device}/configuration`, device, `${device}/logs`, `${device}/firmware`], options);
