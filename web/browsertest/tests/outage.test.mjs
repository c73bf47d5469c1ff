// A page that stays open while the database hangs, and while fleetd restarts.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { eventually, newPage, newSession, signIn, startBrowser, startFleetd, startNetwork } from '../server.mjs';

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

const live = (of = page) => of.locator('#live-state:not(.lost)', { hasText: 'Live' }).waitFor();
const note = page => page.locator('.stale-note');

test('a page shows that the database is unavailable, and that it is back', async () => {
  const thaw = await fleetd.freezeDatabase();
  try {
    await note(page).waitFor();
    assert.match(await note(page).innerText(), /^The database has not responded for \d+ s\./);
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

test('a page is live again after a restart of fleetd, and shows it', async () => {
  await fleetd.restart();
  await note(page).waitFor({ state: 'detached' });
  await live();
  await eventually('the page was read again', () => page.locator('#presence-now').count());
  await live(); // reading the page again keeps the text
});

// A page behind a separate network, with a clock that the test can advance.
async function behind(network) {
  const page = await newPage(browser, network.url);
  await page.clock.install();
  await signIn(page);
  await live(page);
  return page;
}

test('a page opens another stream if the first gets no response', async () => {
  const network = await startNetwork(fleetd.url), page = await behind(network);
  network.hold();
  network.cut();
  await page.locator('#live-state.lost').waitFor();
  await eventually('the stream was asked for again', () => network.asked.some(line => line.startsWith('GET /events')));
  network.pass();
  for (const end = Date.now() + 60_000; !await page.locator('#live-state:not(.lost)').count();) {
    assert.ok(Date.now() < end, 'the page waits for what never comes');
    await page.clock.fastForward(5000);
  }
  await note(page).waitFor({ state: 'detached' });
  await page.context().close();
  await network.stop();
});

test('a page without a stream and a database reports the database', async () => {
  const network = await startNetwork(fleetd.url), page = await behind(network);
  const thaw = await fleetd.freezeDatabase();
  try {
    await note(page).waitFor();
    network.cut();
    await page.locator('#live-state.lost').waitFor();
    await eventually('the page says what does not answer', async () =>
      await page.locator('#live-state.lost').count() && /^The database has not responded/.test(await note(page).innerText()));
  } finally {
    thaw();
  }
  await live(page);
  await note(page).waitFor({ state: 'detached' });
  await page.context().close();
  await network.stop();
});

test('a page shows that a silent stream is lost, and is live again', async () => {
  const network = await startNetwork(fleetd.url), page = await behind(network);
  network.hold();
  await page.clock.fastForward(45_000);
  assert.equal(await page.locator('#live-state.lost').count(), 0, 'a late beat is no loss');
  await page.clock.fastForward(6000);
  await page.locator('#live-state.lost').waitFor();
  await page.clock.fastForward(3000);
  assert.match(await note(page).innerText(), /^The server has not responded for \d+ s\./);
  network.pass();
  await page.clock.fastForward(16_000);
  await live(page);
  await note(page).waitFor({ state: 'detached' });
  await page.context().close();
  await network.stop();
});

test('one page too many shows that it is not live, and is live after another is closed', async () => {
  const others = await Promise.all([1, 2, 3, 4].map(() => page.context().newPage()));
  for (const other of others) {
    await other.goto('/');
    await live(other);
  }
  const last = await page.context().newPage();
  await last.goto('/');
  await last.locator('#live-state.lost', { hasText: 'too many pages are open' }).waitFor();
  assert.match(await note(last).innerText(), /^Not live: too many pages are open/);
  await others[0].close();
  await live(last);
  await note(last).waitFor({ state: 'detached' });
});
