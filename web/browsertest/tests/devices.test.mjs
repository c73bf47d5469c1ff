// The list of devices: completion of the filter by keyboard, columns, saved filters, the wall of
// pictures, and selection of rows with shift.
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { after, before, test } from 'node:test';
import { eventually, newPage, newSession, startBrowser, startFleetd } from '../server.mjs';

const axe = await readFile(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
let fleetd, browser, session, page;

before(async () => {
  [fleetd, browser] = await Promise.all([startFleetd(6), startBrowser()]);
  session = await newSession(browser, fleetd.url);
  page = await newPage(browser, fleetd.url, { storageState: session });
  await eventually('the devices offer their tools', async () => {
    await page.goto('/devices?q=presence:online+board:esp-box-3+tool:self.screen.snapshot');
    return await page.locator('tbody tr').count() === 2;
  });
});

after(async () => {
  await browser?.close();
  await fleetd?.stop();
});

const filter = '#q', active = '#completion [aria-selected=true]';
const value = () => page.inputValue(filter);

test('the filter completes by keyboard, with counts', async () => {
  await page.goto('/devices');
  await page.press('body', '/');
  await page.keyboard.type('boa');
  await page.waitForSelector('#completion[data-word="boa"] [data-text="board:"]');
  assert.equal(await page.getAttribute(filter, 'aria-expanded'), 'true');
  await page.keyboard.press('ArrowDown');
  assert.equal(await page.getAttribute(active, 'id'), await page.getAttribute(filter, 'aria-activedescendant'));
  await page.keyboard.press('Enter');
  assert.equal(await value(), 'board:');
  const box = page.locator('#completion [data-text="board:esp-box-3"]');
  await box.waitFor();
  assert.match(await box.innerText(), /2 devices/);
  await page.keyboard.type('esp');
  await eventually('one value is left', async () => await page.locator('#completion [role=option]').count() === 1);
  await page.keyboard.press('ArrowUp');
  await page.keyboard.press('Enter');
  assert.equal(await value(), 'board:esp-box-3 ');
  assert.equal(await page.locator('#completion').count(), 0);
  await eventually('the list is filtered', async () => await page.locator('tbody tr').count() === 2);
  await page.keyboard.type('pres');
  await page.waitForSelector('#completion [data-text="presence:"]');
  await page.keyboard.press('Escape');
  assert.equal(await page.locator('#completion').count(), 0);
  assert.equal(await value(), 'board:esp-box-3 pres');
  assert.equal(await page.getAttribute(filter, 'aria-expanded'), 'false');
  assert.deepEqual(page.errors, []);
});

test('a late response leaves the choice unchanged', async () => {
  await page.goto('/devices');
  await page.click(filter);
  await page.keyboard.type('boa');
  await page.waitForSelector('#completion[data-word="boa"] [data-text="board:"]');
  await page.keyboard.press('ArrowDown');
  await page.evaluate(() => { document.querySelector('#completion').before = true; });
  await page.evaluate(() => document.querySelector('#q').dispatchEvent(new Event('input', { bubbles: true })));
  await eventually('the list is new', () => page.evaluate(() => document.querySelector('#completion')?.before !== true));
  assert.equal(await page.getAttribute(active, 'data-text'), 'board:');
  assert.equal(await page.getAttribute(active, 'id'), await page.getAttribute(filter, 'aria-activedescendant'));
  await page.keyboard.press('Enter');
  assert.equal(await value(), 'board:');
});

test('a proposal can be clicked, and Enter alone submits the typed text', async () => {
  await page.goto('/devices');
  await page.fill(filter, '');
  await page.click(filter);
  await page.keyboard.type('version:');
  await page.locator('#completion[data-word="version:"] [role=option]').first().click();
  assert.match(await value(), /^version:\S+ $/);
  assert.equal(await page.evaluate(() => document.activeElement.id), 'q');
  await page.fill(filter, 'presence:online');
  await page.keyboard.press('Enter');
  await page.waitForURL(/q=presence/);
  assert.equal(await value(), 'presence:online');
});

test('a proposal for an earlier text also replaces the letters typed since', async () => {
  await page.goto('/devices');
  await page.fill(filter, 'presence:online ');
  await page.click(filter);
  await page.waitForSelector('#completion[data-word=""]');
  await page.route('**/complete?*', () => {}); // no more responses
  await page.keyboard.type('version:');
  await page.locator('#completion [data-text="id:"]').click();
  assert.equal(await value(), 'presence:online id:');
  await page.unroute('**/complete?*');
  await page.fill(filter, '');
  await page.click(filter);
  await page.waitForSelector('#completion[data-word=""]');
  const answers = [];
  await page.route('**/complete?*', route => answers.push(route));
  await page.keyboard.type('offline sec');
  await page.locator('#completion [data-text="id:"]').click();
  assert.equal(await value(), 'offline sec', 'a proposal for another word changes nothing');
  await eventually('it is asked again', () => answers.length > 0);
  for (const route of answers) await route.continue().catch(() => {}); // the browser has given up some
  await page.unroute('**/complete?*');
  assert.deepEqual(page.errors, []);
});

test('columns are chosen and stored', async () => {
  await page.goto('/devices');
  await page.click('.columns-menu summary');
  await page.check('.columns-menu input[value=ip]');
  await page.uncheck('.columns-menu input[value=tags]');
  await page.click('.columns-menu button');
  await page.waitForURL(/columns=board%2Cversion%2Cip%2Cseen/);
  await page.goto('/devices');
  const headings = await page.locator('thead th').allInnerTexts();
  assert.ok(headings.includes('Address') && !headings.includes('Tags'), headings.join());
  await page.click('.columns-menu summary');
  await page.click('.columns-menu a');
  await page.waitForURL(/columns=/);
});

test('shift selects the rows between, and all matching devices can be chosen', async () => {
  await page.goto('/devices');
  const boxes = page.locator('tbody input[name=d]');
  await boxes.nth(1).click();
  await boxes.nth(4).click({ modifiers: ['Shift'] });
  assert.equal(await page.locator('tbody input[name=d]:checked').count(), 4);
  assert.match(await page.locator('[data-count-text]').innerText(), /^4 selected/);
  await page.check('input[name=all]');
  assert.match(await page.locator('[data-count-text]').innerText(), /^6 selected/);
  await page.click('[data-unselect]');
});

test('a filter is saved, shown with its count, renamed and deleted', async () => {
  await page.goto('/devices?q=board:esp-box-3');
  await page.click('#saved > summary');
  await page.fill('#saved input[name=title]', 'Old boxes');
  await page.click('#saved button');
  const link = page.locator('.rail nav a', { hasText: 'Old boxes' });
  await link.waitFor();
  assert.match(await link.innerText(), /2/);
  assert.equal(await link.getAttribute('aria-current'), 'true');
  await page.click('#kept > summary');
  await page.click('#kept li summary');
  await page.fill('#kept input[name=title]', 'All boxes');
  await page.click('#kept form[action$=rename] button');
  await page.locator('.rail nav a', { hasText: 'All boxes' }).waitFor();
  await page.click('#kept > summary');
  await page.click('#kept li summary');
  await page.click('#kept form[action$=delete] button');
  await eventually('no filter is left', async () => await page.locator('#kept').count() === 0);
});

test('a filtered list has the stream of its filter, and none for an invalid filter', async () => {
  const live = page.locator('#live-state:not(.lost)', { hasText: 'Live' });
  const asks = text => page.waitForRequest(r => r.url().includes('/events?') && new URL(r.url()).searchParams.get('q') === text);
  await page.goto('/devices?q=nope:x');
  assert.equal(await page.locator('#live-state').textContent(), '');
  let asked = asks('board:esp-box-3');
  await page.fill('#q', 'board:esp-box-3');
  await asked;
  await live.waitFor();
  await page.fill('#q', 'nope:x');
  await eventually('the list is not live', async () => await page.locator('#live-state').textContent() === '');
  asked = asks('board:xmini-c3');
  await page.fill('#q', 'board:xmini-c3');
  await asked;
  await live.waitFor();
  assert.deepEqual(page.errors.splice(0).filter(text => !/422/.test(text)), []);
});

test('the wall shows the latest pictures, and counts the devices without', async () => {
  await page.goto('/devices?q=board:esp-box-3');
  const device = new URL(await page.locator('tbody tr a').first().getAttribute('href'), fleetd.url).pathname;
  await page.goto(`${device}/tools/self.screen.snapshot`);
  await page.click('.tool-form button.btn-primary');
  await page.waitForSelector('#result img');
  await page.goto('/devices?q=board:esp-box-3&view=wall');
  assert.equal(await page.locator('.wall li').count(), 1);
  assert.match(await page.locator('#wall').innerText(), /1 device has no picture yet/);
  await eventually('the picture is drawn', () => page.locator('.wall img').evaluate(img => img.naturalWidth > 0));
  await page.click('.views >> text=List');
  await page.waitForSelector('table.devices');
  assert.deepEqual(page.errors, []);
});

for (const [width, colorScheme, locale] of [[1440, 'light', 'en'], [390, 'dark', 'zh-CN']]) {
  test(`${width} wide, ${locale}: nothing scrolls sideways, and axe finds nothing serious`, async () => {
    const other = await newPage(browser, fleetd.url, { storageState: session, viewport: { width, height: 844 }, colorScheme, locale, bypassCSP: true });
    const all = 'picture,board,chip,version,slot,tags,signal,heap,crash,ip,transport,created,seen';
    const complaints = [];
    for (const path of ['/devices?view=wall', `/devices?columns=${all}`, '/devices?q=board:esp-box-3']) {
      await other.goto(path);
      if (path.includes('columns')) await other.click('.columns-menu summary');
      if (path.includes('board:')) {
        await other.fill(filter, 'board:');
        await other.waitForSelector('#completion li');
        await other.keyboard.press('ArrowDown');
      }
      const wide = await other.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      if (wide > 0) complaints.push(`${path} scrolls sideways by ${wide}px`);
      if (process.env.SHOTS) await other.screenshot({ path: `${process.env.SHOTS}/devices-${complaints.length}-${width}-${path.length}.png`, fullPage: true });
      await other.evaluate(axe);
      const rules = { 'target-size': { enabled: true } };
      const found = await other.evaluate(rules => window.axe.run(document, { resultTypes: ['violations'], rules }), rules);
      for (const v of found.violations.filter(v => ['serious', 'critical'].includes(v.impact))) {
        complaints.push(`${path}: ${v.id}: ${v.nodes.slice(0, 3).map(n => n.html.slice(0, 160)).join(' | ')}`);
      }
    }
    assert.deepEqual([...complaints, ...other.errors], []);
    await other.context().close();
  });
}
