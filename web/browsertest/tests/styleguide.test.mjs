// The components of the console look as in the stored pictures. PICTURES=update stores the present ones.
import assert from 'node:assert/strict';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { newPage, newSession, startBrowser, startFleetd } from '../server.mjs';

const folder = new URL('../pictures/', import.meta.url).pathname;

// Another version of the browser draws the edges of letters a little differently: a pixel differs if its colour does by
// more than a quarter, and one in 200 may.
const colourDiffers = 64, mayDiffer = 0.005;

const looks = [
  { name: 'desktop-light', viewport: { width: 1440, height: 900 }, colorScheme: 'light' },
  { name: 'phone-dark', viewport: { width: 390, height: 844 }, colorScheme: 'dark', isMobile: true, hasTouch: true },
];

let fleetd, browser, session, judge;

before(async () => {
  [fleetd, browser] = await Promise.all([startFleetd(0, '--styleguide'), startBrowser()]);
  session = await newSession(browser, fleetd.url);
  judge = await (await browser.newContext()).newPage();
});

after(async () => {
  await browser?.close();
  await fleetd?.stop();
});

/** The share of pixels that differ; 1 if the sizes do. */
const difference = (a, b) => judge.evaluate(async ([a, b, limit]) => {
  const pixels = async data => {
    const image = await createImageBitmap(await (await fetch('data:image/png;base64,' + data)).blob());
    const canvas = new OffscreenCanvas(image.width, image.height), to = canvas.getContext('2d');
    to.drawImage(image, 0, 0);
    return to.getImageData(0, 0, image.width, image.height);
  };
  const [one, two] = await Promise.all([pixels(a), pixels(b)]);
  if (one.width !== two.width || Math.abs(one.height - two.height) > 2) return 1;
  const n = Math.min(one.data.length, two.data.length);
  let differing = 0;
  for (let i = 0; i < n; i += 4) {
    if ([0, 1, 2].some(c => Math.abs(one.data[i + c] - two.data[i + c]) > limit)) differing++;
  }
  return differing / (n / 4);
}, [a.toString('base64'), b.toString('base64'), colourDiffers]);

for (const { name: look, ...options } of looks) {
  test(`components on ${look}`, async t => {
    const page = await newPage(browser, fleetd.url, { storageState: session, timezoneId: 'UTC', locale: 'en-GB', reducedMotion: 'reduce',
      ...options });
    await page.goto('/styleguide');
    await page.evaluate(() => document.fonts.ready);
    await page.waitForSelector('.timefield > button:not([hidden])');
    await page.evaluate(() => { // the bars stay in view, and would cover a component
      for (const bar of document.querySelectorAll('.top, .nav')) bar.style.display = 'none';
    });
    const specimens = await page.locator('[data-specimen]').all();
    assert.ok(specimens.length >= 12, `${specimens.length} components`);
    mkdirSync(folder, { recursive: true });
    for (const specimen of specimens) {
      const name = `${await specimen.getAttribute('data-specimen')}-${look}.png`, stored = join(folder, name);
      const now = await specimen.screenshot({ animations: 'disabled' });
      if (process.env.PICTURES === 'update') {
        if (!existsSync(stored) || await difference(now, readFileSync(stored)) > 0) writeFileSync(stored, now);
        continue;
      }
      await t.test(name, async () => {
        assert.ok(existsSync(stored), `no stored picture: run this test with PICTURES=update, and look at ${stored}`);
        const share = await difference(now, readFileSync(stored));
        if (share <= mayDiffer) return;
        const seen = join(tmpdir(), name);
        writeFileSync(seen, now);
        assert.fail(`${(100 * share).toFixed(1)} % of ${seen} differ from ${stored}; if that is right, run this test with PICTURES=update`);
      });
    }
    assert.deepEqual(page.errors, []);
    await page.context().close();
  });
}

test('the field for a time has a month, a clock and presets', async () => {
  const page = await newPage(browser, fleetd.url, { storageState: session, timezoneId: 'Asia/Shanghai' });
  await page.goto('/calls');
  await page.reload(); // now the server knows the zone
  const field = page.locator('.timefield:has(input[name=since])'), input = field.locator('input');
  await field.locator('button').first().click();
  await page.click('.timepick-presets button:has-text("24 h")');
  const wall = new Intl.DateTimeFormat('sv-SE', { timeZone: 'Asia/Shanghai', dateStyle: 'short', timeStyle: 'short' });
  const dayAgo = [0, 1, 2].map(minutes => wall.format(Date.now() - 86_400_000 - minutes * 60_000));
  assert.ok(dayAgo.includes(await input.inputValue()), `${await input.inputValue()} is not one of ${dayAgo}`);
  await input.fill('2026-03-31 23:59');
  await page.keyboard.press('Tab');
  await page.keyboard.press('Enter');
  await page.keyboard.press('ArrowRight'); // to the next month, by keyboard
  await page.keyboard.press('Enter');
  assert.equal(await input.inputValue(), '2026-04-01 23:59');
  await page.locator('.timepick-clock select').first().selectOption('7');
  assert.equal(await input.inputValue(), '2026-04-01 07:59');
  await page.keyboard.press('Escape');
  assert.equal(await page.locator('.timepick').count(), 0);
  assert.equal(await page.evaluate(() => document.activeElement.getAttribute('aria-expanded')), 'false');
  await page.waitForURL(/since=2026-04-01/);
  assert.deepEqual(page.errors, []);
  await page.context().close();
});

test('a drag over a chart shows the time below it', async () => {
  const page = await newPage(browser, fleetd.url, { storageState: session });
  await page.goto('/styleguide');
  const area = page.locator('.trend-area[data-zoom="/dashboards"]'), from = Number(await area.getAttribute('data-from')), to = Number(await area.getAttribute('data-to'));
  await area.scrollIntoViewIfNeeded();
  const box = await area.boundingBox(), at = share => [box.x + share * box.width, box.y + box.height / 2];
  await page.mouse.move(...at(0.25));
  await page.mouse.down();
  await page.mouse.move(...at(0.5));
  assert.equal(await page.locator('.trend-zoom').count(), 1);
  await page.keyboard.press('Escape');
  await page.mouse.up();
  assert.equal(new URL(page.url()).pathname, '/styleguide');
  await page.mouse.move(...at(0.75)); // also from right to left
  await page.mouse.down();
  await page.mouse.move(...at(0.5));
  await page.mouse.up();
  await page.waitForURL(/\/dashboards\?/);
  const query = new URL(page.url()).searchParams, near = (name, share) =>
    assert.ok(Math.abs(Date.parse(query.get(name)) - from - share * (to - from)) < 0.02 * (to - from), `${name} is ${query.get(name)}`);
  near('from', 0.5);
  near('to', 0.75);
  assert.deepEqual(page.errors, []);
  await page.context().close();
});

test('an act is undone within ten seconds', async () => {
  const page = await newPage(browser, fleetd.url, { storageState: session });
  await fetch(`${fleetd.url}/xiaozhi/ota/`, { method: 'POST', body: '{}',
    headers: { 'Device-Id': 'a0:85:e3:11:22:33', 'Client-Id': 'c1', 'User-Agent': 'esp-box-3/2.4.2' } });
  await page.goto('/devices/a085e3112233');
  const rename = page.locator('#device-head form:has(input[name=name])');
  await page.click('#device-head details:has(input[name=name]) > summary');
  await rename.locator('input[name=name]').fill('kitchen');
  await rename.locator('button').click();
  await page.waitForSelector('h1:has-text("kitchen")');
  await page.click('.toast button:has-text("Undo")');
  await page.waitForSelector('.toast:has-text("Undone.")');
  assert.equal(await page.locator('h1:has-text("kitchen")').count(), 0);
  await page.waitForSelector('.toast', { state: 'detached' });
  assert.deepEqual(page.errors, []);
  await page.context().close();
});
