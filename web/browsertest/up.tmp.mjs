import { newPage, signIn, startBrowser } from './server.mjs';
import { appImage } from './images.mjs';
const [url, pw, out] = process.argv.slice(2);
const b = await startBrowser();
for (const [js, width, locale, scheme] of [[true, 390, 'zh-CN', 'dark'], [false, 390, 'en', 'light'], [true, 1440, 'en', 'light']]) {
  const p = await newPage(b, url, { javaScriptEnabled: js, viewport: { width, height: 844 }, locale, colorScheme: scheme });
  await signIn(p, 'admin', pw); await p.waitForSelector('h1');
  await p.goto('/firmware/images');
  await p.setInputFiles('input[type=file]', [{ name: 'xiaozhi.bin', mimeType: 'application/octet-stream', buffer: appImage({ size: 600_000, version: '3.0.' + width }) }, { name: 'bad.bin', mimeType: 'application/octet-stream', buffer: Buffer.from('bad') }]);
  if (!js) await p.click('#upload form button');
  await p.waitForTimeout(2500);
  await p.locator('#upload').screenshot({ path: `${out}/upload-${width}-${js ? 'js' : 'plain'}.png` });
}
await b.close();
