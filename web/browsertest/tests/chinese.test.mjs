// A page in Chinese contains no English sentence of the console: text of devices and operators is
// marked as foreign, all other text is in the catalogue.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { appImage, mergedBinary } from '../images.mjs';
import { eventually, newPage, password, signIn, startBrowser, startFleetd } from '../server.mjs';

const unknown = '00000000-0000-0000-0000-000000000000';
const volume = 'self.audio_speaker.set_volume';
let fleetd, browser, page, device, away;

// The English on a page: four words in a row, outside of text of devices, operators and programs.
const english = on => on.evaluate(() => {
  const foreign = '.foreign, code, pre, kbd, samp, svg, script, style, textarea, option, datalist, [lang=en]';
  const names = /\b(Content-Type|Device-Id|Client-Id|User-Agent|ESP-IDF|Web Serial|Google Chrome|Microsoft Edge)\b/g;
  const found = [];
  const look = text => {
    const sentence = text.replace(names, '·').match(/[A-Za-z][A-Za-z'’]+(?:[,;:]?\s+[A-Za-z][A-Za-z'’]+){3,}/);
    if (sentence) found.push(sentence[0].slice(0, 120));
    const name = text.match(/[a-z_]+\[\d+\]|(需要|角色是|角色为) ?(viewer|operator|admin)\b/); // of a field, or of a role, in programs
    if (name) found.push(name[0]);
    const tight = text.replace(/(\d+年)?\d+月(\d+日)?/g, '').match(/[\u4e00-\u9fff][A-Za-z0-9].{0,12}|.{0,12}[A-Za-z0-9][\u4e00-\u9fff]/);
    if (tight) found.push(`no space in ${tight[0]}`);
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = texts.nextNode());) {
    if (!node.parentElement.closest(foreign)) look(node.data);
  }
  for (const e of document.querySelectorAll('[title], [aria-label], [placeholder]')) {
    if (e.closest(foreign)) continue;
    for (const name of ['title', 'aria-label', 'placeholder']) if (e.hasAttribute(name)) look(e.getAttribute(name));
  }
  return found;
});

const complaints = [];

async function look(where, on = page) {
  assert.equal(await on.getAttribute('html', 'lang'), 'zh-CN', where);
  for (const sentence of await english(on)) complaints.push(`${where}: ${sentence}`);
}

async function visit(path, status = 200, on = page) {
  const response = await on.goto(path);
  assert.equal(response.status(), status, path);
  await look(path, on);
}

/** Sends a form that the pages would refuse, and checks the response. */
async function post(path, fields, on = page) {
  const body = new URLSearchParams(fields).toString();
  const response = await on.request.post(path, { data: body, headers: {
    Accept: 'text/html',
    'Content-Type': 'application/x-www-form-urlencoded', Origin: fleetd.url, 'Sec-Fetch-Site': 'same-origin', 'Accept-Language': 'zh-CN' } });
  const status = response.status();
  await on.goto('about:blank');
  await on.setContent((await response.text()).replace(/<(script|link)[^>]*>(<\/script>)?/g, ''));
  await look(`POST ${path} ${body.slice(0, 60)} (${status})`, on);
  return status;
}

/** The text of an element must be the console's: nothing in it is marked as foreign and English. */
async function ours(selector, where) {
  for (const text of await page.locator(selector).allInnerTexts()) {
    const sentence = text.match(/[A-Za-z][A-Za-z'’]+(?:[,;:]?\s+[A-Za-z][A-Za-z'’]+){3,}/);
    if (sentence) complaints.push(`${where}, ${selector}: ${sentence[0].slice(0, 120)}`);
  }
}

async function none(t) {
  await t();
  assert.deepEqual(complaints.splice(0), []);
}

const refused = async (path, fields, on = page) => assert.ok(await post(path, fields, on) >= 400, `${path} was not refused`);

const call = async (d, tool, fields) => {
  await page.goto(`${d}/tools/${tool}`);
  for (const [name, value] of Object.entries(fields)) await page.fill(`.tool-form input[name="${name}"] >> nth=0`, value);
  await page.click('.tool-form button[type=submit], .tool-form button.btn-primary');
  await page.waitForSelector('#result:not(:empty)');
  await look(`${tool} of ${d}`);
};

before(async () => {
  [fleetd, browser] = await Promise.all([startFleetd(12), startBrowser()]);
  page = await newPage(browser, fleetd.url, { locale: 'zh-CN' });
  await signIn(page);
});

after(async () => {
  await browser?.close();
  await fleetd?.stop();
});

test('an English sentence is found unless it is marked', async () => {
  await page.goto('/help');
  const found = await page.evaluate(() => {
    const p = document.body.appendChild(document.createElement('p'));
    p.innerHTML = '设备：the device went away today <span class="foreign">the device went away yesterday</span><p>waves[0].percent 为 0</p>'
      + '<p>需要 operator 角色</p><p>音量须为0 到 100，2026年8月2日</p><span class="foreign">须为0</span>';
  }).then(() => english(page));
  assert.deepEqual(found, ['the device went away today', 'waves[0]', '需要 operator', 'no space in 为0 到 100，']);
});

test('lists, help, settings and unknown addresses', () => none(async () => {
  for (const path of ['/', '/devices', '/devices?q=nothing-matches', '/devices?q=colour:red', '/devices?q=seen:soon', '/devices?q=%28', '/calls', '/fanouts',
    '/campaigns', '/campaigns/new', '/firmware', '/firmware/images', '/firmware/releases/new', '/enrolment/rules', '/flash', '/claim', '/settings',
    '/settings/serials', '/settings/keys', '/help']) await visit(path);
  for (const path of ['/nope', '/devices/a085e3ffffff', `/calls/${unknown}`, `/campaigns/${unknown}`, `/fanouts/${unknown}`,
    `/firmware/releases/${unknown}`, `/firmware/images/${'0'.repeat(64)}`, `/enrolment/rules/${unknown}`]) await visit(path, 404);
  await refused('/sign-in', { name: 'admin', password: 'not-the-password' });
}));

test('a device, its tabs, its tools', () => none(async () => {
  device = await eventually('a device with tools', async () => {
    await page.goto('/devices?q=presence:online+tool:self.reboot');
    const links = page.locator('tbody tr a.name');
    away = await links.count() > 1 && await links.nth(1).getAttribute('href');
    return away && links.first().getAttribute('href');
  });
  for (const tab of ['', '/tools', `/tools/${volume}`, '/tools/self.reboot', '/tools/nope', '/configuration', '/firmware', '/screen', '/facts', '/health', '/logs', '/replace']) {
    const response = await page.goto(device + tab);
    assert.ok(response.status() < 500, tab);
    await look(device + tab);
  }
}));

test('calls that succeed, fail and are refused', () => none(async () => {
  await call(device, volume, { 'arg.volume': '21' });
  await call(device, 'self.get_device_status', {});
  for (const fields of [{ 'arg.volume': '140' }, { 'arg.volume': 'loud' }, {}, { 'arg.volume': '1', timeout: 'soon' }]) await post(`${device}/tools/${volume}`, fields);
  await post(`${device}/tools/self.nope`, {});
  await post(`${device}/tools/self.reboot`, {});
  await post(`${device}/tools/self.reboot`, { confirm: 'wrong' });
  await post(`${device}/tools/self.upgrade_firmware`, { 'arg.url': 'http://192.0.2.1/x.bin' });
  await post(`${device}/tools/self.screen.preview_image`, {});
  await post(`${device}/config`, { read_at: 'soon' });
  await post(`${device}/logs/level`, { level: 'loud' });
  await post(`${device}/core-dumps`, {});
  await page.goto(`${away}/tools/self.reboot`);
  const word = await page.locator('.tool-form input[name=confirm]').getAttribute('data-confirm');
  // A restart is short: if the check misses it, it requests another.
  const restart = () => post(`${away}/tools/self.reboot`, { confirm: word }).finally(() => { back = true; });
  let back = false, reboot = restart();
  await eventually('the device is offline', async () => {
    if (back) { await reboot; back = false; reboot = restart(); }
    const other = await page.context().newPage();
    await other.goto(`${fleetd.url}${away}`);
    const offline = /离线/.test(await other.locator('#device-head').innerText());
    if (offline) { await look(`${away} offline`, other); await other.goto(`${fleetd.url}${away}/configuration`); await look(`${away}/configuration`, other); }
    await other.close();
    return offline;
  });
  await reboot;
  await visit('/calls');
  const calls = await page.locator('tbody tr a[href^="/calls/"]').evaluateAll(all => [...new Set(all.map(a => a.getAttribute('href')))]);
  let ends = 0; // timelines that show the end of a connection
  for (const path of calls.slice(0, 12)) {
    await visit(path);
    await ours('.timeline', path);
    ends += await page.locator('.timeline li', { hasText: /断开|中断/ }).count();
  }
  assert.ok(ends > 0, 'a time line shows the end of a connection');
  await visit('/calls?state=failed');
  await look('failed calls');
  for (const path of ['/calls?since=soon', '/calls?device=x', '/calls?state=nope', '/calls?limit=0']) { await page.goto(path); await look(path); }
}));

test('acts on a device', () => none(async () => {
  await refused(`${device}/edit`, { tags: 'x'.repeat(400), name: 'x' });
  await post(`${device}/edit`, { name: 'x'.repeat(400) });
  await post(`${device}/hold`, { reason: '' });
  await post(`${device}/hold`, { reason: '测试' });
  await visit(device);
  await post(`${device}/tools/${volume}`, { 'arg.volume': '3' });
  await post(`${device}/release`, {});
  await post(`${device}/retire`, { confirm: 'wrong' });
  await post(`${device}/approve`, {});
  await post(`${device}/resolve-conflict`, {});
  await post(`${device}/replace`, { code: 'nope' });
  await post('/claim', { code: '000000' });
}));

test('calls to many devices', () => none(async () => {
  for (const query of ['', '?q=presence:online', `?q=presence:online&tool=${volume}`, `?q=colour:red&tool=${volume}`, '?q=presence:online&tool=self.nope',
    `?q=presence:online&tool=${volume}&arg.volume=140`, `?q=presence:online&tool=${volume}&arg.volume=11&run=1`]) {
    await page.goto(`/fanouts/new${query}`);
    await look(`/fanouts/new${query}`);
  }
  await post('/fanouts', { q: 'presence:online', tool: volume });
  await page.goto(`/fanouts/new?q=presence:online&tool=${volume}`);
  await page.locator('input[name="arg.volume"]').first().fill('21');
  await page.locator('main form button.btn-primary').last().click();
  await page.waitForSelector('main form[method=post]');
  await look('the preview');
  await page.locator('main form button.btn-primary').last().click();
  await page.waitForURL(/\/fanouts\/[0-9a-f-]{36}/);
  await look('the fan-out');
  await page.waitForSelector('main >> text=已完成');
  await look('the fan-out that is over');
  const path = new URL(page.url()).pathname;
  await visit('/fanouts');
  await post(`${path}/cancel`, {});
}));

const wrong = [{ 'wave.soak': 'soon' }, { 'wave.percent': '900' }, { 'wave.percent': '3' }, { q: 'colour:red' }, { in_flight: '0' }, { name: '' }, { name: 'x'.repeat(300) }, { 'wave.size': '900' }, { 'wave.sample': '-1' }, { heap: '900' },
  { start: '1999-01-01T00:00' }, { end: '1999-01-01T00:00' }, { 'check.tool': 'self.reboot' }, { 'check.path': 'x[' }, { 'win.cron': '* *' },
  { 'rule.percent': '900' }, { max_attempts: 'many' }, { mode: 'nope' }, { zone: 'Nowhere' }];

test('campaigns', () => none(async () => {
  await page.goto('/campaigns/new');
  await page.selectOption('select[name=release]', { index: 1 });
  await page.waitForURL(/release=[0-9a-f]/);
  await page.waitForSelector('.plan-do button[value=start]:enabled');
  await look('the wizard');
  const plan = new URL(page.url());
  for (const fields of wrong) {
    const url = new URL(plan);
    const [[name, value]] = Object.entries(fields);
    const rest = url.searchParams.getAll(name).slice(1);
    url.searchParams.delete(name);
    for (const v of [value, ...rest]) url.searchParams.append(name, v);
    url.searchParams.set('f', '1');
    await page.goto(url.pathname + url.search);
    await look(`the wizard with ${name}=${value}`);
    await post('/campaigns', [...url.searchParams]);
  }
  await page.goto(plan.pathname + plan.search);
  await page.click('.plan-how > summary');
  await page.click('button[name=preset][value=small]');
  await eventually('two waves', async () => await page.locator('input[name="wave.name"]').count() === 2);
  await page.click('.plan-do button[value=start]');
  await page.waitForURL(/\/campaigns\/[0-9a-f-]{36}$/);
  const campaign = new URL(page.url()).pathname;
  await look('the campaign');
  for (const act of ['approve', 'start', 'advance', 'retry', 'rollback', 'hurry']) await post(`${campaign}/${act}`, {});
  await eventually('a device is on its way', async () => {
    await visit(`${campaign}/devices`);
    return await page.locator('#list tbody tr a.name').count() > 0;
  });
  const deployment = await page.locator('#list tbody tr a.name').first().getAttribute('href');
  await visit(deployment);
  await post(`${deployment}/retry`, {});
  await eventually('a wave is over, or a device restarts', async () => {
    await visit(campaign);
    await visit(deployment);
    return await page.locator('.timeline li').count() > 4;
  });
  await post(`${campaign}/abort`, { reason: '测试' });
  await visit(campaign);
  await visit(`${campaign}/devices`);
  for (const path of await page.locator('#list tbody tr a.name').evaluateAll(all => all.slice(0, 6).map(a => a.getAttribute('href')))) await visit(path);
  await visit(`${campaign}/edit`);
  await visit('/campaigns');
  await visit('/');
  await visit(`${device}/firmware`);
}));

test('firmware, and files that are not firmware', () => none(async () => {
  const good = appImage({ size: 300_000, version: 'v3.0-beta' }), damaged = appImage({ size: 300_000 }), chip = appImage({ size: 40_000, seed: 'chip' });
  damaged[5000] ^= 1;
  chip.writeUInt16LE(0x77, 12);
  const files = { 'beta.bin': good, 'damaged.bin': damaged, 'chip.bin': chip, 'cut.bin': appImage({ size: 90_000 }).subarray(0, 50_000),
    'notes.txt': Buffer.from('no firmware'), 'short.bin': Buffer.from([0xe9]), 'x.elf': Buffer.concat([Buffer.from([0x7f, 0x45, 0x4c, 0x46]), Buffer.alloc(4000)]),
    'x.html': Buffer.from(`<!doctype html>${' '.repeat(4000)}`), 'x.zip': Buffer.concat([Buffer.from('PK\x03\x04'), Buffer.alloc(4000)]),
    'merged.bin': mergedBinary(appImage({ size: 60_000, version: '2.9.1' })), 'merged-damaged.bin': mergedBinary(damaged),
    'erased.bin': Buffer.alloc(8000, 0xff), 'zeros.bin': Buffer.alloc(8000), 'segments.bin': (() => { const b = appImage({ size: 50_000 }); b[1] = 200; return b; })() };
  await visit('/firmware/images');
  await page.setInputFiles('input[type=file]', Object.entries(files).map(([name, buffer]) => ({ name, mimeType: 'application/octet-stream', buffer })));
  const items = page.locator('#upload-results > li');
  await eventually('an outcome for each', async () => await items.count() === Object.keys(files).length && await page.locator('.upload-going').count() === 0);
  await look('the uploads');
  await ours('#upload-results .problem', 'the uploads');
  for (const [name, words] of [['damaged.bin', /校验和/], ['merged-damaged.bin', /ota_0.*校验和/], ['chip.bin', /0x77/], ['segments.bin', /200 个段/]]) {
    assert.match(await items.filter({ hasText: name }).last().locator('.problem').innerText(), words, name);
  }
  for (const board of await page.locator('#upload-results input[name^="board-"]').all()) await board.fill('esp-box-3');
  await page.selectOption('select[name=then]', 'keep');
  await page.click('[data-confirm-upload] button');
  await page.waitForSelector('#flash :is(.note, .toast)');
  await look('the images that were stored');
  const merged = await page.locator('#list tr', { hasText: '2.9.1' }).locator('a[href^="/firmware/images/"]').first().getAttribute('href');
  await visit(merged);
  assert.match(await page.locator('#layout .problem').innerText(), /引导程序/);
  await ours('#layout .problem', 'an image with a layout problem');
  await post('/firmware/releases', { image: merged.split('/').pop(), to: 'released' });
  await visit('/flash');
  assert.match(await page.locator('.flash-missing').innerText(), /引导程序/);
  await ours('.flash-missing', '/flash');
  await visit(`/flash?image=${merged.split('/').pop()}`);
  await visit('/firmware/images');
  const image = await page.locator('#list').locator('a[href^="/firmware/images/"]').first().getAttribute('href');
  await visit(image);
  await post(`${image}/edit`, { board: 'a bad board!' });
  await post(`${image}/revoke`, {});
  await post('/firmware/releases', {});
  await post('/firmware/releases', { version: 'a b', image: image.split('/').pop() });
  await visit(`/firmware/releases/new?image=${image.split('/').pop()}`);
  await visit('/firmware');
  const release = await page.locator('#list a.name').first().getAttribute('href');
  await visit(release);
  await visit(`${release}?q=colour:red`);
  await post(`${release}/state`, { state: 'nope' });
  await post('/flash/claim', { code: 'x' });
  await page.goto('/flash');
  await page.goto(`${page.url()}?image=${image.split('/').pop()}`);
  await look('flash of an image');
}));

test('enrolment, serial numbers, keys and operators', () => none(async () => {
  for (const fields of [{}, { name: 'x', networks: 'nope' }, { name: 'x', tags: 'bad tag!' }, { name: 'x', until: 'soon' }, { name: 'x', max: '-1' }]) await post('/enrolment/rules', fields);
  await post('/enrolment/rules', { name: '台面', board: 'esp-box-3', tags: 'bench' });
  await visit('/enrolment/rules');
  for (const rule of await page.locator('#rules a[href^="/enrolment/rules/"]').evaluateAll(all => all.map(a => a.getAttribute('href')))) await visit(rule);
  for (const text of ['', 'no,serial,here\nx\n', 'SN-1,not-hex\n']) {
    const response = await page.request.post('/settings/serials', { headers: { Origin: fleetd.url, 'Sec-Fetch-Site': 'same-origin', 'Accept-Language': 'zh-CN' },
      multipart: { file: { name: 'serials.csv', mimeType: 'text/csv', buffer: Buffer.from(text) } } });
    await page.goto('about:blank');
    await page.setContent((await response.text()).replace(/<(script|link)[^>]*>(<\/script>)?/g, ''));
    await look(`serials ${JSON.stringify(text)}`);
  }
  await post('/settings/keys/start', {});
  await visit('/settings/keys');
  await post('/settings/keys/finish', {});
  for (const fields of [{}, { name: 'a b!', password: 'long-enough-password', role: 'viewer' }, { name: 'vera', password: 'short', role: 'viewer' },
    { name: 'vera', password: 'long-enough-password', role: 'nope' }, { name: 'admin', password: 'long-enough-password', role: 'viewer' }]) await refused('/settings/operators', fields);
  await post('/settings/tokens', { name: '' });
  await post('/settings/tokens', { name: 'build', role: 'viewer' });
  await post('/settings/password', { current: 'wrong', password: 'long-enough-password' });
  await post('/settings/operators', { name: 'vera', password, role: 'viewer' });
  await visit('/settings');
}));

test('a viewer is refused in Chinese', () => none(async () => {
  const vera = await newPage(browser, fleetd.url, { locale: 'zh-CN' });
  await signIn(vera, 'vera');
  for (const path of ['/', device, `${device}/tools/${volume}`, '/settings']) await visit(path, 200, vera);
  for (const path of ['/campaigns/new', '/fanouts/new', '/flash', `${device}/replace`]) await visit(path, 403, vera);
  for (const path of [`${device}/edit`, `${device}/tools/${volume}`, '/settings/operators', '/campaigns']) assert.equal(await post(path, {}, vera), 403, path);
  await vera.context().close();
}));
