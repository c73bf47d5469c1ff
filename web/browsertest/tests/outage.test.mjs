// A page that stays open while the database hangs, and while fleetd starts again.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { eventually, newPage, newSession, startBrowser, startFleetd } from '../server.mjs';

let fleetd, browser, page;

before(async () => {
  [fleetd, browser] = await Promise.all([startFleetd(3), startBrowser()]);
  page = await newPage(browser, fleetd.url, { storageState: await newSession(browser, fleetd.url) });
  await page.goto('/');
  await live();
});

after(async () => {
  await browser?.close();
  await fleetd?.stop();
});

const live = () => page.locator('#live-state:not(.lost)', { hasText: 'Live' }).waitFor();
const note = page => page.locator('.stale-note');

test('a page says that the database does not answer, and that it is back', async () => {
  const thaw = await fleetd.freezeDatabase();
  try {
    await note(page).waitFor();
    assert.match(await note(page).innerText(), /^The database has not answered for \d+ s\./);
    assert.equal(await page.locator('body.stale').count(), 1, 'the page is not dimmed');
    await live();
  } finally {
    thaw();
  }
  await note(page).waitFor({ state: 'detached' }).catch(err => {
    throw new Error(`${err.message}\nThe server says:\n${fleetd.output().slice(-30_000)}`);
  });
  assert.equal(await page.locator('body.stale').count(), 0, 'the page is dimmed still');
});

test('a page is live again after a restart of fleetd, and says so', async () => {
  await fleetd.restart();
  await note(page).waitFor({ state: 'detached' });
  await live();
  await eventually('the page was read again', () => page.locator('#presence-now').count());
  await live(); // what was read does not take the word away
});
