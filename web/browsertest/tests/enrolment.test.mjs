// Enrolment rules, waiting devices and replacement, with devices that ask over HTTP.
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { after, before, test } from 'node:test';
import { newPage, signIn, startBrowser, startFleetd } from '../server.mjs';

const axe = await readFile(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
let fleetd, browser, page;

const poll = async (mac, board) => {
  const response = await fetch(`${fleetd.url}/xiaozhi/ota/`, { method: 'POST', body: '{}',
    headers: { 'Device-Id': mac, 'Client-Id': `c-${mac.replaceAll(':', '')}`, 'User-Agent': `${board}/2.4.2` } });
  return response.json();
};

before(async () => {
  // The later flag counts: these devices wait.
  [fleetd, browser] = await Promise.all([startFleetd(0, '--enrolment', 'code'), startBrowser()]);
  await poll('a0:85:e3:11:22:33', 'bread-compact-wifi');
  page = await newPage(browser, fleetd.url);
  await signIn(page);
  await page.waitForSelector('h1');
});

after(async () => {
  await browser?.close();
  await fleetd?.stop();
});

test('a rule of a file lets a board in', async () => {
  await page.goto('/enrolment/rules');
  await page.fill('#add input[name=name]', 'bench');
  await page.fill('#add input[name=tags]', 'bench');
  await page.setInputFiles('#add input[type=file]', { name: 'boards.csv', mimeType: 'text/csv', buffer: Buffer.from('mac,where\nA0:85:E3:11:22:33,desk\n') });
  await page.click('#add button.btn-primary');
  await page.waitForSelector('#rules >> text=/1 waiting device fits/');
  assert.ok((await poll('a0:85:e3:11:22:33', 'bread-compact-wifi')).mqtt, 'the board was not let in');
  await page.goto('/enrolment/rules');
  await page.waitForSelector('#rules >> text=/1 device accepted/');
  assert.deepEqual(page.errors, []);
});

test('a waiting board replaces it', async () => {
  const { activation } = await poll('a0:85:e3:11:22:44', 'bread-compact-wifi');
  await page.goto('/devices/a085e3112233/replace');
  await page.fill('#choose input[name=code]', activation.code);
  await page.click('#choose button');
  await page.waitForSelector('#preview >> text=/is let in/');
  await page.fill('#preview input[name=confirm]', 'a0:85:e3:11:22:33');
  await page.click('#preview button.btn-danger');
  await page.waitForSelector('#device-head >> text=/This unit replaced/');
  assert.deepEqual(page.errors, []);
});

for (const width of [1440, 390]) for (const colorScheme of ['light', 'dark']) {
  test(`its pages, ${width} wide, ${colorScheme}`, async () => {
    await poll('a0:85:e3:11:22:55', 'esp-box-3');
    const locale = colorScheme === 'dark' ? 'zh-CN' : 'en';
    const other = await newPage(browser, fleetd.url, { viewport: { width, height: 844 }, colorScheme, locale, bypassCSP: true });
    await signIn(other);
    await other.waitForSelector('h1');
    const complaints = [];
    const pages = ['/claim', '/enrolment/rules', '/devices/a085e3112244', '/devices/a085e3112244/replace',
      '/devices/a085e3112244/replace?successor=a085e3112255'];
    await other.goto('/enrolment/rules');
    pages.push(await other.getAttribute('#rules li a', 'href'));
    for (const [i, path] of pages.entries()) {
      await other.goto(path);
      if (process.env.SHOTS) await other.screenshot({ path: `${process.env.SHOTS}/${i}-${width}-${colorScheme}.png`, fullPage: true });
      const wide = await other.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      if (wide > 0) complaints.push(`${path} scrolls sideways by ${wide}px`);
      await other.evaluate(axe);
      const { violations } = await other.evaluate(() => window.axe.run(document, { resultTypes: ['violations'] }));
      for (const v of violations.filter(v => ['serious', 'critical'].includes(v.impact))) {
        complaints.push(`${path}: ${v.id}: ${v.nodes.slice(0, 3).map(n => n.html.slice(0, 160)).join(' | ')}`);
      }
    }
    assert.deepEqual([...complaints, ...other.errors], []);
    await other.context().close();
  });
}
