// Adds a plug-in by its form, sees it run, calls its tool, reloads and deletes it.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { chmod, cp, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { newPage, signIn, startBrowser, startFleetd } from '../server.mjs';

// The example is built by "go build -o bin/plugins/ ./examples/plugins/...".
const example = process.env.FLEETD_WEATHER ?? new URL('../../../bin/plugins/weather', import.meta.url).pathname;

let fleetd, browser, dir;
before(async () => {
  dir = await mkdtemp(join(tmpdir(), 'fleetd-plugins-'));
  await chmod(dir, 0o755); // as root, fleetd runs the program as another user
  await cp(example, join(dir, 'weather'));
  [fleetd, browser] = await Promise.all([startFleetd(1, '--plugins-dir', dir), startBrowser()]);
});
after(async () => {
  await browser?.close();
  await fleetd?.stop();
  await rm(dir, { recursive: true, force: true });
});

test('a plug-in is added, called, reloaded and deleted', async () => {
  const page = await newPage(browser, fleetd.url);
  page.setDefaultTimeout(20_000);
  await signIn(page);
  await page.goto('/settings/plugins');
  // Without plug-ins the form is open.
  await page.fill('#add [name=name]', 'forecast');
  await page.fill('#add [name=command]', '/bin/sh');
  await page.click('#add button.btn-primary');
  await page.waitForSelector('#add .problem'); // no program outside of the directory
  await page.fill('#add [name=command]', './weather');
  await page.fill('#add [name=memory]', '128MiB');
  await page.fill('#add [name=env]', 'PLACE=secret-place');
  await page.click('#add button.btn-primary');
  await page.waitForURL(/\/settings\/plugins\/forecast$/);
  await page.waitForSelector('#plugin-now .is-running');
  await page.waitForSelector('#plugin-lines .from-fleetd');
  assert.match(await page.textContent('#plugin-definition'), /PLACE/);
  assert.doesNotMatch(await page.content(), /secret-place/);

  await page.click('#plugin-now a[href$="/tools"]');
  await page.waitForURL(/\/devices\/plugin\.forecast\/tools$/);
  await page.click('a[href*="/devices/plugin.forecast/tools/"]');
  await page.waitForSelector('.tool-form');
  for (const field of await page.$$('.tool-form textarea[required], .tool-form input[required]:not([type=radio])')) await field.fill('Paris');
  await page.click('.tool-form button.btn-primary');
  await page.waitForSelector('#result .chip');
  await page.waitForSelector('#result :is(.is-succeeded, .is-tool_error)');

  await page.goto('/settings/plugins/forecast');
  const starts = async () => page.$$eval('#plugin-lines .from-fleetd', lines => lines.length);
  const before = await starts();
  await page.click('form[action$="/reload"] button');
  await page.waitForFunction(n => document.querySelectorAll('#plugin-lines .from-fleetd').length > n, before);
  await page.waitForSelector('#plugin-now .is-running');

  await page.click('#delete > summary');
  await page.fill('#delete [name=confirm]', 'forecast');
  await page.click('#delete button');
  await page.waitForURL(/\/settings\/plugins$/);
  assert.equal(await page.locator('#plugin-forecast').count(), 0);
  assert.deepEqual(page.errors.filter(e => !/422/.test(e)), []);
  await page.context().close();
});
