// A drag over a chart shows the time below the drag, in all charts of the page. A form does the same without this file.
(() => {
  'use strict'
  const leastShare = 0.02 // of the width: less is a click
  let drag = null

  function shareAt(area, x) {
    const box = area.getBoundingClientRect()
    return Math.min(1, Math.max(0, (x - box.left) / box.width))
  }

  function end() {
    drag?.mark?.remove()
    drag = null
  }

  document.addEventListener('pointerdown', e => {
    const area = e.target.closest?.('.trend-area[data-zoom]')
    end()
    if (area && e.button === 0 && e.pointerType !== 'touch') drag = { area, from: shareAt(area, e.clientX), to: 0, mark: null }
  })

  document.addEventListener('pointermove', e => {
    if (!drag) return
    drag.to = shareAt(drag.area, e.clientX)
    if (!drag.mark && Math.abs(drag.to - drag.from) < leastShare) return
    if (!drag.mark) {
      drag.mark = document.createElementNS('http://www.w3.org/2000/svg', 'rect')
      drag.mark.setAttribute('class', 'trend-zoom')
      drag.mark.setAttribute('height', '100%')
      drag.area.append(drag.mark)
    }
    drag.mark.setAttribute('x', 100 * Math.min(drag.from, drag.to) + '%')
    drag.mark.setAttribute('width', 100 * Math.abs(drag.to - drag.from) + '%')
  })

  document.addEventListener('pointerup', () => {
    if (!drag?.mark) return end()
    const begin = Number(drag.area.dataset.from), length = Number(drag.area.dataset.to) - begin
    const moment = share => new Date(begin + Math.round(share * length)).toISOString()
    const { zoom } = drag.area.dataset, query = new URLSearchParams(location.search)
    query.delete('range')
    query.set('from', moment(Math.min(drag.from, drag.to)))
    query.set('to', moment(Math.max(drag.from, drag.to)))
    document.addEventListener('click', e => e.preventDefault(), { capture: true, once: true }) // of a link below the pointer
    end()
    location.assign(zoom + '?' + query)
  })

  for (const name of ['pointercancel', 'blur']) addEventListener(name, end)
  document.addEventListener('keydown', e => { if (e.key === 'Escape') end() })
  document.addEventListener('dragstart', e => { if (e.target.closest?.('.trend-area[data-zoom]')) e.preventDefault() })
})()
