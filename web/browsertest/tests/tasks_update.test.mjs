// The tasks around updates and outages, with their number of clicks. Each begins at the overview, or at the page that
// is named, and uses only what the pages show: roles, names, text. Each asserts the effect over REST, too.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { countClicks } from '../clicks.mjs';
import { eventually, newPage, newSession, newToken, restWith, startBrowser, startFleetd, startSim } from '../server.mjs';

// The devices of a hall lose their connections together; all other ones come when the campaigns need them: one that is
// switched off, one that answers each call with an error, one that refuses an image after the download, and two that
// are well.
const hall = 60, fleet = 2 + hall, place = 'site-2/hall-1';
const firstOfHall = 'a085e3600001', away = 'a085e3520001', refuses = 'a085e3510001', badImage = 'a085e3530001';
const held = 'a085e3540001', waits = 'a085e3540002';
const mac = id => id.match(/../g).join(':');
const target = '2.5.0'; // the newest release of the demo

let fleetd, browser, page, rest, sims;
const { click, task } = countClicks(() => page);

const link = (name, within = page.getByRole('main')) => within.getByRole('link', { name, exact: typeof name === 'string' });
const button = name => page.getByRole('main').getByRole('button', { name });
const shows = text => page.getByRole('main').getByText(text).first().waitFor();
const device = id => rest('GET', `/devices/${id}`);

// A page shows changes once it is live. It is marked, so that a test notices a reload.
const mark = async () => {
  await page.getByRole('main').getByText('Live', { exact: true }).waitFor();
  await page.evaluate(() => { window.sameDocument = true; });
};
const unloaded = async () => assert.ok(await page.evaluate(() => window.sameDocument), 'the page was loaded again');

const online = n => eventually(`${n} devices are online`, async () => (await rest('GET', '/stats')).presence.online === n);

before(async () => {
  [fleetd, browser] = await Promise.all([startFleetd(2), startBrowser()]);
  page = await newPage(browser, fleetd.url, { storageState: await newSession(browser, fleetd.url) });
  rest = restWith(fleetd.url, await newToken(page));
  await rest('PATCH', '/alerts/thresholds', { settle_ms: 0, end_after_ms: 5000 });
  sims = { hall: startSim(fleetd.url, hall, mac(firstOfHall)) };
  await online(fleet);
  await rest('POST', '/devices/bulk', { act: 'tag', q: 'id:a085e360*', tags: [place] });
});

after(async () => {
  await browser?.close();
  for (const sim of Object.values(sims ?? {})) await sim.cut();
  await fleetd?.stop();
});

// plan starts a campaign. A device that an ended campaign has not released yet is left out, so it waits for that.
async function plan(name, targets, devices, more) {
  const { items } = await rest('GET', '/releases');
  const body = { name, release_id: items.find(r => r.version === target).id, q: `id:${devices.join(',')}`, abort_rules: [], ...more };
  await eventually(`${name} has its devices`, async () =>
    (await rest('POST', '/campaigns/dry-run', body).catch(() => null))?.targets === targets);
  const { id } = await rest('POST', '/campaigns', body);
  await rest('POST', `/campaigns/${id}/start`);
  return id;
}

const part = (campaign, id) => rest('GET', `/campaigns/${campaign}/deployments/${id}`);

task('updating a fleet', 4, async () => {
  await click(page.getByRole('navigation', { name: 'Main' }).getByRole('link', { name: 'Releases' }));
  await click(link(target));
  await click(link('Start a campaign'));
  const start = page.getByRole('main').getByRole('button', { name: /^Start: \d+ devices$/ });
  await start.waitFor();
  const targets = Number((await start.innerText()).match(/\d+/));
  assert.equal(targets, fleet);
  await shows(`${targets} devices get ${target} in 3 waves, starting now.`);
  await click(start);
  await page.waitForURL(/\/campaigns\/[0-9a-f-]{36}$/);
  await shows('Wave 1 of 3 is open.');
  const id = page.url().split('/').pop();
  const campaign = await rest('GET', `/campaigns/${id}`);
  assert.deepEqual([campaign.state, campaign.targets], ['running', targets]);
  const canary = await eventually('the canary runs the image', async () =>
    (await rest('GET', `/campaigns/${id}/deployments?state=verifying`)).items[0]);
  assert.equal((await device(canary.device_id)).version, target);
  await rest('POST', `/campaigns/${id}/abort`);
});

// Many devices go away at once: one alert. 60 devices stand for 5,000.
task('seeing what devices that went away have in common', 3, async () => {
  await online(fleet);
  await mark();
  await sims.hall.cut();
  await page.locator('#presence-now').getByText(/^2$/).first().waitFor();
  const alerts = page.locator('#alerts-now').getByRole('listitem');
  const line = alerts.filter({ hasText: `${hall} of ${fleet} devices are offline` });
  await line.waitFor();
  await unloaded();
  assert.equal(await alerts.count(), 1);
  assert.match(await line.innerText(), /for \d+ (s|min)/);
  const { items } = await rest('GET', '/alerts?state=open');
  assert.deepEqual(items.map(a => [a.kind, a.devices]), [['online_dropped', hall]]);
  await click(line.getByRole('link').first());
  await page.getByRole('heading', { name: `Devices ${hall}` }).waitFor();
  const rows = page.locator('tbody').getByRole('row');
  assert.equal(await rows.filter({ hasText: place }).count(), await rows.count());
  for (const text of await page.locator('tbody time').allInnerTexts()) assert.match(text, /^(just now|\d+ (s|min) ago)$/);
  await click(link('Places'));
  await page.getByRole('listitem').filter({ hasText: 'hall-1' }).filter({ hasText: `${hall} devices` }).filter({ hasText: '0% online' }).first().waitFor();
});

test('the alert ends without a reload when the devices are back', async () => {
  await page.goto('/');
  await mark();
  const line = page.locator('#alerts-now').getByRole('link', { name: /offline/ });
  await line.waitFor();
  sims.hall = startSim(fleetd.url, hall, mac(firstOfHall));
  await line.waitFor({ state: 'detached' });
  await unloaded();
  const ended = (await rest('GET', '/alerts?state=ended')).items.filter(a => a.kind === 'online_dropped');
  assert.deepEqual(ended.map(a => a.devices), [hall]);
  await online(fleet);
  await page.goto('/alerts');
  await link('Ended').click();
  await shows(new RegExp(`^${hall} devices (were|went) offline .* are back`));
  assert.deepEqual(page.errors, []);
});

// Two campaigns that leave devices without the update, each for another reason.
let stopped, waiting;

test('campaigns that do not update all of their devices', async () => {
  Object.assign(sims, {
    away: startSim(fleetd.url, 1, mac(away)),
    refuses: startSim(fleetd.url, 1, mac(refuses), '--faults=error'),
    badImage: startSim(fleetd.url, 1, mac(badImage), '--faults=late-true'),
    bench: startSim(fleetd.url, 2, mac(held)),
  });
  await online(fleet + 5);
  await rest('POST', `/devices/${held}/hold`, { reason: 'on the bench' });
  await sims.away.cut();
  await eventually('it is offline', async () => (await device(away)).presence === 'offline');
  stopped = await plan('the bench', 3, [held, refuses, badImage, waits],
    { waves: [{ devices: [refuses, badImage], soak_ms: 1000 }, { percent: 100, soak_ms: 1000 }] });
  waiting = await plan('the attic', 1, [away], { waves: [{ percent: 100, soak_ms: 1000 }] });
  await eventually('the first wave has failed', async () => (await rest('GET', `/campaigns/${stopped}`)).state === 'paused');
  await eventually('the device is due', async () => (await part(waiting, away)).state === 'queued'); // the engine opens the wave
});

// why is the task to find the sentences about a device, in the page of its part in a campaign.
const why = (reason, most, campaign, id, find, ...sentences) => task(`learning that ${reason}`, most, async () => {
  await click(link(campaign));
  await find();
  await page.waitForURL(`**/campaigns/*/devices/${id}`);
  for (const sentence of sentences) await shows(sentence);
});

const throughList = (name, id) => async () => {
  await click(link(name));
  await page.getByRole('heading', { name: 'Devices in the campaign' }).waitFor();
  await click(link(mac(id)));
};

why('a device is on hold', 3, 'the bench', held, throughList('on hold', held),
  'Left out: on hold.', /^held by program-admin: on the bench$/, 'Press “End hold” on the device’s page, then update it from there.');

test('what the page says of the hold helps', async () => {
  assert.equal((await part(stopped, held)).skip, 'held');
  await link('Device’s firmware').click();
  await button('End hold').click();
  await eventually('the hold has ended', async () => !(await device(held)).hold);
  await link('Timeline').click();
  await link(`Update to ${target}…`).click();
  await button('Start: 1 device').click();
  await page.waitForURL(/\/campaigns\/[0-9a-f-]{36}$/);
  await eventually('it runs the image', async () => (await device(held)).version === target);
  await rest('POST', `/campaigns/${page.url().split('/').pop()}/abort`);
});

why('a device answered with an error', 2, 'the bench', refuses, () => click(link(mac(refuses))),
  'The device answered with an error. Nothing changed on it.', /^The device reports: .*Simulated failure of self\.upgrade_firmware/,
  'Remove the cause that the device reports, then press “Try again”.');

why('a device refused the image', 2, 'the bench', badImage, () => click(link(mac(badImage))),
  /^The device downloaded the image and refused it\. It still runs 2\.\d\.\d\.$/,
  'Check whether the image is intact and was built for this board, before you press “Try again”.');

why('the campaign is paused', 3, 'the bench', waits, throughList(/waiting$/, waits),
  'The campaign is paused.', 'The campaign’s page says why, and how to continue.');

test('what the page says of the pause helps', async () => {
  await link('the bench', page.getByRole('navigation', { name: 'You are here' })).click();
  await shows(/^Wave 1 did not reach 90% success/);
  await button('Resume').click();
  await button('Open wave 2').click();
  await eventually('it runs the image', async () => (await device(waits)).version === target);
  for (const id of [refuses, badImage]) assert.notEqual((await device(id)).version, target);
  await eventually('the campaign is over', async () => /^completed/.test((await rest('GET', `/campaigns/${stopped}`)).state));
});

why('a device is offline', 3, 'the attic', away, throughList(/waiting$/, away),
  'The device is offline or has no upgrade tool. It gets the image when it connects or boots.',
  'Check its power and network. If it is online, restart it.');

test('what the page says of the offline device is true', async () => {
  await mark();
  sims.away = startSim(fleetd.url, 1, mac(away));
  await shows(`The device runs ${target}, is connected, passed its checks and stayed healthy.`);
  await unloaded();
  assert.equal((await device(away)).version, target);
});

// Here a device that is switched off waits for its operator.
task('a call that is made when the device is back', 4, async () => {
  const id = away;
  await mark();
  await sims.away.cut();
  await page.getByRole('main').getByRole('link', { name: /offline/ }).waitFor();
  await click(link(/offline/));
  await click(link(mac(id)));
  await click(page.getByRole('main').locator('summary', { hasText: 'Volume' }));
  await page.getByRole('spinbutton', { name: 'Volume' }).fill('33');
  await click(button('Set'));
  const outcome = page.locator('#result');
  await outcome.getByText('waiting for device').waitFor();
  await outcome.getByText('the call is sent once it is back').waitFor();
  const [call] = (await rest('GET', `/calls?device=${id}&state=pending_device`)).items;
  assert.deepEqual([call.tool, call.arguments.volume, call.actor.name], ['self.audio_speaker.set_volume', 33, 'admin']);
  await mark();
  sims.away = startSim(fleetd.url, 1, mac(id));
  await outcome.getByText('succeeded').waitFor();
  await outcome.getByText('waiting for device').waitFor({ state: 'hidden' });
  const entry = page.locator('#timeline').getByRole('listitem').filter({ hasText: '"volume":33' });
  await entry.filter({ hasText: 'admin' }).filter({ hasNotText: 'waiting for device' }).first().waitFor();
  await unloaded();
  assert.equal((await rest('GET', `/calls/${call.id}`)).state, 'succeeded');
  const status = await rest('POST', `/devices/${id}/calls`, { tool: 'self.get_device_status' });
  assert.equal(JSON.parse(status.result.content[0].text).audio_speaker.volume, 33);
});

task('asking a device that is away for its status, from its page', 4, async () => {
  const id = away;
  await sims.away.cut();
  await eventually('it is offline', async () => (await device(id)).presence === 'offline');
  await page.goto(`/devices/${id}`);
  await click(link('Call a tool'));
  await click(link(/^self\.get_device_status/));
  assert.ok(await page.getByLabel('Send it when the device is back, within 24 hours').isChecked());
  await click(button('Call'));
  const outcome = page.locator('#result');
  await outcome.getByText('waiting for device').waitFor();
  await mark();
  sims.away = startSim(fleetd.url, 1, mac(id));
  await outcome.getByText('audio_speaker').first().waitFor();
  await unloaded();
  const { items: [call] } = await rest('GET', `/calls?device=${id}&tool=self.get_device_status`);
  assert.deepEqual([call.state, call.actor.name], ['succeeded', 'admin']);
  await click(link('Timeline'));
  const entry = page.locator('#timeline').getByRole('listitem').filter({ hasText: 'self.get_device_status' });
  assert.match(await entry.first().innerText(), /admin/);
});
