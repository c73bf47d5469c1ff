// Fields for a date and a time: presets, a month and a 24-hour clock, in the zone of the page. The
// field itself is text and works without this file, which a page with such a field loads.
(() => {
  'use strict'
  const lang = document.documentElement.lang, day = 86_400_000
  const two = n => String(n).padStart(2, '0')
  const dateText = d => d.getUTCFullYear() + '-' + two(d.getUTCMonth() + 1) + '-' + two(d.getUTCDate())
  const named = options => new Intl.DateTimeFormat(lang, { timeZone: 'UTC', ...options })
  const monthName = named({ year: 'numeric', month: 'long' }), weekday = named({ weekday: 'narrow' })
  const wholeDay = named({ dateStyle: 'full' })
  let open = null

  // wall returns the time that clocks in the zone show at a moment, as a Date in UTC.
  function wall(at, zone) {
    const parts = new Intl.DateTimeFormat('en', { timeZone: zone, hourCycle: 'h23', year: 'numeric', month: 'numeric',
      day: 'numeric', hour: 'numeric', minute: 'numeric' }).formatToParts(at)
    const of = type => Number(parts.find(p => p.type === type).value)
    return new Date(Date.UTC(of('year'), of('month') - 1, of('day'), of('hour'), of('minute')))
  }

  function make(tag, className, text) {
    const el = document.createElement(tag)
    if (className) el.className = className
    if (text !== undefined) el.textContent = text
    if (tag === 'button') el.type = 'button'
    return el
  }

  // A picker belongs to one field and is in the page while it is open.
  function show(field) {
    const input = field.querySelector('input'), words = field.dataset, withTime = words.kind !== 'day'
    const now = wall(Date.now(), words.zone)
    const found = /^(\d{4})-(\d{1,2})-(\d{1,2})(?:[ T](\d{1,2}):(\d{2}))?/.exec(input.value.trim())
    let at = found ? new Date(Date.UTC(found[1], found[2] - 1, found[3], found[4] ?? 0, found[5] ?? 0)) : now
    const box = make('div', 'timepick'), title = make('div', 'timepick-month'), grid = make('div', 'timepick-days')
    box.setAttribute('role', 'dialog')
    box.setAttribute('aria-label', words.pick)

    function put(date) {
      at = date
      input.value = dateText(at) + (withTime ? ' ' + two(at.getUTCHours()) + ':' + two(at.getUTCMinutes()) : '')
      for (const name of ['input', 'change']) input.dispatchEvent(new Event(name, { bubbles: true }))
    }

    function draw(focus) {
      const first = new Date(Date.UTC(at.getUTCFullYear(), at.getUTCMonth(), 1))
      title.querySelector('strong').textContent = monthName.format(first)
      const start = first.getTime() - (first.getUTCDay() + 6) % 7 * day
      grid.replaceChildren(...Array.from({ length: 7 }, (_, i) => make('span', '', weekday.format(start + i * day))))
      for (let i = 0; i < 42; i++) {
        const date = new Date(start + i * day), chosen = dateText(date) === dateText(at)
        if (i >= 35 && date.getUTCMonth() !== first.getUTCMonth()) break
        const button = make('button', '', date.getUTCDate())
        button.setAttribute('aria-label', wholeDay.format(date))
        button.setAttribute('aria-pressed', String(chosen))
        button.tabIndex = chosen ? 0 : -1
        if (dateText(date) === dateText(now)) button.setAttribute('aria-current', 'date')
        button.classList.toggle('other', date.getUTCMonth() !== first.getUTCMonth())
        button.addEventListener('click', () => {
          put(new Date(date.getTime() + at.getTime() % day))
          withTime ? draw(true) : hide(true)
        })
        grid.append(button)
        if (chosen && focus) button.focus()
      }
    }

    const move = days => { at = new Date(at.getTime() + days * day); draw(true) }
    const turn = months => {
      const last = new Date(Date.UTC(at.getUTCFullYear(), at.getUTCMonth() + months + 1, 0)).getUTCDate()
      at = new Date(Date.UTC(at.getUTCFullYear(), at.getUTCMonth() + months, Math.min(at.getUTCDate(), last),
        at.getUTCHours(), at.getUTCMinutes()))
      draw(false)
    }
    for (const [months, sign, label] of [[-1, '‹', words.before], [1, '›', words.after]]) {
      const button = make('button', 'timepick-turn', sign)
      button.setAttribute('aria-label', label)
      button.addEventListener('click', () => turn(months))
      title.append(button)
    }
    title.firstElementChild.after(make('strong'))
    title.querySelector('strong').setAttribute('aria-live', 'polite')
    grid.addEventListener('keydown', e => {
      const days = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -7, ArrowDown: 7 }[e.key]
      const months = { PageUp: -1, PageDown: 1 }[e.key]
      if (!days && !months) return
      e.preventDefault()
      if (days) return move(days)
      turn(months)
      draw(true)
    })

    const presets = make('div', 'timepick-presets')
    for (const [ms, label] of JSON.parse(words.presets)) {
      const button = make('button', '', label)
      button.addEventListener('click', () => { put(wall(Date.now() + ms, words.zone)); hide(true) })
      presets.append(button)
    }
    if (presets.children.length) box.append(presets)
    box.append(title, grid)
    if (withTime) {
      const clock = make('div', 'timepick-clock')
      for (const [most, label, get, set] of [[24, words.hour, 'getUTCHours', 'setUTCHours'],
        [60, words.minute, 'getUTCMinutes', 'setUTCMinutes']]) {
        const select = make('select')
        select.setAttribute('aria-label', label)
        for (let i = 0; i < most; i++) select.append(new Option(two(i), i))
        select.value = at[get]()
        select.addEventListener('change', () => { const to = new Date(at); to[set](Number(select.value)); put(to) })
        clock.append(select)
      }
      clock.firstElementChild.after(make('span', '', ':'))
      clock.append(make('span', 'muted small', words.zone))
      box.append(clock)
    }
    box.addEventListener('keydown', e => {
      if (e.key === 'Escape') { e.stopPropagation(); hide(true) }
      else if (e.key === 'Enter' && e.target.matches('select')) { e.preventDefault(); hide(true) }
    })
    field.append(box)
    open = { field, box }
    field.querySelector('button').setAttribute('aria-expanded', 'true')
    draw(true)
    if (box.getBoundingClientRect().right > innerWidth - 8) box.classList.add('to-left')
    box.scrollIntoView({ block: 'nearest' })
  }

  function hide(focus) {
    if (!open) return
    const { field, box } = open
    open = null
    box.remove()
    const button = field.querySelector('button')
    button.setAttribute('aria-expanded', 'false')
    if (focus) button.focus()
  }

  document.addEventListener('click', e => {
    const button = e.target.closest('.timefield > button')
    if (open && !open.box.contains(e.target) && e.target.isConnected) {
      const same = button?.parentElement === open.field
      hide(false)
      if (same) return
    }
    if (button) show(button.parentElement)
  })
  document.addEventListener('focusin', e => { if (open && !open.field.contains(e.target)) hide(false) })
})()
