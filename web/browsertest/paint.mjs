// Measures how soon pages arrive and are painted, with a running fleet:
//    node paint.mjs URL PASSWORD ROUNDS path ...
// prints for each path the median and the slowest of first byte and first paint, and the
// transferred size, in milliseconds and kB. The browser keeps its cache between the rounds, as an
// operator's browser does.
import { newSession, startBrowser } from './server.mjs';

const [url, password, rounds, ...paths] = process.argv.slice(2);
const browser = await startBrowser();
const session = await newSession(browser, url, password);
const context = await browser.newContext({ baseURL: url, viewport: { width: 1440, height: 900 }, storageState: session });
const page = await context.newPage();
const median = list => list.toSorted((a, b) => a - b)[Math.floor(list.length / 2)];
console.log('| page | first byte | slowest | first paint | slowest | kB |');
console.log('|---|---:|---:|---:|---:|---:|');
for (const path of paths) {
  const bytes = [], paints = [];
  let size;
  for (let i = -1; i < Number(rounds); i++) { // the first round fills caches
    await page.goto(path, { waitUntil: 'load' });
    const seen = await page.evaluate(async () => {
      const paint = await new Promise(resolve => new PerformanceObserver((list, o) => {
        const first = list.getEntriesByName('first-contentful-paint')[0];
        if (first) { o.disconnect(); resolve(first.startTime); }
      }).observe({ type: 'paint', buffered: true }));
      const [nav] = performance.getEntriesByType('navigation');
      return { byte: nav.responseStart - nav.requestStart, paint, size: nav.encodedBodySize };
    });
    if (i < 0) continue;
    bytes.push(seen.byte);
    paints.push(seen.paint);
    size = seen.size;
  }
  const ms = n => n.toFixed(1);
  console.log(`| ${path} | ${ms(median(bytes))} | ${ms(Math.max(...bytes))} | ${ms(median(paints))} | ${ms(Math.max(...paints))} | ${(size / 1000).toFixed(1)} |`);
}
await browser.close();
