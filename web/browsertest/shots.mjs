// Takes screenshots of console pages for visual checks:
//    node shots.mjs URL PASSWORD OUTDIR path[=name] ...
// each at 1440 and 390 pixels, light and dark, English and Chinese. ONLY=1440-light-en limits the
// variants.
import { chromium } from 'playwright-core';
import { mkdir } from 'node:fs/promises';
import { browserPath } from './server.mjs';

const [base, password, out, ...paths] = process.argv.slice(2);
await mkdir(out, { recursive: true });
const browser = await chromium.launch({ executablePath: browserPath, args: ['--no-sandbox', '--disable-gpu', '--disable-background-networking'] });
for (const width of [1440, 390]) for (const scheme of ['light', 'dark']) for (const lang of ['en', 'zh-CN']) {
  const variant = `${width}-${scheme}-${lang}`;
  if (process.env.ONLY && !process.env.ONLY.split(',').includes(variant)) continue;
  const context = await browser.newContext({ viewport: { width, height: width === 390 ? 844 : 900 }, colorScheme: scheme, locale: lang, baseURL: base, hasTouch: width === 390 });
  const page = await context.newPage();
  page.on('console', m => m.type() === 'error' && console.error(variant, page.url(), m.text()));
  page.on('pageerror', e => console.error(variant, page.url(), e.message));
  await page.goto('/sign-in');
  await page.fill('input[name=name]', 'admin');
  await page.fill('input[name=password]', password);
  await Promise.all([page.waitForURL(u => !u.pathname.startsWith('/sign-in')), page.click('form:has(input[name=password]) button')]);
  for (const spec of paths) {
    const [path, name = path.replace(/[^a-z0-9]+/gi, '_')] = spec.split('=>');
    await page.goto(path);
    await page.waitForTimeout(700);
    const overflow = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    if (overflow > 0) console.error(`${variant} ${path}: scrolls sideways by ${overflow}px`);
    await page.screenshot({ path: `${out}/${name}-${variant}.png`, fullPage: true });
  }
  await context.close();
}
await browser.close();
