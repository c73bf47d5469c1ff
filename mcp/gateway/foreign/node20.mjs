// The conformance suite imports fs.globSync, which Node 20 lacks, and which its
// tests of servers do not call. With this shim, Node 20 loads the suite.
import { register } from 'node:module';

const shim = `export * from 'node:fs';
export { default } from 'node:fs';
export function globSync() { throw new Error('fs.globSync is missing in this Node'); }`;

register('data:text/javascript,' + encodeURIComponent(`
export function resolve(name, context, next) {
  return name === 'fs' && context.parentURL?.includes('/conformance/')
    ? { url: 'data:text/javascript,' + encodeURIComponent(${JSON.stringify(shim)}), shortCircuit: true }
    : next(name, context);
}`));
