// Enrolment rules, waiting devices and replacement, with devices that poll over HTTP.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { testPages } from '../looks.mjs';
import { newPage, newSession, startBrowser, startFleetd } from '../server.mjs';

let fleetd, browser, session, page, rule;

const poll = async (mac, board) => {
  const response = await fetch(`${fleetd.url}/xiaozhi/ota/`, { method: 'POST', body: '{}',
    headers: { 'Device-Id': mac, 'Client-Id': `c-${mac.replaceAll(':', '')}`, 'User-Agent': `${board}/2.4.2` } });
  return response.json();
};

before(async () => {
  // The later flag counts: these devices wait.
  [fleetd, browser] = await Promise.all([startFleetd(0, '--enrolment', 'code'), startBrowser()]);
  await poll('a0:85:e3:11:22:33', 'bread-compact-wifi');
  session = await newSession(browser, fleetd.url);
  page = await newPage(browser, fleetd.url, { storageState: session });
});

after(async () => {
  await browser?.close();
  await fleetd?.stop();
});

test('a rule from a file admits a board', async () => {
  await page.goto('/enrolment/rules');
  await page.fill('#add input[name=name]', 'bench');
  await page.fill('#add input[name=tags]', 'bench');
  await page.setInputFiles('#add input[type=file]', { name: 'boards.csv', mimeType: 'text/csv', buffer: Buffer.from('mac,where\nA0:85:E3:11:22:33,desk\n') });
  await page.click('#add button.btn-primary');
  await page.waitForSelector('#rules >> text=/1 waiting device matches/');
  assert.ok((await poll('a0:85:e3:11:22:33', 'bread-compact-wifi')).mqtt, 'the board was not let in');
  await page.goto('/enrolment/rules');
  await page.waitForSelector('#rules >> text=/1 device accepted/');
  rule = await page.getAttribute('#rules li a', 'href');
  assert.deepEqual(page.errors, []);
});

test('a waiting board replaces it', async () => {
  const { activation } = await poll('a0:85:e3:11:22:44', 'bread-compact-wifi');
  await page.goto('/devices/a085e3112233/replace');
  await page.fill('#choose input[name=code]', activation.code);
  await page.click('#choose button');
  await page.waitForSelector('#preview >> text=/will be approved/');
  await page.fill('#preview input[name=confirm]', 'a0:85:e3:11:22:33');
  await page.click('#preview button.btn-danger');
  await page.waitForSelector('#device-head >> text=/This unit replaced/');
  await poll('a0:85:e3:11:22:55', 'esp-box-3'); // waits, for the pages below
  assert.deepEqual(page.errors, []);
});

testPages('its pages', () => ({ browser, url: fleetd.url, session }), () => ['/claim', '/enrolment/rules', rule,
  '/devices/a085e3112244', '/devices/a085e3112244/replace', '/devices/a085e3112244/replace?successor=a085e3112255']);
