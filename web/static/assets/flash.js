// Shows whether this browser can install firmware, and fetches the installer only if it can. The
// page's command works without this file.
(() => {
  'use strict'
  const box = document.querySelector('[data-flash]')
  if (!box) return

  function show(state) {
    for (const el of box.querySelectorAll('[data-flash-state]')) el.hidden = el.dataset.flashState !== state
    box.dataset.state = state
  }

  // After the installer has closed, the list of devices is what matters.
  function watchInstaller() {
    new MutationObserver(changes => {
      const closed = changes.some(c => [...c.removedNodes].some(n => n.localName === 'ewt-install-dialog'))
      if (closed) document.getElementById('joining')?.scrollIntoView({ block: 'nearest' })
    }).observe(document.body, { childList: true })
  }

  async function load() {
    try {
      await import(box.dataset.flash)
      show('ready')
      watchInstaller()
    } catch (err) {
      show('failed')
      console.warn('installer', err)
    }
  }

  if (!isSecureContext) show('insecure')
  else if (!('serial' in navigator)) show('unsupported')
  else if (!box.querySelector('[data-flash-state="ready"]')) show('chip')
  else load()
})()
