// The pages of pictures work without this file; it adds the slider over two pictures, and keys.
(() => {
  'use strict'

  // split moves the edge between two pictures, one over the other.
  function split(slider) {
    document.getElementById(slider.dataset.splits).style.setProperty('--split', slider.value + '%')
  }

  for (const slider of document.querySelectorAll('[data-splits]')) {
    slider.addEventListener('input', () => split(slider))
    split(slider) // browsers restore its value
  }

  document.addEventListener('keydown', e => {
    if (e.ctrlKey || e.metaKey || e.altKey || e.shiftKey || e.target.closest('input, select, textarea, dialog[open]')) return
    if (e.key === 'ArrowLeft' || e.key === 'ArrowRight') document.querySelector(`[data-key="${e.key}"]`)?.click()
  })
})()
