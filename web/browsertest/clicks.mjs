// Counts the clicks of a task. Typed words, keys and choices from a list are not clicks.
import assert from 'node:assert/strict';
import { test } from 'node:test';

/**
 * Returns click, which clicks the first element that a selector or locator finds, and task, which tests a task that
 * begins at the overview of the page that start returns. reset and count are for tests of another shape.
 */
export function countClicks(start) {
  let clicks = 0;
  const reset = () => { clicks = 0; };
  const click = async (what, on = start()) => {
    clicks++;
    await (typeof what === 'string' ? on.locator(what) : what).first().click();
  };
  const add = () => { clicks++; };
  const atMost = most => assert.ok(clicks <= most, `it took ${clicks} clicks`);
  const task = (name, most, work) => test(`${name} takes at most ${most} clicks`, async () => {
    const page = start();
    reset();
    await page.goto('/');
    await work(page);
    atMost(most);
    assert.deepEqual(page.errors, []);
  });
  return { click, add, reset, atMost, task };
}
