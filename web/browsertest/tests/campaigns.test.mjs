// A campaign from the wizard to its last device, watched live, at both widths
// and without JavaScript.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { countClicks } from '../clicks.mjs';
import { testPages } from '../looks.mjs';
import { eventually, newPage, newSession, startBrowser, startFleetd } from '../server.mjs';

let fleetd, browser, session, page, board, wizard;

before(async () => {
  [fleetd, browser] = await Promise.all([startFleetd(12), startBrowser()]);
  session = await newSession(browser, fleetd.url);
  page = await newPage(browser, fleetd.url, { storageState: session });
  await eventually('the fleet is online', async () => {
    await page.goto('/devices?q=presence:online+tool:self.upgrade_firmware');
    return await page.locator('tbody tr').count() === 12;
  });
});

after(async () => {
  await browser?.close();
  await fleetd?.stop();
});

// The newest release is first; the devices ran the one before it.
const chooseRelease = async (on, index = 1) => {
  await on.goto('/campaigns/new');
  await on.selectOption('select[name=release]', { index });
};

test('a device is updated with two clicks from its page', async () => {
  await page.goto('/devices?q=presence:online+version:2.4.2');
  await page.locator('#list tbody tr a').first().click();
  await page.waitForURL(/\/devices\/[0-9a-f]{12}/);
  await page.click('a[href^="/campaigns/new?"]');
  await page.waitForSelector('.plan-say >> text=/1 device gets .* in 1 wave/');
  await page.click('.plan-do .btn-primary');
  await page.waitForSelector('#campaign-head >> text=running');
});

test('a fleet is updated with five clicks from the overview', async () => {
  const { click, add, atMost } = countClicks(() => page);
  await page.goto('/');
  await click('.nav >> text=Releases');
  await page.waitForURL(/\/firmware$/);
  await click('.col-version a');
  await click('main a.btn-primary[href^="/campaigns/new?release="]');
  await page.waitForSelector('.plan-do .btn-primary:enabled');
  wizard = new URL(page.url()).pathname + new URL(page.url()).search;
  add(); // a click on Start; tasks_update.test.mjs starts a campaign
  atMost(5);
});

test('the dry run follows the form, and the plan is the address', async () => {
  // A campaign of next year waits with one of the devices, so the dry run warns of it.
  const later = await newPage(browser, fleetd.url, { storageState: session });
  await later.goto('/devices?q=presence:online+-version:2.4.2+-version:2.5.0');
  await later.locator('#list tbody tr a').last().click();
  await later.waitForURL(/\/devices\/[0-9a-f]{12}/);
  const plan = await later.locator('a[href^="/campaigns/new?"]').getAttribute('href');
  await later.goto(`${plan}&start=${new Date().getFullYear() + 1}-06-01T10:00&name=later`);
  await later.click('.plan-do .btn-primary');
  await later.waitForURL(/\/campaigns\/[0-9a-f-]{36}$/);
  await later.context().close();
  await chooseRelease(page);
  await page.waitForSelector('#plan-run >> text=/devices get .* in 3 waves/');
  assert.equal(await page.locator('#plan-presets [aria-pressed=true]').innerText(), '1% → 10% → everyone');
  assert.equal(await page.locator('.plan-fields').isVisible(), false, 'what has a default is folded');
  await page.click('.plan-how > summary');
  await page.click('button[name=preset][value=small]');
  await page.waitForSelector('#plan-run >> text=/in 2 waves/');
  assert.equal(await page.locator('input[name="wave.name"]').count(), 2);
  assert.ok(await page.locator('.plan-fields').isVisible(), 'a button of the fields folded them');
  await page.waitForSelector('#plan-presets [value=small][aria-pressed=true]');
  await page.fill('input[name="wave.soak"] >> nth=0', '1s');
  await page.fill('input[name="wave.soak"] >> nth=1', '1s');
  await page.fill('input[name=name]', 'Browser 🦊 <b>test</b>');
  await eventually('the address holds the name', () => new URL(page.url()).searchParams.get('name')?.startsWith('Browser'));
  await page.reload();
  assert.equal(await page.inputValue('input[name="wave.soak"] >> nth=1'), '1s');
  await page.fill('input[name="wave.soak"] >> nth=1', 'soon');
  await page.waitForSelector('#plan-bar [role=alert]');
  await page.fill('input[name="wave.soak"] >> nth=1', '1s');
  await page.waitForSelector('#plan-run >> text=/in 2 waves/');
  assert.equal(await page.locator('#plan-run .warnings li').first().isVisible(), false, 'warnings are folded');
  await page.click('#plan-run .warnings summary');
  assert.ok(await page.locator('#plan-run .warnings li').first().isVisible());
});

test('Start is visible wherever the page is scrolled to, and states its effect', async () => {
  for (const viewport of [{ width: 1440, height: 900 }, { width: 390, height: 844 }]) {
    await page.setViewportSize(viewport);
    for (const to of ['scrollTo(0, 0)', 'scrollTo(0, document.body.scrollHeight / 2)', 'scrollTo(0, document.body.scrollHeight)']) {
      await page.evaluate(to);
      const box = await page.locator('.plan-do .btn-primary').boundingBox();
      assert.ok(box.y >= 0 && box.y + box.height <= viewport.height, `${to}: ${JSON.stringify(box)}`);
    }
    assert.match(await page.locator('.plan-say').innerText(), /devices? get.* in 2 waves, starting now/);
  }
  await page.setViewportSize({ width: 1440, height: 900 });
});

test('it starts, and the board reaches its gate without a reload', async () => {
  await page.click('.plan-do >> text=Start');
  await page.waitForURL(/\/campaigns\/[0-9a-f-]{36}$/);
  board = new URL(page.url()).pathname;
  await page.evaluate(() => { window.sameDocument = true; });
  await page.waitForSelector('#campaign-head >> text=at a gate', { timeout: 300_000 });
  assert.ok(await page.evaluate(() => window.sameDocument), 'the page was reloaded');
  assert.match(await page.locator('h1').innerText(), /<b>test<\/b>/);
  await page.waitForSelector('#wave-0 >> text=/1 of 1 succeeded/');
});

test('the overview shows that it needs an operator', async () => {
  await page.goto('/');
  await page.click('#attention >> text=/is waiting at a gate/');
  await page.waitForURL(url => url.pathname === board);
});

test('on a phone, pause is within reach of a thumb', async () => {
  const phone = await newPage(browser, fleetd.url, { viewport: { width: 390, height: 844 }, hasTouch: true, storageState: session });
  await phone.goto(board);
  const pass = phone.locator('#campaign-acts >> text=/Open wave 2/');
  await pass.click();
  await phone.waitForURL(url => url.pathname === board);
  const box = await phone.locator('.btn-pause').boundingBox();
  assert.ok(box.y > 844 * 0.6 && box.y + box.height < 844 && box.height >= 44, JSON.stringify(box));
  const stop = await phone.locator('.btn-stop').boundingBox();
  assert.ok(stop.y === box.y && stop.x > box.x && stop.height >= 44, JSON.stringify(stop));
  await phone.click('.btn-pause');
  await phone.waitForSelector('#campaign-acts >> text=Resume');
  assert.deepEqual(await phone.locator('.btn-pause').boundingBox(), box, 'pause moved');
  assert.deepEqual(await phone.locator('.btn-stop').boundingBox(), stop, 'stop moved');
  await phone.click('#campaign-acts >> text=Resume');
  await phone.waitForSelector('.btn-pause:enabled');
  assert.deepEqual(phone.errors, []);
  await phone.context().close();
});

test('every device gets its verdict, live', async () => {
  await page.goto(board);
  await page.waitForSelector('#campaign-head >> text=/^completed/', { timeout: 600_000 });
  const counts = await page.locator('#campaign-head .tally').innerText();
  assert.match(counts, /succeeded/);
  const funnel = await page.locator('#campaign-funnel li').count();
  assert.equal(funnel, 8);
});

test('the timeline of a device shows its deployment', async () => {
  await page.goto(`${board}/devices?state=succeeded`);
  await page.locator('#list tbody tr a').first().click();
  await page.waitForURL(/\/devices\/[^/]+$/);
  const text = await page.locator('main').innerText();
  for (const part of ['The device runs', 'Image requested', 'last byte was sent', 'Booted', 'Tools listed']) assert.ok(text.includes(part), `${part} in ${text}`);
});

test('without JavaScript a campaign is planned and discarded', async () => {
  const plain = await newPage(browser, fleetd.url, { javaScriptEnabled: false, storageState: session });
  await chooseRelease(plain, 2);
  await plain.fill('input[name=name]', 'plain');
  await plain.click('summary >> text=Older versions');
  await plain.check('input[name=downgrade]');
  await plain.click('text=Update the preview');
  await plain.waitForSelector('#plan-run >> text=/devices? gets? .* in 3 waves/');
  await plain.click('.plan-do >> text=Save as draft');
  await plain.waitForSelector('#campaign-head >> text=draft');
  await plain.click('#campaign-acts summary');
  await plain.click('text=Discard');
  await plain.waitForSelector('#campaign-head >> text=discarded');
  await plain.context().close();
});

testPages('all campaign pages', () => ({ browser, url: fleetd.url, session }), () =>
  ['/campaigns', '/campaigns?state=paused', '/campaigns/new', wizard, `${wizard}&open=1`, board, `${board}/devices`, `${board}/devices?state=failed_any`]);

test('no page logged an error', () => assert.deepEqual(page.errors, []));
