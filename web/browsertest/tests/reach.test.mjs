// Ways from a page to other programs: commands to copy, configurations of MCP clients, the page of
// the REST interface; and acts by keyboard.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { complaints, testPages } from '../looks.mjs';
import { eventually, newPage, newSession, password, startBrowser, startFleetd } from '../server.mjs';

let fleetd, empty, browser, session, stranger, page, id;

before(async () => {
  // The later flag counts: a board that asks waits.
  [fleetd, empty, browser] = await Promise.all([startFleetd(2), startFleetd(0, '--enrolment', 'code'), startBrowser()]);
  await fetch(`${empty.url}/xiaozhi/ota/`, { method: 'POST', body: '{}',
    headers: { 'Device-Id': 'a0:85:e3:11:22:33', 'Client-Id': 'c-first', 'User-Agent': 'esp-box-3/2.4.2' } });
  stranger = await newSession(browser, empty.url);
  session = await newSession(browser, fleetd.url);
  page = await newPage(browser, fleetd.url, { storageState: session });
  id = await eventually('a device that restarts', async () => {
    await page.goto('/devices?q=presence:online+tool:self.reboot+tool:self.audio_speaker.set_volume');
    const link = page.locator('tbody tr a').first();
    return await link.count() ? (await link.getAttribute('href')).split('/').pop() : '';
  });
});

after(async () => {
  await browser?.close();
  await Promise.all([fleetd?.stop(), empty?.stop()]);
});

test('the command of a form follows its fields', async () => {
  await page.goto(`/devices/${id}/tools/self.audio_speaker.set_volume`);
  const menu = page.locator('.tool-form .equivalent');
  await menu.locator('summary').click();
  for (const volume of ['41', '42']) {
    await page.fill('input[name="arg.volume"]', volume);
    await page.waitForSelector(`.equivalent >> text={"volume":${volume}}`);
  }
  assert.match(await menu.innerText(), new RegExp(`fleetd device call ${id} self.audio_speaker.set_volume '{"volume":42}'`));
  assert.equal(await menu.locator('[data-copy]').first().isVisible(), true);
  assert.ok((await menu.locator('[data-copy]').first().getAttribute('data-copy')).includes('"volume":42'));
  assert.equal(await page.locator('#result .card').count(), 0, 'the tool was called');

  // A password stays in the browser.
  const sent = [];
  page.on('request', r => { if (r.url().endsWith('/equivalent')) sent.push(r.postData()); });
  await page.goto('/settings');
  await page.locator('summary', { hasText: 'Add an operator' }).click();
  const form = page.locator('form[action="/settings/operators"]');
  await form.locator('input[name=password]').fill('sesame opens');
  await form.locator('.equivalent summary').click();
  await form.locator('input[name=name]').fill("o'hara");
  await page.waitForSelector(String.raw`.equivalent >> text=o'\''hara`);
  assert.ok(sent.length > 0 && sent.every(body => !body.includes('sesame')), sent.join('\n'));
  assert.deepEqual(page.errors, []);
});

test('an act is reached by keyboard, and waits for its confirmation', async () => {
  await page.goto('/');
  await page.keyboard.press('Control+k');
  await page.keyboard.type(`volume 37 ${id}`);
  await page.waitForSelector('#find .found >> text=/to 37/');
  await page.keyboard.press('Enter');
  await page.waitForURL(`**/devices/${id}/tools/self.audio_speaker.set_volume?arg.volume=37`);
  assert.equal(await page.inputValue('input[name="arg.volume"]'), '37');
  await page.goto('/calls?tool=self.audio_speaker.set_volume');
  assert.equal(await page.locator('tbody tr').count(), 0);
  await page.keyboard.press('Control+k');
  await page.keyboard.type(`重启${id}`);
  await page.waitForSelector('#find .found >> text=/^Reboot/');
  await page.keyboard.press('Enter');
  await page.waitForURL(`**/devices/${id}/tools/self.reboot`);
  assert.equal(await page.locator('[data-confirm-button]').isDisabled(), true);
  assert.deepEqual(page.errors, []);
});

test('the calls of a filter are saved as a file', async () => {
  await page.goto('/calls?tool=none');
  assert.equal(await page.locator('#export a').count(), 0);
  const answer = await page.request.get('/calls.csv?tool=none');
  assert.equal((await answer.text()).trim().split('\n').length, 1);
});

test('a new token of a model is shown with configurations, once', async () => {
  for (const [width, colorScheme] of [[1440, 'light'], [390, 'dark']]) {
    const other = await newPage(browser, fleetd.url, { viewport: { width, height: 844 }, colorScheme, bypassCSP: true, storageState: session });
    await other.goto('/settings');
    await other.locator('summary', { hasText: 'Create a token' }).click();
    const form = other.locator('form[action="/settings/tokens"]');
    await form.locator('input[name=name]').fill(`claude-${width}`);
    await form.locator('input[name=kind][value=model]').check();
    await form.locator('input[name=tools]').fill('*');
    await form.locator('button.btn-primary').click();
    if (await other.locator('#confirm').count()) {
      await other.fill('#confirm input[type=password]', password);
      await other.click('#confirm button');
    }
    await other.waitForSelector('#clients');
    const token = (await other.locator('.note-good code').innerText()).trim();
    assert.match(token, /^flt_/);
    await other.locator('#clients summary', { hasText: 'VS Code' }).click();
    assert.equal(await other.locator('#clients details[open]').count(), 1, 'one configuration is unfolded at a time');
    const config = JSON.parse(await other.locator('#clients details[open] pre').innerText());
    assert.deepEqual(config, { servers: { fleetd: { type: 'http', url: `${fleetd.url}/mcp`, headers: { Authorization: `Bearer ${token}` } } } });
    assert.ok(!other.url().includes(token) && !(await other.evaluate(() => JSON.stringify({ ...sessionStorage, ...localStorage, state: history.state }))).includes(token));
    assert.ok(!fleetd.output().includes(token), 'the token is logged');
    const wide = await other.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    assert.equal(wide, 0);
    assert.deepEqual(await complaints(other, '/settings'), []);
    assert.ok(!(await other.content()).includes(token));
    await other.context().close();
  }
});

testPages('its pages', () => ({ browser, url: fleetd.url, session }), () => ['/api', '/api?q=hold', '/api?op=make-call',
  `/devices/${id}/name`, `/devices/${id}/tools/self.audio_speaker.set_volume`, `/find?q=reboot+${id}`, '/calls']);

testPages('the pages of an empty fleet', () => ({ browser, url: empty.url, session: stranger }), () => [
  ['/', '#first-board >> text=esp-box-3'], ['/devices', '#first-board >> text=esp-box-3']]);
