// The console works without this file; it adds live updates, keys, charts and
// small comforts. It runs under a policy without inline code or evaluation.
(() => {
  'use strict'
  const $ = (sel, root = document) => root.querySelector(sel)
  const $$ = (sel, root = document) => [...root.querySelectorAll(sel)]
  const texts = JSON.parse(document.body.dataset.texts)
  const lang = document.documentElement.lang
  const numbers = new Intl.NumberFormat(lang === 'zh-CN' ? 'zh-CN' : 'en')
  document.documentElement.classList.add('scripted')

  // text fills the placeholders of a message; n selects its plural form.
  function text(key, n) {
    return texts[key][n === 1 ? 0 : 1].replaceAll('{n}', numbers.format(n ?? 0))
  }

  // The server formats times in the zone of this cookie.
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone
  if (zone) document.cookie = 'fleetd_zone=' + encodeURIComponent(zone) + ';path=/;max-age=31536000;samesite=lax'

  function relative(at, now, kind) {
    let d = Math.floor((now - at) / 1000), side = kind === 'for' ? 'time.for.' : 'time.ago.'
    if (d < 0) {
      if (kind === 'for') d = 0
      else { d = -d; side = 'time.in.' }
    }
    if (d < 5) return text('time.now')
    if (d < 60) return text(side + 's', d)
    if (d < 3600) return text(side + 'min', Math.floor(d / 60))
    if (d < 172800) return text(side + 'h', Math.floor(d / 3600))
    return text(side + 'd', Math.floor(d / 86400))
  }

  // A countdown shows the remaining time until a moment, as mm:ss.
  function refreshCountdowns() {
    if (document.hidden) return
    for (const el of $$('[data-countdown]')) {
      const s = Math.max(0, Math.round((Date.parse(el.dataset.countdown) - Date.now()) / 1000)), h = Math.floor(s / 3600)
      const two = n => String(n).padStart(2, '0')
      const shown = (h ? h + ':' : '') + two(Math.floor(s / 60) % 60) + ':' + two(s % 60)
      if (el.textContent !== shown) el.textContent = shown
      el.hidden = false
    }
  }

  function refreshTimes() {
    if (document.hidden) return
    const now = Date.now()
    for (const el of $$('time[data-relative]')) {
      const s = relative(Date.parse(el.dateTime), now, el.dataset.relative)
      if (el.textContent !== s) el.textContent = s
    }
  }

  // ---- live updates: an event "patch" contains components that replace the elements with the same
  // id; "new" counts the rows that the list does not show yet.
  let missed = 0

  // Patches that arrive together are shown together, and then briefly marked as changed. If there are
  // more, none is marked: that would say nothing, and painting the marks takes a third of a core.
  const mostMarked = 8
  let patches = []

  function patch(html) {
    patches.push(html)
    if (document.hidden) showPatches() // it gets no frames
    else if (patches.length === 1) requestAnimationFrame(showPatches)
  }

  function showPatches() {
    const changed = [], all = patches.flatMap(html => {
      const holder = document.createElement('template') // one each: a row of a table parses only without others
      holder.innerHTML = html
      return [...holder.content.children]
    })
    patches = []
    for (const fresh of all) {
      if (fresh.dataset.into) { lengthen(fresh); continue }
      const old = fresh.id && document.getElementById(fresh.id), now = old && replace(old, fresh)
      if (now) changed.push(now)
      if (fresh.id === 'alerts-badge') showAlerts(document.getElementById(fresh.id))
    }
    for (const el of changed) el.classList.remove('moved')
    if (changed.length === 0 || changed.length > mostMarked) return
    void document.body.offsetWidth // restarts the animation
    for (const el of changed) el.classList.add('moved')
  }

  // showAlerts shows the badge's count in the browser tab.
  function showAlerts(badge) {
    const n = badge?.dataset.open ?? '0'
    document.title = (n === '0' ? '' : '(' + n + ') ') + document.title.replace(/^\(\d+\) /, '')
    const icon = document.getElementById('favicon')
    if (icon && badge?.dataset.icon) icon.href = badge.dataset.icon
  }

  // lengthen appends an element's children to a list of limited length. If the list is scrolled to
  // its end, it stays at its end.
  function lengthen(fresh) {
    const list = document.getElementById(fresh.dataset.into)
    if (!list) return
    const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40
    list.append(...fresh.children)
    while (list.children.length > list.dataset.most) list.firstElementChild.remove()
    if (atEnd) list.scrollTop = list.scrollHeight
  }

  // replace returns the element if its text has changed.
  function replace(old, fresh) {
    const id = old.id
    const ticked = $('input[name="d"]', old)?.checked
    const before = shownText(old)
    keepOpen(old, fresh)
    // The server must not replace what the script has drawn or written, nor a form that the reader
    // is filling in.
    const beforeNodeMorphed = el => el.id !== 'live-state' && !filling.has(el)
    Idiomorph.morph(old, fresh, { ignoreActiveValue: true, callbacks: { beforeNodeMorphed } })
    const now = document.getElementById(id)
    const box = now && $('input[name="d"]', now)
    if (box && ticked) box.checked = true
    if (!now) return null
    htmx.process(now)
    enhance(now)
    return shownText(now) === before ? null : now
  }

  // Forms that the reader is filling in: changed, and not sent yet. Checkboxes in lists are stored
  // elsewhere.
  const filling = new WeakSet()
  const startFilling = e => { if (e.target.form && !e.target.form.hasAttribute('data-select')) filling.add(e.target.form) }
  document.addEventListener('input', startFilling)
  document.addEventListener('change', startFilling)
  for (const ends of ['submit', 'reset', 'htmx:beforeRequest']) document.addEventListener(ends, e => filling.delete(e.target))

  // shownText returns the text of an element without the times that the page updates.
  function shownText(el) {
    const copy = el.cloneNode(true)
    for (const time of $$('time[data-relative], [data-countdown]', copy)) time.remove()
    return copy.textContent.replace(/\s+/g, ' ')
  }

  // keepOpen preserves which folds the reader opened.
  function keepOpen(old, fresh) {
    const before = $$('details', old), after = $$('details', fresh)
    after.forEach((d, i) => { if (before[i]) d.open = before[i].open })
  }

  // The reader's acts add rows, some of them a moment later: such rows are shown at once. An act
  // begins with its request.
  const actLasts = 30_000
  let acting = 0, actedAt = -actLasts
  const isAct = e => e.detail.requestConfig.verb !== 'get'
  document.addEventListener('htmx:beforeRequest', e => { if (isAct(e)) acting++ })
  document.addEventListener('htmx:afterRequest', e => { if (isAct(e)) { acting--; actedAt = performance.now() } })

  // A call of the reader is a row of the time line before fleetd has it. The list replaces the row
  // when it is read again; a refused call has none.
  const sentRowLasts = 3000
  document.addEventListener('htmx:beforeRequest', e => {
    const tool = /^act-(.+)/.exec(e.target.id)?.[1], kept = $('#line-sending')
    if (!tool || !isAct(e)) return
    for (const menu of $$('.device-acts .menu[open], .act-button[open]')) menu.open = false
    if (!kept) return
    const row = kept.content.firstElementChild.cloneNode(true)
    $('code', row).textContent = tool
    let list = 'today' in kept.dataset ? $('#timeline .line') : null
    if (!list) {
      list = document.createElement('ol')
      list.className = 'line'
      kept.after(list)
    }
    list.prepend(row)
  })
  document.addEventListener('htmx:afterRequest', e => {
    if (!isAct(e)) return
    const rows = $$('.line-sending')
    setTimeout(() => { for (const row of rows) row.remove() }, e.detail.successful ? sentRowLasts : 0)
  })

  function announceNew(n) {
    const pill = $('#new-pill')
    missed += n
    if (!pill) return
    if (acting > 0 || performance.now() - actedAt < actLasts) return refresh(pill.parentElement.closest('[id]').id)
    pill.textContent = text('js.new', missed)
    pill.hidden = false
  }

  // countAgain restarts the count of missing rows, after the list was read again.
  function countAgain() {
    if ($('#new-pill')?.hidden !== false) missed = 0
  }

  // ---- the live stream of the page. A browser reopens a stream that broke, but not one that the
  // server refused, and does not notice a silent one. The page therefore replaces a stream that was
  // silent for too long. The server sends a beat every 20 s.
  const longestQuiet = [15_000, 50_000, 5000] // ms, by readyState: connecting, open, closed
  const messages = { patch, database: databaseState, beat: () => liveState('on'), full: refused,
    new: n => announceNew(parseInt(n, 10) || 1) }
  let stream = null, address = '', heardAt = 0

  function follow() {
    stream = new EventSource(address)
    heardAt = Date.now()
    stream.onerror = () => { heardAt = Date.now(); liveState('lost') }
    for (const [name, show] of Object.entries(messages)) {
      stream.addEventListener(name, e => { heardAt = Date.now(); show(e.data) })
    }
  }

  // followPage opens the stream in the page's data: a list has a different stream for each filter,
  // and none for an invalid filter.
  function followPage() {
    const named = $('#live')?.dataset.events ?? '' // the sign-in page has none
    if (named === address) return
    address = named
    stream?.close()
    stream = null
    if (address) follow()
    else liveState('off')
  }

  function followAnew() {
    if (!stream || Date.now() - heardAt < longestQuiet[stream.readyState]) return
    if (stream.readyState === EventSource.OPEN) liveState('lost')
    stream.close()
    follow()
  }

  // refused shows that the operator has too many open streams; the page tries again.
  function refused() {
    stream.close()
    liveState('full')
  }

  // ---- while the server or the database is unavailable, the page shows since when its data is
  // outdated, dims the data, and is read again when both are back. A page without a stream shows
  // that too.
  let streamState = 'off' // on, lost or full
  let lostAt = 0, awayAt = 0, staleTimer = 0, readTimer = 0

  function liveState(now) {
    const el = $('#live-state')
    if (el) {
      el.textContent = el.dataset[now]
      el.classList.toggle('lost', now === 'lost' || now === 'full')
    }
    if (now === streamState) return
    const isCurrent = now === 'off' || now === 'on' && streamState === 'off' // the page has just been read
    streamState = now
    lostAt = now === 'lost' ? Date.now() : 0
    awayAt = 0 // the next stream reports the state of the database
    if (lostAt) checkSession()
    if (isCurrent) endStale()
    else followStale()
  }

  // databaseState records since how many seconds the database has been unavailable, or that it is
  // back.
  function databaseState(since) {
    awayAt = since === 'back' ? 0 : Date.now() - since * 1000
    followStale()
  }

  function followStale() {
    clearInterval(staleTimer)
    if (lostAt || awayAt || streamState === 'full') {
      staleTimer = setInterval(showStale, 1000)
      showStale()
      return
    }
    endStale()
    readAgain()
  }

  function endStale() {
    clearInterval(staleTimer)
    document.body.classList.remove('stale')
    $('.stale-note')?.remove()
  }

  // readAgain reads the page repeatedly until it succeeds; a hidden page waits.
  async function readAgain() {
    if (await refresh('main') || lostAt || awayAt || streamState === 'full') return
    clearTimeout(readTimer)
    readTimer = setTimeout(readAgain, 2000)
  }

  function showStale() {
    const full = streamState === 'full'
    const seconds = full ? 0 : Math.round((Date.now() - (lostAt || awayAt)) / 1000)
    if (!full && seconds < 2 || document.hidden) return
    let note = $('.stale-note')
    if (!note) {
      note = document.createElement('div')
      note.className = 'stale-note'
      note.setAttribute('role', 'alert')
      $('.top').after(note)
    }
    document.body.classList.toggle('stale', !full)
    note.textContent = full ? $('#live-state').dataset.full : text(awayAt ? 'js.database' : 'js.stale', seconds)
    if (lostAt && seconds % 5 === 0) checkSession()
  }

  // ask requests this page. A missing response must not occupy a connection forever: a browser
  // opens six to a server, and the stream needs one.
  const ask = (ms, options) =>
    fetch(location.href, { ...options, signal: AbortSignal.timeout(ms) }).catch(() => null)

  // checkSession redirects to the sign-in page, and from there back, if the session has ended
  // elsewhere. A response with 503 comes from a server without its database.
  async function checkSession() {
    const answer = await ask(4500, { method: 'HEAD', redirect: 'manual' })
    if (answer?.type === 'opaqueredirect') location.reload()
    if (lostAt) awayAt = answer?.status === 503 ? lostAt : 0
  }

  document.addEventListener('htmx:afterSwap', e => {
    countAgain()
    enhance(e.detail.target.isConnected ? e.detail.target : document)
    if (e.detail.target.id !== 'result') return
    $('#result')?.scrollIntoView({ block: 'nearest' })
  })
  document.addEventListener('htmx:oobAfterSwap', () => { enhance(document); followPage() })
  document.addEventListener('htmx:sendError', () => {
    const p = document.createElement('p'), note = document.createElement('div'), link = document.createElement('a')
    p.textContent = text('js.unanswered')
    link.textContent = text('js.calls')
    link.href = '/calls'
    note.className = 'note note-bad'
    note.append(p, link)
    $('#flash')?.replaceChildren(note)
    note.scrollIntoView({ block: 'nearest' })
  })

  // ---- forms
  // Typing another value selects its radio button.
  function chooseOther(el) {
    const radio = $$('input[type=radio]', el.parentElement).at(-1)
    if (radio) radio.checked = el.value !== ''
  }

  function syncPair(el) {
    const other = document.getElementById(el.dataset.sync)
    if (other) other.value = el.value === '' ? other.min : el.value
  }

  function guard(input) {
    const button = $('[data-confirm-button]', input.form)
    if (button) button.disabled = input.value.trim() !== input.dataset.confirm
  }

  // ---- checkboxes in a list. If the list requests it, the choice is kept across its pages and
  // orders, as long as the filter is the same.
  const keptKey = 'fleetd.ticked'
  let lastBox = null

  function keptOf(form) {
    let kept = null
    try { kept = JSON.parse(sessionStorage.getItem(keptKey)) } catch {}
    return kept?.q === form.dataset.keep ? kept : { q: form.dataset.keep, ids: [], all: false }
  }

  function restoreTicked(form) {
    const kept = keptOf(form), ids = new Set(kept.ids)
    for (const b of $$('input[name="d"]', form)) b.checked = ids.has(b.value)
    const all = $('input[name="all"]', form)
    if (all) all.checked = kept.all
    countTicked(form)
  }

  function keepTicked(form) {
    const ids = new Set(keptOf(form).ids)
    for (const b of $$('input[name="d"]', form)) ids[b.checked ? 'add' : 'delete'](b.value)
    const all = $('input[name="all"]', form)?.checked ?? false
    sessionStorage.setItem(keptKey, JSON.stringify({ q: form.dataset.keep, ids: [...ids], all }))
  }

  // tickRange sets the boxes between the last one and this one to the same state.
  function tickRange(box) {
    const boxes = $$('input[name="d"]', box.form), from = boxes.indexOf(lastBox), to = boxes.indexOf(box)
    if (from < 0 || to < 0) return
    for (const b of boxes.slice(Math.min(from, to), Math.max(from, to) + 1)) b.checked = box.checked
  }

  function countTicked(form) {
    const boxes = $$('input[name="d"]', form), ticked = boxes.filter(b => b.checked).length
    const keeps = form.dataset.keep !== undefined, every = keeps && $('input[name="all"]', form)?.checked
    const kept = keeps ? keptOf(form).ids : []
    const here = new Set(boxes.map(b => b.value)), elsewhere = kept.filter(id => !here.has(id))
    const n = every ? Number(form.dataset.total) : ticked + elsewhere.length
    const shown = $('[data-count-text]', form)
    if (shown) shown.textContent = n ? text(every ? 'js.selected_all' : 'js.selected', n) : ''
    const field = $('[data-kept]', form)
    if (field) field.value = elsewhere.join(',')
    const clear = $('[data-unselect]', form)
    if (clear) clear.hidden = n === 0
    form.classList.toggle('selecting', n > 0)
    const all = $('[data-select-all]', form)
    if (!all) return
    all.disabled = false
    all.checked = ticked > 0 && ticked === boxes.length
    all.indeterminate = ticked > 0 && ticked < boxes.length
  }

  // showRPC updates the exact message of the form.
  function showRPC(form) {
    const out = $('[data-rpc]', form)
    if (!out) return
    const args = {}
    for (const el of $$('[data-arg]', form)) {
      const type = el.dataset.type
      if (el.type === 'radio' && !el.checked) continue
      if (el.dataset.other && !el.value && el.type !== 'radio') continue
      if (type === 'boolean') args[el.dataset.arg] = el.checked
      else if (type === 'integer' || type === 'number') { if (el.value !== '') args[el.dataset.arg] = Number(el.value) }
      else if (type === 'json') { if (el.value.trim()) try { args[el.dataset.arg] = JSON.parse(el.value) } catch { args[el.dataset.arg] = el.value } }
      else if (el.value !== '' || el.required) args[el.dataset.arg] = el.value
    }
    const rpc = { jsonrpc: '2.0', id: out.dataset.rpc, method: 'tools/call', params: { name: out.dataset.tool, arguments: args } }
    out.textContent = JSON.stringify(rpc, null, 2)
  }

  document.addEventListener('input', e => {
    const el = e.target
    if (el.dataset.sync) syncPair(el)
    if (el.dataset.other) chooseOther(el)
    if (el.dataset.confirm !== undefined) guard(el)
    if (el.form && $('[data-rpc]', el.form)) showRPC(el.form)
  })
  document.addEventListener('change', e => {
    const form = e.target.form
    if (e.target.hasAttribute('data-submits')) form.requestSubmit()
    if (!form?.hasAttribute('data-select')) return
    const boxes = $$('input[name="d"]', form), all = $('input[name="all"]', form)
    if (e.target.hasAttribute('data-select-all')) for (const b of boxes) b.checked = e.target.checked
    if (e.target.name === 'd') lastBox = e.target
    if (all && e.target !== all) all.checked = false
    if (form.dataset.keep !== undefined) keepTicked(form)
    countTicked(form)
  })
  document.addEventListener('submit', e => { if (e.target.hasAttribute('data-ends-selection')) sessionStorage.removeItem(keptKey) })

  // closeMenus closes the menus that do not contain the element.
  function closeMenus(el) {
    for (const menu of $$('details.menu[open]')) if (!menu.contains(el)) menu.open = false
    if (!el?.closest('.act-button, .device-acts')) for (const acts of $$('.act-button[open]')) acts.open = false
  }
  document.addEventListener('keydown', e => {
    if (e.key !== 'Escape') return
    const summary = $('details.menu[open] > summary, .act-button[open] > summary')
    closeMenus(null)
    summary?.focus({ preventScroll: true })
  })

  document.addEventListener('click', e => {
    if (e.shiftKey && e.target.matches?.('[data-select] input[name="d"]')) tickRange(e.target)
    const clear = e.target.closest('[data-unselect]')
    if (clear) { sessionStorage.removeItem(keptKey); restoreTicked(clear.form) }
    const copy = e.target.closest('[data-copy]')
    if (copy) copyText(copy)
    const find = e.target.closest('[data-find]')
    if (find && !e.ctrlKey && !e.metaKey) { e.preventDefault(); openFind() }
    const help = e.target.closest('[data-help]')
    if (help && !e.ctrlKey && !e.metaKey) { e.preventDefault(); openHelp() }
    const theme = e.target.closest('[data-theme-form] button')
    if (theme) { e.preventDefault(); setTheme(theme) }
    closeMenus(e.target)
  })

  async function copyText(button) {
    await navigator.clipboard.writeText(button.dataset.copy)
    const title = button.title
    button.classList.add('done')
    button.title = text('js.copied')
    setTimeout(() => { button.classList.remove('done'); button.title = title }, 1500)
  }

  function setTheme(button) {
    document.documentElement.dataset.theme = button.value
    for (const b of $$('[data-theme-form] button')) b.setAttribute('aria-pressed', String(b.value === button.value))
    const body = new URLSearchParams({ theme: button.value, next: '/' })
    fetch(button.form.action, { method: 'POST', body, redirect: 'manual' })
  }

  // The server writes what does the same as a form, for its fields as they are. Passwords, private
  // fields and what is in files stay here.
  let equivalentTimer = 0, equivalentTurn = 0
  const formOf = menu => menu.closest('form') ?? document.getElementById(menu.parentElement.dataset.form)
  async function showEquivalent(menu) {
    const form = formOf(menu), turn = ++equivalentTurn
    const body = new URLSearchParams(menu.dataset.equivalent)
    for (const [name, value] of new FormData(form)) {
      const field = form.elements[name]
      if (field.type === 'password' || field.dataset?.private !== undefined) continue
      if (value.name !== '') body.append(name, value.name ?? value)
    }
    const answer = await fetch('/equivalent', { method: 'POST', body }).catch(() => null)
    if (!answer?.ok || answer.redirected) return
    const fresh = new DOMParser().parseFromString(await answer.text(), 'text/html').body.firstElementChild
    if (turn !== equivalentTurn) return
    menu.lastElementChild.replaceWith(fresh)
    enhance(menu)
  }
  document.addEventListener('toggle', e => {
    if (e.target.open && e.target.dataset.equivalent) showEquivalent(e.target)
    const open = e.target.querySelector(':scope > input[name=open]') // the form sends whether it is unfolded
    if (open) open.disabled = !e.target.open
  }, true)
  document.addEventListener('input', e => {
    const menu = $$('[data-equivalent]').find(m => m.open && formOf(m) === e.target.form)
    clearTimeout(equivalentTimer)
    if (menu) equivalentTimer = setTimeout(showEquivalent, 150, menu)
  })

  // The browser has all time zones; the server offers only two.
  document.addEventListener('focusin', e => {
    const list = e.target.list
    if (!list?.hasAttribute('data-zones')) return
    list.removeAttribute('data-zones')
    for (const name of Intl.supportedValuesOf('timeZone')) list.append(new Option('', name))
  })

  // ---- on a phone, a swipe leads to the tab next to it
  let swipe = null
  document.addEventListener('touchstart', e => {
    const [touch] = e.touches, other = e.target.closest('dialog, input, .filters, .subnav, .filterform, .timepick, .trend-plot')
    swipe = e.touches.length === 1 && !other && !scrollsAside(e.target) ? { x: touch.clientX, y: touch.clientY } : null
  }, { passive: true })
  document.addEventListener('touchend', e => {
    const [touch] = e.changedTouches, by = swipe && touch.clientX - swipe.x
    if (!swipe || Math.abs(by) < 80 || Math.abs(touch.clientY - swipe.y) > 50) return
    const tabs = $$('.tabs a'), at = tabs.findIndex(a => a.getAttribute('aria-current') === 'true')
    if (at >= 0) tabs[at + (by < 0 ? 1 : -1)]?.click()
  }, { passive: true })

  function scrollsAside(el) {
    for (; el && el !== document.body; el = el.parentElement) if (el.scrollWidth > el.clientWidth + 1 && getComputedStyle(el).overflowX !== 'visible') return true
    return false
  }

  // ---- keys
  let pending = ''
  const places = { d: '/devices', c: '/campaigns', w: '/firmware', l: '/calls', o: '/', f: '/fanouts' }
  document.addEventListener('keydown', e => {
    if ((e.ctrlKey || e.metaKey) && !e.altKey && !e.shiftKey && e.key.toLowerCase() === 'k') {
      e.preventDefault()
      return openFind()
    }
    if (e.ctrlKey || e.metaKey || e.altKey || e.target.closest('input, select, textarea, dialog[open]')) return
    if (pending === 'g' && places[e.key]) location.assign(places[e.key])
    pending = e.key === 'g' ? 'g' : ''
    if (e.key === '/') focusFilter(e)
    else if (e.key === '?') openHelp()
    else if (e.key === 'j' || e.key === 'k') walkRows(e.key === 'j' ? 1 : -1)
  })

  function focusFilter(e) {
    const filter = $('[data-filter]')
    if (!filter) return
    e.preventDefault()
    filter.focus()
    filter.select()
  }

  function walkRows(step) {
    const links = $$('main tbody tr').map(tr => $('a', tr)).filter(Boolean)
    const at = links.findIndex(a => a.closest('tr').contains(document.activeElement))
    links[Math.min(Math.max(at + step, 0), links.length - 1)]?.focus()
  }

  async function openHelp() {
    const dialog = $('#help')
    if (!dialog) return location.assign('/help')
    const body = $('[data-help-body]', dialog)
    if (!body.hasChildNodes()) {
      const html = await (await fetch('/help')).text()
      const part = new DOMParser().parseFromString(html, 'text/html').getElementById('help-text')
      if (!part) return location.assign('/help')
      body.append(part)
    }
    dialog.showModal()
  }

  // ---- find: a dialog over the page of the same name
  let findTimer = 0, findTurn = 0

  function openFind() {
    const dialog = $('#find')
    if (!dialog) return location.assign('/find')
    if (dialog.open) return
    dialog.showModal()
    $('input', dialog).select()
    showFound()
  }

  async function showFound() {
    const dialog = $('#find'), turn = ++findTurn, q = $('input', dialog).value
    const answer = await fetch('/find?' + new URLSearchParams({ q })).catch(() => null)
    if (!answer?.ok || turn !== findTurn) return
    const found = new DOMParser().parseFromString(await answer.text(), 'text/html').getElementById('found')
    if (!found || turn !== findTurn) return
    found.removeAttribute('id')
    $('[data-find-body]', dialog).replaceChildren(found)
    dialog.shown = q
    chooseFound(0)
  }

  function chooseFound(step) {
    const links = $$('[data-find-body] a'), at = links.findIndex(a => a.classList.contains('chosen'))
    for (const a of links) a.classList.remove('chosen')
    const link = links[Math.min(Math.max(at + step, 0), links.length - 1)]
    link?.classList.add('chosen')
    link?.scrollIntoView({ block: 'nearest' })
  }

  $('#find')?.addEventListener('input', () => { clearTimeout(findTimer); findTimer = setTimeout(showFound, 120) })
  $('#find')?.addEventListener('keydown', async e => {
    if (e.key === 'ArrowDown' || e.key === 'ArrowUp') { e.preventDefault(); chooseFound(e.key === 'ArrowDown' ? 1 : -1) }
    if (e.key !== 'Enter') return
    e.preventDefault()
    // A reader who pastes text and presses Enter means that text, not the results of the earlier
    // text.
    const dialog = e.currentTarget
    if (dialog.shown !== $('input', dialog).value) { clearTimeout(findTimer); await showFound() }
    const link = $('[data-find-body] a.chosen')
    if (link) location.assign(link.href)
  })
  $('#find')?.addEventListener('click', e => { if (e.target.id === 'find') e.target.close() })

  // ---- completion: the server proposes completions of the last word before the caret. The filter
  // is a combobox with a list; Enter accepts the proposal selected with the arrow keys, or submits
  // the filter unchanged if none is selected.
  // A field with a term, such as "tag:", has only values of that term.
  for (const field of $$('[data-complete]')) complete(field)

  function complete(completed) {
    const term = completed.dataset.term ?? '', place = term ? completed.parentElement : completed.form
    let completeTimer = 0, completeTurn = 0

    const proposals = () => $$('#completion [role=option]')
    const chosenProposal = () => proposals().find(o => o.getAttribute('aria-selected') === 'true')

    function closeCompletion() {
      clearTimeout(completeTimer)
      completeTurn++
      $('#completion')?.remove()
      completed.setAttribute('aria-expanded', 'false')
      completed.removeAttribute('aria-activedescendant')
    }

    async function showCompletion() {
      const turn = ++completeTurn, caret = completed.selectionStart
      if (caret !== completed.selectionEnd || /^\S/.test(completed.value.slice(caret))) return closeCompletion()
      const before = completed.value.slice(0, caret), q = term ? term + /[^\s,，、]*$/.exec(before)[0] : before
      const answer = await fetch(completed.dataset.complete + '?' + new URLSearchParams({ q })).catch(() => null)
      if (turn !== completeTurn || document.activeElement !== completed) return
      if (!answer?.ok || answer.redirected) return closeCompletion()
      const list = new DOMParser().parseFromString(await answer.text(), 'text/html').getElementById('completion')
      if (turn !== completeTurn) return
      const chosen = chosenProposal()?.dataset.text // the arrow keys were faster than this response
      $('#completion')?.remove()
      completed.removeAttribute('aria-activedescendant')
      const options = list ? $$('[role=option]', list) : []
      const done = options.length === 0 || options.length === 1 && options[0].dataset.text === list.dataset.word
      completed.setAttribute('aria-expanded', String(!done))
      if (done) return
      list.asked = before
      place.append(list)
      const again = options.find(o => o.dataset.text === chosen)
      if (again) choose(again)
    }

    function chooseProposal(step) {
      const options = proposals(), at = options.indexOf(chosenProposal())
      const to = at < 0 ? (step > 0 ? 0 : options.length - 1) : (at + step + options.length) % options.length
      choose(options[to])
    }

    function choose(option) {
      for (const o of proposals()) o.setAttribute('aria-selected', String(o === option))
      completed.setAttribute('aria-activedescendant', option.id)
      option.scrollIntoView({ block: 'nearest' })
    }

    // A proposal replaces the whole word, including letters typed since the request.
    function takeProposal(option) {
      const { asked, dataset } = $('#completion'), word = dataset.word.slice(term.length), caret = completed.selectionStart
      const start = asked.length - word.length, typed = completed.value.slice(start, caret)
      if (completed.value.slice(0, start) !== asked.slice(0, start) || /\s/.test(typed.slice(word.length))) return showCompletion()
      const open = option.dataset.open !== undefined
      completed.setRangeText(option.dataset.text.slice(term.length) + (open ? '' : ' '), start, Math.max(start, caret), 'end')
      closeCompletion()
      completed.dispatchEvent(new Event('input', { bubbles: true }))
      if (!open) closeCompletion() // the word is complete; the next one is completed when it begins
    }

    for (const [name, value] of Object.entries({ role: 'combobox', 'aria-autocomplete': 'list', 'aria-expanded': 'false', 'aria-controls': 'completion' })) completed.setAttribute(name, value)
    const ask = () => { clearTimeout(completeTimer); completeTimer = setTimeout(showCompletion, 120) }
    completed.addEventListener('input', ask)
    // A term without its value starts no search: the list stays unchanged meanwhile.
    completed.form.addEventListener('htmx:beforeRequest', e => {
      if (e.target === completed.form && /[:<>,]$/.test(completed.value) && e.detail.requestConfig.triggeringEvent?.type !== 'submit') e.preventDefault()
    })
    completed.addEventListener('click', ask)
    completed.addEventListener('blur', closeCompletion)
    completed.form.addEventListener('submit', closeCompletion)
    completed.form.addEventListener('mousedown', e => {
      const option = e.target.closest('#completion [role=option]')
      if (!e.target.closest('#completion')) return
      e.preventDefault() // the filter stays focused
      if (option) takeProposal(option)
    })
    completed.addEventListener('keydown', e => {
      if (e.isComposing) return
      const isOpen = proposals().length > 0
      if (e.key === 'ArrowDown' && !isOpen) { e.preventDefault(); showCompletion() }
      if (!isOpen) return
      if (e.key === 'ArrowDown' || e.key === 'ArrowUp') { e.preventDefault(); chooseProposal(e.key === 'ArrowDown' ? 1 : -1) }
      if (e.key === 'Escape') { e.preventDefault(); closeCompletion() }
      if (e.key !== 'Enter') return
      const option = chosenProposal()
      if (option) { e.preventDefault(); takeProposal(option) } else closeCompletion()
    })
  }

  // ---- charts: the server draws them. The moment under the pointer, or touched, shows its text at
  // once; a browser alone shows it late, and not on a touch screen.
  let tip = null
  function showMoment(e) {
    const words = e.target.closest?.('.trend-strip')?.querySelector('title')
    if (!words) { tip?.remove(); tip = null; return }
    if (!tip) {
      tip = document.createElement('div')
      tip.className = 'tip'
      document.body.append(tip)
    }
    if (tip.textContent !== words.textContent) tip.textContent = words.textContent
    const right = e.clientX + tip.offsetWidth + 24 > innerWidth
    tip.style.left = Math.max(8, right ? e.clientX - tip.offsetWidth - 12 : e.clientX + 12) + 'px'
    tip.style.top = Math.max(8, e.clientY - tip.offsetHeight - 12) + 'px'
  }
  for (const name of ['pointermove', 'pointerdown']) document.addEventListener(name, showMoment, { passive: true })
  document.addEventListener('scroll', () => { tip?.remove(); tip = null }, { passive: true })

  // ---- parts without events are fetched again at intervals. refresh reports whether it succeeded.
  // It drops a response that is older than the shown part.
  let asked = 0, shown = 0
  async function refresh(id) {
    if (document.hidden) return false
    const n = ++asked
    const answer = await ask(30_000)
    if (answer?.redirected) return location.reload() // to the sign-in page
    const page = answer?.ok && await answer.text().catch(() => null)
    if (!page || n < shown) return false
    shown = n
    const fresh = new DOMParser().parseFromString(page, 'text/html').getElementById(id)
    const old = document.getElementById(id)
    if (fresh && old) replace(old, fresh)
    else if (old?.dataset.ends !== undefined) location.reload() // the page shows something else now
    countAgain()
    return true
  }
  for (const el of $$('[data-refresh]')) setInterval(refresh, el.dataset.refresh * 1000, el.id)

  // Fields for a time have a script of their own, which few pages need.
  function loadTimeFields(root) {
    const fields = $$('.timefield', root)
    for (const field of fields) $('button', field).hidden = false
    const address = fields[0]?.dataset.script
    if (!address || $('script[src="' + address + '"]')) return
    const script = document.createElement('script')
    script.src = address
    document.head.append(script)
  }

  // enhance prepares a part of the page after it arrived.
  function enhance(root) {
    loadTimeFields(root)
    for (const el of $$('[data-copy]', root)) el.hidden = false
    for (const el of $$('[data-confirm]', root)) guard(el)
    for (const form of $$('form', root)) { showRPC(form); if (form.dataset.keep !== undefined) restoreTicked(form); else if (form.hasAttribute('data-select')) countTicked(form) }
    for (const list of $$('[data-most]', root)) list.scrollTop = list.scrollHeight
    refreshTimes()
    refreshCountdowns()
  }

  // Success messages leave after ten seconds, but not while the pointer or the focus is on them;
  // error messages stay.
  function leave(note) {
    if (note.matches(':hover, :focus-within')) return setTimeout(leave, 2000, note)
    note.classList.add('leaving')
    setTimeout(() => note.remove(), 150)
  }
  for (const note of $$('[data-leaves]')) setTimeout(leave, 10_000, note)

  enhance(document)
  followPage()
  setInterval(followAnew, 1000)
  $('.tabs [aria-current="true"]')?.scrollIntoView({ block: 'nearest', inline: 'nearest' })
  setInterval(refreshTimes, 5000)
  setInterval(refreshCountdowns, 1000)
})()
