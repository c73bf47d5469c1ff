// Every page at both widths: nothing scrolls sideways, axe finds nothing
// serious, and the first page is small.
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { gzipSync } from 'node:zlib';
import { after, before, test } from 'node:test';
import { eventually, newPage, signIn, startBrowser, startFleetd } from '../server.mjs';

const axe = await readFile(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
let fleetd, browser, device;

before(async () => {
  [fleetd, browser] = await Promise.all([startFleetd(3), startBrowser()]);
  const page = await newPage(browser, fleetd.url);
  await signIn(page);
  await page.waitForSelector('h1');
  device = await eventually('a device with tools', async () => {
    await page.goto('/devices?q=board:esp-box-3+tool:self.reboot');
    const link = page.locator('tbody tr a').first();
    return await link.count() ? link.getAttribute('href') : '';
  });
  await page.context().close();
});

after(async () => {
  await browser?.close();
  await fleetd?.stop();
});

const paths = () => ['/', '/devices', '/devices?q=nothing-matches', device, `${device}/tools`, `${device}/tools/self.audio_speaker.set_volume`,
  `${device}/tools/self.reboot`, `${device}/configuration`, `${device}/firmware`, `${device}/screen`, `${device}/facts`,
  '/claim', '/calls', '/fanouts', `/fanouts/new?q=&tool=self.audio_speaker.set_volume`, '/settings', '/help'];

for (const width of [1440, 390]) for (const colorScheme of ['light', 'dark']) {
  test(`all pages, ${width} wide, ${colorScheme}`, async () => {
    const locale = colorScheme === 'dark' ? 'zh-CN' : 'en';
    const page = await newPage(browser, fleetd.url, { viewport: { width, height: 844 }, colorScheme, locale, bypassCSP: true });
    await signIn(page);
    await page.waitForSelector('h1');
    const complaints = [];
    for (const path of paths()) {
      const response = await page.goto(path);
      if (response.status() !== 200) complaints.push(`${path}: ${response.status()}`);
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      if (wide > 0) complaints.push(`${path} scrolls sideways by ${wide}px`);
      await page.evaluate(axe);
      const found = await page.evaluate(() => window.axe.run(document, { resultTypes: ['violations'] }));
      for (const v of found.violations.filter(v => ['serious', 'critical'].includes(v.impact))) {
        complaints.push(`${path}: ${v.id}: ${v.nodes.slice(0, 3).map(n => n.html.slice(0, 160)).join(' | ')}`);
      }
    }
    assert.deepEqual([...complaints, ...page.errors], []);
    await page.context().close();
  });
}

test('the first page is under 60 kB gzipped, without fonts', async () => {
  const page = await newPage(browser, fleetd.url);
  let bytes = 0;
  page.on('response', async r => { if (r.status() === 200) bytes += gzipSync(await r.body().catch(() => Buffer.alloc(0))).length; });
  await page.goto('/sign-in', { waitUntil: 'networkidle' });
  assert.ok(bytes > 0 && bytes < 60_000, `${bytes} bytes`);
  await page.context().close();
});
