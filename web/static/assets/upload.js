// Sends firmware files one after the other with their progress. Without this file the same form
// sends them all at once.
(() => {
  'use strict'
  const box = document.querySelector('[data-upload]')
  if (!box) return
  const form = box.querySelector('form[method="post"]')
  const input = form.querySelector('input[type=file]')
  const drop = box.querySelector('[data-drop]')
  const results = box.querySelector('#upload-results')
  const texts = JSON.parse(box.dataset.texts)
  const max = Number(box.dataset.max)
  const queue = []
  let active = null

  // fill fills the placeholders of a message.
  const fill = (text, values) => text.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole)

  // bytes formats a size in the same way as the server.
  function bytes(n) {
    const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB']
    let i = 0
    for (; n >= 1024 && i < units.length - 1; i++) n /= 1024
    return n.toFixed(i === 0 || n >= 100 ? 0 : 1) + ' ' + units[i]
  }

  function el(tag, className, text) {
    const e = document.createElement(tag)
    if (className) e.className = className
    if (text) e.textContent = text
    return e
  }

  // A job is the upload of one file: its line in the list, and its request.
  function makeJob(file) {
    const line = el('li', 'upload-item upload-going'), what = el('div', 'upload-what')
    const name = el('strong', 'foreign', file.name), state = el('p', 'muted small num', texts.waiting)
    const bar = el('progress'), stop = el('button', 'btn', texts.cancel)
    bar.max = Math.max(file.size, 1)
    bar.value = 0
    bar.setAttribute('aria-label', fill(texts.progress, { name: file.name }))
    stop.type = 'button'
    const title = el('p')
    title.append(name)
    what.append(title, bar, state)
    line.append(what, stop)
    const job = { file, line, bar, state, stop, request: null, canceled: false }
    stop.addEventListener('click', () => cancel(job))
    return job
  }

  // end shows why a file was rejected.
  function end(job, text) {
    job.line.classList.remove('upload-going')
    job.line.classList.add('upload-bad')
    job.bar.remove()
    job.stop.remove()
    job.state.className = 'problem'
    job.state.textContent = text
  }

  function cancel(job) {
    job.canceled = true
    end(job, texts.canceled)
    if (job.request) job.request.abort()
    else queue.splice(queue.indexOf(job), 1)
  }

  // A manifest belongs to an image, which has to be uploaded before it.
  const images = (a, b) => a.name.endsWith('.manifest') - b.name.endsWith('.manifest')

  function add(files) {
    for (const file of [...files].sort(images)) {
      const job = makeJob(file)
      results.append(job.line)
      if (file.size === 0) end(job, texts.empty)
      else if (file.size > max) end(job, fill(texts.too_large, { size: bytes(file.size), max: bytes(max) }))
      else queue.push(job)
    }
    next()
  }

  function next() {
    if (active || queue.length === 0) return
    active = queue.shift()
    send(active)
  }

  function send(job) {
    const body = new FormData()
    body.append('file', job.file, job.file.name)
    const request = job.request = new XMLHttpRequest()
    request.open('POST', form.action)
    request.responseType = 'document'
    request.upload.addEventListener('progress', e => progress(job, e.loaded))
    request.addEventListener('load', () => finish(job, request))
    request.addEventListener('error', () => end(job, texts.broken))
    request.addEventListener('loadend', () => { active = null; next(); if (!active) refreshList() })
    request.send(body)
  }

  // The form around a file adds a few hundred bytes.
  function progress(job, loaded) {
    const sent = Math.min(loaded, job.file.size), size = bytes(job.file.size)
    job.bar.value = sent
    if (sent < job.file.size) job.state.textContent = fill(texts.sending, { sent: bytes(sent), size, percent: Math.floor(100 * sent / job.file.size) })
    else job.state.textContent = fill(texts.checking, { size })
  }

  // finish replaces the progress by the text from the server.
  function finish(job, request) {
    const page = request.responseXML
    const item = page?.querySelector('#upload-results > li')
    if (item) {
      job.line.replaceWith(document.adoptNode(item))
      if (results.querySelector('input[name="staged"]')) box.querySelector('[data-confirm-upload]').hidden = false
      return
    }
    const said = page?.querySelector('[role=alert], .errorpage')
    end(job, said?.textContent.trim().replace(/\s+/g, ' ') || texts.broken)
  }

  // refreshList updates the list under the box, if there is one.
  function refreshList() {
    if (document.getElementById('list')) htmx.ajax('GET', location.href, { target: '#list', select: '#list', swap: 'outerHTML' })
  }

  input.addEventListener('change', () => { add(input.files); input.value = '' })
  form.addEventListener('submit', e => e.preventDefault())

  // A file dropped outside of the box must not replace the page.
  for (const kind of ['dragenter', 'dragover']) {
    document.addEventListener(kind, e => {
      if (!e.dataTransfer?.types.includes('Files')) return
      e.preventDefault()
      drop.classList.toggle('drop-over', box.contains(e.target))
    })
  }
  document.addEventListener('dragleave', e => { if (!e.relatedTarget) drop.classList.remove('drop-over') })
  document.addEventListener('drop', e => {
    if (!e.dataTransfer?.types.includes('Files')) return
    e.preventDefault()
    drop.classList.remove('drop-over')
    if (box.contains(e.target)) add(e.dataTransfer.files)
  })
  addEventListener('beforeunload', e => { if (active) e.preventDefault() })
})()
