// The operators' daily tasks, with their number of clicks. Each task begins at the overview; typed
// words and keys are not clicks.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { countClicks } from '../clicks.mjs';
import { eventually, newPage, newSession, startBrowser, startFleetd } from '../server.mjs';

let fleetd, browser, session, page, phone, id;
const { click, reset, atMost, task } = countClicks(() => page);
const onPhone = countClicks(() => phone);

before(async () => {
  [fleetd, browser] = await Promise.all([startFleetd(4), startBrowser()]);
  session = await newSession(browser, fleetd.url);
  page = await newPage(browser, fleetd.url, { storageState: session });
  phone = await newPage(browser, fleetd.url, { storageState: session, viewport: { width: 390, height: 844 }, isMobile: true, hasTouch: true });
  id = await eventually('a device that updates', async () => {
    await page.goto('/devices?q=board:esp-box-3+presence:online+tool:self.reboot+version%3C2.5');
    const link = page.locator('tbody tr a').first();
    return await link.count() ? (await link.getAttribute('href')).split('/').pop() : '';
  });
});

after(async () => {
  await browser?.close();
  await fleetd?.stop();
});

// jump opens a device's page by its id, with the keyboard.
async function jump() {
  await page.keyboard.press('Control+k');
  await page.locator('#find input').fill(id);
  await page.keyboard.press('Enter');
  await page.waitForURL(`**/devices/${id}`);
}

task('finding a device', 2, async () => {
  await click('nav >> text=Devices');
  await page.waitForURL('**/devices');
  await page.keyboard.press('/');
  await page.keyboard.type(id.match(/../g).slice(-3).join(':'));
  await page.keyboard.press('Enter');
  await page.waitForURL(/q=/);
  await eventually('one device listed', async () => await page.locator('tbody tr').count() === 1);
  await click('tbody tr a');
  await page.waitForURL(`**/devices/${id}`);
});

onPhone.task('finding a device on a phone', 3, async () => {
  await onPhone.click(phone.getByRole('navigation', { name: 'Main' }).getByRole('link', { name: 'Devices' }));
  await phone.waitForURL('**/devices');
  await onPhone.click('#q');
  await phone.keyboard.type(id.match(/../g).slice(-3).join(':'));
  await phone.keyboard.press('Enter');
  await phone.waitForURL(/q=/);
  await eventually('one device listed', async () => await phone.locator('tbody tr').count() === 1);
  await onPhone.click('tbody tr a');
  await phone.waitForURL(`**/devices/${id}`);
});

task('setting the volume', 3, async () => {
  await jump();
  await click('.quick-volume > summary');
  await page.fill('#act-volume', '33');
  await click('.quick-volume button');
  await page.waitForSelector('#result >> text=succeeded');
});

task('seeing its screen', 2, async () => {
  await jump();
  await click('.device-acts >> text=Take a picture');
  await page.waitForSelector('#result >> text=succeeded');
  await eventually('the picture is shown', () => page.locator('#snapshot img').first().evaluate(i => i.complete && i.naturalWidth > 0));
});

task('rebooting it', 3, async () => {
  await jump();
  await click('.quick-danger > summary');
  await click('.quick-danger .btn-danger');
  await page.waitForSelector('#result >> text=succeeded');
});

test('an act is in the timeline at once, with its outcome', async () => {
  const line = page.locator('#timeline .line');
  await eventually('the call and the restart', async () => /self\.reboot/.test(await line.first().innerText()) &&
    /Restart:\s+proven by its boot poll/.test(await line.first().innerText()));
  await page.goto(`/devices/${id}?show=crashes`);
  assert.match(await line.first().innerText(), /Restart:\s+proven by its boot poll/);
  await eventually('it is back', async () => /online/.test(await (await page.request.get(`/devices/${id}`)).text()));
  await page.goto(`/devices/${id}`);
  await eventually('live', () => page.locator('#live-state:not(.lost):not(:empty)').count());
  await click('.quick-volume > summary');
  await page.fill('#act-volume', '71');
  await click('.quick-volume button');
  await page.waitForSelector('#timeline .line li >> text="volume":71');
  assert.equal(await page.locator('#new-pill:visible').count(), 0);
});

onPhone.task('rebooting it on a phone', 4, async () => {
  await eventually('it is back', async () => /online/.test(await (await page.request.get(`/devices/${id}`)).text()));
  await onPhone.click('.top a[href="/find"]');
  await phone.locator('#find input').fill(id);
  await phone.keyboard.press('Enter');
  await phone.waitForURL(`**/devices/${id}`);
  const restarts = () => phone.locator('#timeline li', { hasText: /Restart:\s+proven by its boot poll/ }).count();
  const before = await restarts();
  await onPhone.click('.act-button summary');
  await onPhone.click('.quick-danger > summary');
  await onPhone.click('.quick-danger .btn-danger');
  await phone.waitForSelector('#result >> text=succeeded');
  await eventually('the restart is in the timeline', async () => await restarts() > before);
});

task('updating one device', 3, async () => {
  await eventually('it is back', async () => /online/.test(await (await page.request.get(`/devices/${id}`)).text()));
  await jump();
  await click('.quick >> text=/^Update/');
  await click('.plan-do >> text=Start');
  await page.waitForURL(/\/campaigns\/[0-9a-f-]{36}$/);
});

// Updating a fleet is in tasks_update.test.mjs.

task('learning why a call failed', 2, async () => {
  const post = (tool, data) => page.request.post(`/devices/${id}/tools/${tool}`, { data, headers: {
    'Content-Type': 'application/x-www-form-urlencoded', Origin: fleetd.url, 'Sec-Fetch-Site': 'same-origin' } });
  await page.goto(`/devices/${id}/tools/self.reboot`);
  const word = await page.locator('.tool-form input[name=confirm]').getAttribute('data-confirm');
  const restart = () => { back = false; return post('self.reboot', new URLSearchParams({ confirm: word }).toString()).then(() => { back = true; }); };
  const failures = '#calls-day .key a[href*="state="]:not([href*="state=succeeded"])';
  let back, reboot = restart();
  await eventually('a call to a device that restarts fails', async () => {
    if (back) reboot = restart(); // the call was too late
    await post('self.get_device_status', '');
    await page.goto('/');
    return await page.locator(failures).count() > 0;
  });
  await reboot;
  await click(failures);
  await click('tbody tr a[href^="/calls/"]');
  await page.waitForURL(/\/calls\/[0-9a-f-]{36}$/);
  assert.match(await page.locator('main').innerText(), /connect|offline/);
});

test('the first board takes at most 5 clicks and a minute', async () => {
  const strict = await startFleetd(0, '--enrolment', 'code');
  const other = page;
  try {
    page = await newPage(browser, strict.url, { storageState: await newSession(browser, strict.url) });
    const began = Date.now();
    reset();
    await page.goto('/');
    await page.waitForSelector('#first-board >> text=/No board has asked/');
    // A code that is being typed outlives what the page reads meanwhile.
    await page.fill('#first-code input', '12');
    const answer = await fetch(`${strict.url}/xiaozhi/ota/`, { method: 'POST', body: '{}',
      headers: { 'Device-Id': 'a0:85:e3:11:22:33', 'Client-Id': 'c-claim', 'User-Agent': 'esp-box-3/2.4.2' } });
    const { activation } = await answer.json();
    await page.waitForSelector('#first-board >> text=esp-box-3');
    assert.equal(await page.inputValue('#first-code input'), '12');
    await page.fill('#first-code input', activation.code);
    await click('#first-code button');
    await page.waitForURL('**/devices/a085e3112233/name');
    await page.waitForSelector('input[name=name]:focus');
    await page.keyboard.type('kitchen');
    await page.fill('input[name=tags]', 'home/ground');
    await click('main form button.btn-primary');
    await page.waitForSelector('h1 >> text=kitchen');
    assert.match(await page.locator('#device-head').innerText(), /home\/ground/);
    atMost(5);
    assert.ok(Date.now() - began < 60_000, `it took ${Date.now() - began} ms`);
    assert.deepEqual(page.errors, []);
  } finally {
    await page.context().close();
    page = other;
    await strict.stop();
  }
});
