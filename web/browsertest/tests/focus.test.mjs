// The keyboard: the focused element is visible, on a wide window and on a phone.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { eventually, newPage, newSession, startBrowser, startFleetd } from '../server.mjs';

let fleetd, browser, session, device;

before(async () => {
  [fleetd, browser] = await Promise.all([startFleetd(4), startBrowser()]);
  session = await newSession(browser, fleetd.url);
  const page = await newPage(browser, fleetd.url, { storageState: session });
  device = await eventually('a device that offers tools', async () => {
    await page.goto('/devices?q=presence:online+tool:self.reboot');
    const link = page.locator('tbody tr a').first();
    return await link.count() ? link.getAttribute('href') : '';
  });
  await page.context().close();
});

after(async () => {
  await browser?.close();
  await fleetd?.stop();
});

// nextStop returns the state of the focus: '' if there is none, 'again' after a full round, 'ok' if
// the focused element, or the label of a restyled control, is visible.
const nextStop = () => {
  const el = document.activeElement;
  if (!el || el === document.body) return '';
  if (el.dataset.stopped) return 'again';
  el.dataset.stopped = '1';
  const seen = e => {
    let { left, top, right, bottom } = e.getBoundingClientRect();
    for (let p = e.parentElement; p; p = p.parentElement) {
      const style = getComputedStyle(p), box = p.getBoundingClientRect();
      if (style.clipPath !== 'none') return false;
      if (style.overflow === 'visible') continue;
      left = Math.max(left, box.left); right = Math.min(right, box.right);
      top = Math.max(top, box.top); bottom = Math.min(bottom, box.bottom);
    }
    left = Math.max(left, 0); right = Math.min(right, innerWidth);
    top = Math.max(top, 0); bottom = Math.min(bottom, innerHeight);
    const style = getComputedStyle(e);
    if (style.visibility !== 'visible' || style.opacity === '0' || style.clipPath !== 'none') return false;
    if (right - left < 4 || bottom - top < 4) return false;
    const above = document.elementFromPoint((left + right) / 2, (top + bottom) / 2);
    return e.contains(above) || above?.contains(e) === true;
  };
  return seen(el) || [...(el.labels ?? [])].some(seen) ? 'ok' : el.outerHTML.slice(0, 160);
};

const pages = () => ['/', '/devices', '/devices?view=wall', device, `${device}/tools`, `${device}/tools/self.audio_speaker.set_volume`,
  `${device}/configuration`, '/calls', '/fanouts', '/audit', '/firmware', '/firmware/images', '/campaigns', '/campaigns/new', '/approvals',
  '/alerts', '/claim', '/settings', '/settings/alerts', '/settings/policies', '/settings/account', '/enrolment/rules', '/help', '/flash'];

for (const [width, height] of [[1440, 900], [390, 844]]) {
  test(`each stop of the tab key is visible, ${width} pixels wide`, async () => {
    const page = await newPage(browser, fleetd.url, { storageState: session, viewport: { width, height } });
    let stops = 0;
    for (const path of pages()) {
      const answer = await page.goto(path);
      assert.ok(answer.ok(), `${path}: ${answer.status()}`);
      await page.waitForFunction(() => document.documentElement.classList.contains('scripted'));
      const hidden = [];
      for (let i = 0; i < 200; i++) {
        await page.keyboard.press('Tab');
        const stop = await page.evaluate(nextStop);
        if (stop === '' || stop === 'again') break;
        stops++;
        if (stop !== 'ok') hidden.push(stop);
      }
      assert.deepEqual(hidden, [], path);
    }
    assert.ok(stops > 15 * pages().length, `${stops} stops`);
    assert.deepEqual(page.errors, []);
    await page.context().close();
  });
}
