// The common requirements of every page: it responds, it does not scroll sideways, axe finds
// nothing, and a Chinese page is in Chinese.
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { test } from 'node:test';
import { newPage } from './server.mjs';

const axe = await readFile(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

// Target size is from WCAG 2.2, names against labels are experimental: axe checks both only on
// request.
const rules = { 'target-size': { enabled: true }, 'label-content-name-mismatch': { enabled: true } };

// Four English words in a row are an untranslated sentence, unless a device, a person or a program
// wrote them.
const englishIn = () => {
  const foreign = 'code, pre, samp, kbd, textarea, [lang=en], .foreign, bdi, option';
  const found = [];
  const walk = document.createTreeWalker(document.querySelector('main') ?? document.body, NodeFilter.SHOW_TEXT);
  for (let n = walk.nextNode(); n; n = walk.nextNode()) {
    if (n.parentElement.closest(foreign)) continue;
    const sentence = n.data.match(/[A-Za-z][a-z']+(?: [A-Za-z][a-z']+){3,}/);
    if (sentence) found.push(sentence[0]);
  }
  return found;
};

/** Returns the faults of a page, as lines; path is its name in them. */
export async function complaints(page, path, { ready, accessible = true } = {}) {
  const found = [];
  const response = await page.goto(path);
  if (response.status() !== 200) found.push(`${path}: ${response.status()}`);
  if (ready) await page.waitForSelector(ready);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  if (wide > 0) found.push(`${path} scrolls sideways by ${wide}px`);
  if (!accessible) return found;
  if (await page.evaluate(() => document.documentElement.lang.startsWith('zh'))) {
    for (const sentence of await page.evaluate(englishIn)) found.push(`${path} is English: ${sentence}`);
  }
  await page.evaluate(axe);
  const { violations } = await page.evaluate(rules => window.axe.run(document, { resultTypes: ['violations'], rules }), rules);
  for (const v of violations.filter(v => ['serious', 'critical'].includes(v.impact))) {
    found.push(`${path}: ${v.id}: ${v.nodes.slice(0, 3).map(n => n.html.slice(0, 160)).join(' | ')}`);
  }
  return found;
}

/**
 * Tests pages at the width of a desktop and of a phone, light in English and
 * dark in Chinese. start returns { browser, url, session } and paths the pages,
 * each a path or [path, selector to wait for]; both run with the test.
 * SHOTS=DIR saves a picture of each.
 */
export function testPages(name, start, paths, options = {}) {
  for (const width of [1440, 390]) for (const colorScheme of ['light', 'dark']) {
    test(`${name}, ${width} wide, ${colorScheme}`, options, async () => {
      const { browser, url, session } = start();
      const locale = colorScheme === 'dark' ? 'zh-CN' : 'en';
      const page = await newPage(browser, url, { viewport: { width, height: 844 }, colorScheme, locale, bypassCSP: true, storageState: session });
      const found = [];
      for (const entry of paths()) {
        const [path, ready] = [entry].flat();
        found.push(...await complaints(page, path, { ready }));
        if (process.env.SHOTS) {
          const file = path.replaceAll(/[^a-z0-9]+/gi, '_').slice(0, 80);
          await page.screenshot({ path: `${process.env.SHOTS}/${file}-${width}-${colorScheme}.png`, fullPage: true });
        }
      }
      assert.deepEqual([...found, ...page.errors], []);
      await page.context().close();
    });
  }
}
