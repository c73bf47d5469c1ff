// A campaign from the wizard to its last device, watched live, at both widths
// and without JavaScript.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { testPages } from '../looks.mjs';
import { eventually, newPage, newSession, startBrowser, startFleetd } from '../server.mjs';

let fleetd, browser, session, page, board;

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

// The newest release is the first; the one before it is what the devices ran.
const chooseRelease = async (on, index = 1) => {
  await on.goto('/campaigns/new');
  await on.selectOption('select[name=release]', { index });
};

test('the dry run follows the form, and the plan is the address', async () => {
  await chooseRelease(page);
  await page.waitForSelector('#plan-run >> text=/devices in 3 waves/');
  await page.click('button[name=preset][value=small]');
  await page.waitForSelector('#plan-run >> text=/in 2 waves/');
  assert.equal(await page.locator('input[name="wave.name"]').count(), 2);
  await page.fill('input[name="wave.soak"] >> nth=0', '1s');
  await page.fill('input[name="wave.soak"] >> nth=1', '1s');
  await page.fill('input[name=name]', 'Browser 🦊 <b>test</b>');
  await eventually('the address holds the name', () => new URL(page.url()).searchParams.get('name')?.startsWith('Browser'));
  await page.reload();
  assert.equal(await page.inputValue('input[name="wave.soak"] >> nth=1'), '1s');
  await page.fill('input[name="wave.soak"] >> nth=1', 'soon');
  await page.waitForSelector('#plan-run [role=alert]');
  await page.fill('input[name="wave.soak"] >> nth=1', '1s');
  await page.waitForSelector('#plan-run >> text=/in 2 waves/');
});

test('it starts, and the board comes to its gate without a reload', async () => {
  await page.click('.plan-do >> text=Start');
  await page.waitForURL(/\/campaigns\/[0-9a-f-]{36}$/);
  board = new URL(page.url()).pathname;
  await page.evaluate(() => { window.sameDocument = true; });
  await page.waitForSelector('#campaign-head >> text=at a gate', { timeout: 120_000 });
  assert.ok(await page.evaluate(() => window.sameDocument), 'the page was reloaded');
  assert.match(await page.locator('h1').innerText(), /<b>test<\/b>/);
  assert.match(await page.locator('#wave-0').innerText(), /1 of 1 succeeded/);
});

test('the overview says that it needs somebody', async () => {
  await page.goto('/');
  await page.click('#attention >> text=/waits at a gate/');
  await page.waitForURL(url => url.pathname === board);
});

test('on a phone, pause is in reach of a thumb', async () => {
  const phone = await newPage(browser, fleetd.url, { viewport: { width: 390, height: 844 }, hasTouch: true, storageState: session });
  await phone.goto(board);
  const pass = phone.locator('#campaign-acts >> text=/Open wave 2/');
  await pass.click();
  await phone.waitForURL(url => url.pathname === board);
  const box = await phone.locator('.btn-pause').boundingBox();
  assert.ok(box.y > 844 * 0.6 && box.y + box.height < 844 && box.height >= 44, JSON.stringify(box));
  assert.deepEqual(phone.errors, []);
  await phone.context().close();
});

test('every device gets its verdict, live', async () => {
  await page.goto(board);
  await page.waitForSelector('#campaign-head >> text=/^completed/', { timeout: 240_000 });
  const counts = await page.locator('#campaign-head .tally-big').innerText();
  assert.match(counts, /succeeded/);
  const funnel = await page.locator('#campaign-funnel li').count();
  assert.equal(funnel, 8);
});

test('the time line of a device shows how it went', async () => {
  await page.goto(`${board}/devices?state=succeeded`);
  await page.locator('#list tbody tr a').first().click();
  await page.waitForURL(/\/devices\/[^/]+$/);
  const text = await page.locator('main').innerText();
  for (const part of ['It runs', 'asked for the image', 'last byte was sent', 'booted', 'listed its tools']) assert.ok(text.includes(part), `${part} in ${text}`);
});

test('without JavaScript a campaign is planned and discarded', async () => {
  const plain = await newPage(browser, fleetd.url, { javaScriptEnabled: false, storageState: session });
  await chooseRelease(plain, 2);
  await plain.fill('input[name=name]', 'plain');
  await plain.check('input[name=downgrade]');
  await plain.click('text=Show what will happen');
  await plain.waitForSelector('#plan-run >> text=/devices? in 3 waves/');
  await plain.click('.plan-do >> text=Save as draft');
  await plain.waitForSelector('#campaign-head >> text=draft');
  await plain.click('#campaign-acts summary');
  await plain.click('text=Discard');
  await plain.waitForSelector('#campaign-head >> text=discarded');
  await plain.context().close();
});

testPages('all campaign pages', () => ({ browser, url: fleetd.url, session }), () =>
  ['/campaigns', '/campaigns?state=paused', '/campaigns/new', board, `${board}/devices`, `${board}/devices?state=failed_any`]);

test('no page logged an error', () => assert.deepEqual(page.errors, []));
