import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { appImage } from '../images.mjs';
import { testPages } from '../looks.mjs';
import { eventually, newPage, newSession, startBrowser, startFleetd } from '../server.mjs';

let fleetd, browser, session, page, image, release;

before(async () => {
  [fleetd, browser] = await Promise.all([startFleetd(4), startBrowser()]);
  session = await newSession(browser, fleetd.url);
  page = await newPage(browser, fleetd.url, { storageState: session });
});

after(async () => {
  await browser?.close();
  await fleetd?.stop();
});

const file = (name, buffer) => ({ name, mimeType: 'application/octet-stream', buffer });
const items = on => on.locator('#upload-results > li');

test('files are uploaded one after the other, each with its outcome in place', async () => {
  await page.goto('/firmware/images');
  const damaged = appImage({ size: 300_000 });
  damaged[5000] ^= 1;
  await page.setInputFiles('input[type=file]', [file('xiaozhi.bin', appImage({ size: 2_600_000 })), file('damaged.bin', damaged), file('notes.txt', Buffer.from('no firmware'))]);
  await eventually('three outcomes', async () => await items(page).count() === 3 && await page.locator('.upload-going').count() === 0);
  const good = await items(page).nth(0).innerText();
  for (const part of ['xiaozhi.bin', '2.9.0', 'esp32s3', '2.5 MiB', 'unsigned', 'SHA-256', 'ESP-IDF', 'Compiled']) assert.ok(good.includes(part), `${part} in ${good}`);
  assert.match(await items(page).nth(1).innerText(), /damaged/);
  assert.match(await items(page).nth(2).innerText(), /Not an app image|Too short/);
  assert.doesNotMatch(await page.locator('#main').innerText(), /1 image stored/);
  await page.fill('#upload-results input[name^="board-"]', 'esp-box-3');
  await page.selectOption('select[name=then]', 'keep');
  await page.click('text=Store these images');
  await page.waitForSelector('#flash >> text=1 image stored');
  const row = page.locator('#list tbody tr', { hasText: '2.9.0' }).first();
  assert.match(await row.innerText(), /esp-box-3/);
  image = await row.locator('a[href^="/firmware/images/"]').first().getAttribute('href');
});

test('an upload shows bytes and percent, and can be canceled', async () => {
  const slow = await newPage(browser, fleetd.url, { storageState: session });
  await slow.goto('/firmware/images');
  const cdp = await slow.context().newCDPSession(slow);
  await cdp.send('Network.emulateNetworkConditions', { offline: false, latency: 0, downloadThroughput: -1, uploadThroughput: 100_000 });
  await slow.setInputFiles('input[type=file]', [file('slow.bin', appImage({ size: 4_000_000, version: '3.0.0' })), file('next.bin', appImage({ size: 4_000_000, version: '3.0.1' }))]);
  await eventually('numbers', async () => /[MK]iB of 3\.8 MiB · \d+%/.test(await items(slow).first().innerText()));
  assert.match(await items(slow).nth(1).innerText(), /waiting/);
  await items(slow).nth(1).locator('button').click();
  await items(slow).first().locator('button').click();
  assert.match(await items(slow).nth(0).innerText(), /Nothing was stored/);
  assert.match(await items(slow).nth(1).innerText(), /Nothing was stored/);
  await slow.goto('/firmware/images');
  assert.doesNotMatch(await slow.locator('#list').innerText(), /3\.0\.0/);
  await slow.context().close();
});

test('a file can be dropped', async () => {
  await page.goto('/firmware/images');
  const bytes = appImage({ chip: 'esp32c3', size: 20_000 }).toString('base64');
  const transfer = await page.evaluateHandle(b64 => {
    const t = new DataTransfer();
    t.items.add(new File([Uint8Array.from(atob(b64), c => c.charCodeAt(0))], 'dropped.bin'));
    return t;
  }, bytes);
  for (const kind of ['dragenter', 'dragover', 'drop']) await page.dispatchEvent('.drop', kind, { dataTransfer: transfer });
  await eventually('the outcome', async () => /dropped\.bin[\s\S]*esp32c3/.test(await items(page).first().innerText()));
  await page.click('text=Store these images');
  await page.waitForURL(/releases\/new\?image=/);
  assert.equal(await page.inputValue('input[name=version]'), '2.9.0');
});

test('a file that is too large is refused before it is sent', async () => {
  await page.goto('/firmware/images');
  await page.evaluate(() => {
    const t = new DataTransfer();
    t.items.add(new File([new Uint8Array(65 << 20)], 'flash.img'));
    const input = document.querySelector('input[type=file]');
    input.files = t.files;
    input.dispatchEvent(new Event('change', { bubbles: true }));
  });
  assert.match(await items(page).first().innerText(), /65\.0 MiB; an image can have at most 64\.0 MiB/);
});

test('a release is created from images, and starts campaigns', async () => {
  await page.goto(`/firmware/releases/new?image=${image.split('/').pop()}`);
  await page.fill('textarea[name=notes]', 'Quieter microphone.');
  await page.click('button[value=draft]');
  await page.waitForURL(/\/firmware\/releases\/[0-9a-f-]{36}$/);
  release = new URL(page.url()).pathname;
  assert.match(await page.locator('#release-head').innerText(), /draft/);
  await page.click('#release-head button[value=released]');
  await page.waitForSelector('#release-head >> text=Start a campaign');
  assert.match(await page.locator('#release-head a.btn-primary').getAttribute('href'), /^\/campaigns\/new\?release=[0-9a-f-]{36}$/);
});

test('the query for fitting devices is in the URL', async () => {
  await page.goto(release);
  await eventually('a device fits', async () => { await page.goto(release); return /devices? fits?/.test(await page.locator('#fit').innerText()); });
  await page.fill('#fit-q', 'board:esp-box-3');
  await page.waitForURL(/q=board/);
  await eventually('only that board', async () => !/no image/.test(await page.locator('#fit').innerText()));
  await page.fill('#fit-q', 'colour:red');
  await page.waitForSelector('#fit [role=alert]');
});

test('others see a new release without a reload', async () => {
  await page.goto('/firmware');
  const other = await newPage(browser, fleetd.url, { storageState: session });
  await other.goto(`/firmware/releases/new?image=${image.split('/').pop()}`);
  await other.fill('input[name=version]', '2.9.0-again');
  await other.click('button[value=draft]');
  await page.waitForSelector('#new-pill:not([hidden])');
  await other.context().close();
});

test('a device shows why it is not updating', async () => {
  const device = await eventually('a device', async () => {
    await page.goto('/devices?q=board:esp-box-3');
    const link = page.locator('tbody tr a').first();
    return await link.count() ? link.getAttribute('href') : '';
  });
  await page.goto(`${device}/firmware`);
  await page.waitForSelector('#updates');
  await page.goto(`${device}/configuration`);
  await page.fill('input[name=time_zone]', 'Asia/Shanghai');
  await page.click('form:has(input[name=time_zone]) button');
  await page.waitForSelector('#flash >> text=Saved');
  await page.goto(`${device}/facts`);
  assert.match(await page.locator('.facts').first().innerText(), /Asia\/Shanghai/);
});

test('an image is revoked only after its version is typed', async () => {
  await page.goto(image);
  await page.click('summary:has-text("Revoke this image")');
  const form = page.locator('form[action$="/revoke"]');
  assert.ok(await form.locator('button').isDisabled(), 'enabled before the version was typed');
  await form.locator('input[name=reason]').fill('burns');
  await form.locator('input[name=confirm]').fill('2.9.0');
  await form.locator('button').click();
  await page.waitForSelector('text=Revoked by admin');
});

test('without JavaScript the same form accepts several files', async () => {
  const plain = await newPage(browser, fleetd.url, { javaScriptEnabled: false, storageState: session });
  await plain.goto('/firmware/images');
  await plain.setInputFiles('input[type=file]', [file('one.bin', appImage({ version: '2.9.2' })), file('bad.bin', Buffer.from('bad'))]);
  await plain.click('text="Upload"');
  await plain.waitForSelector('#upload-results >> text=2.9.2');
  assert.equal(await items(plain).count(), 2);
  await plain.click('text=Store these images');
  await plain.waitForURL(/releases\/new\?image=/);
  await plain.context().close();
});

testPages('firmware pages', () => ({ browser, url: fleetd.url, session }), () =>
  ['/firmware', '/firmware?state=draft', '/firmware/images', '/firmware/releases/new', image, release]);

test('no page logged an error', () => assert.deepEqual(page.errors, []));
