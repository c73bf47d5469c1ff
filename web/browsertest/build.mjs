// The files of an ESP-IDF build of the firmware in this repository, for a board with 4 MB of flash:
// the files that a blank board needs.
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { appImage } from './images.mjs';

const chips = { esp32: 0, esp32c3: 5 };
const subtypes = { ota_0: 0x10, ota_1: 0x11, ota: 0, phy: 1, nvs: 2, coredump: 3, nvs_keys: 4, undefined: 6 };
const size = text => parseInt(text) * ({ K: 1024, M: 1 << 20 }[text.at(-1)] ?? 1);

/** A second-stage bootloader: an image without an application's descriptor. */
export function bootloader(chip) {
  const data = Buffer.alloc(15_000, 0x17);
  data[0] = 0x50;
  const header = Buffer.alloc(32);
  header.set([0xe9, 1, 2, 0x2f]); // 4 MB
  header.writeUInt16LE(chips[chip], 12);
  header.writeUInt16LE(0xffff, 17);
  header[23] = 1;
  header.writeUInt32LE(0x3fcd6000, 24);
  header.writeUInt32LE(data.length, 28);
  const padding = Buffer.alloc(16 - (32 + data.length) % 16);
  padding[padding.length - 1] = data.reduce((sum, b) => sum ^ b, 0xef);
  const body = Buffer.concat([header, data, padding]);
  return Buffer.concat([body, createHash('sha256').update(body).digest()]);
}

/** firmware/partitions/4mb.csv in the layout of ESP-IDF's generator. */
export function partitionTable() {
  const csv = readFileSync(new URL('../../firmware/partitions/4mb.csv', import.meta.url), 'utf8');
  let end = 0x9000;
  const entries = csv.split('\n').map(line => line.split('#')[0]).filter(line => line.includes(',')).map(line => {
    const [label, type, subtype, , length] = line.split(',').map(cell => cell.trim());
    const align = type === 'app' ? 0x10000 : 0x1000, offset = Math.ceil(end / align) * align;
    end = offset + size(length);
    const entry = Buffer.alloc(32);
    entry.set([0xaa, 0x50, type === 'app' ? 0 : 1, subtypes[subtype]]);
    entry.writeUInt32LE(offset, 4);
    entry.writeUInt32LE(size(length), 8);
    entry.write(label, 12, 'latin1');
    return entry;
  });
  const table = Buffer.concat(entries), sum = Buffer.alloc(32, 0xff);
  sum.set([0xeb, 0xeb]);
  createHash('md5').update(table).digest().copy(sum, 16);
  return Buffer.concat([table, sum, Buffer.alloc(0xc00 - table.length - 32, 0xff)]);
}

/** Name, address and bytes of each file of a build. */
export function build({ chip = 'esp32c3', version = '1.4.0', size = 200_000 } = {}) {
  const app = appImage({ chip, version, size, project: 'fleet_unit' });
  return [
    { name: 'bootloader.bin', offset: chip === 'esp32' ? 0x1000 : 0, buffer: bootloader(chip) },
    { name: 'partition-table.bin', offset: 0x8000, buffer: partitionTable() },
    { name: 'ota_data_initial.bin', offset: 0xf000, buffer: Buffer.alloc(0x2000, 0xff) },
    { name: 'fleet_unit.bin', offset: 0x40000, buffer: app },
  ].map(f => ({ ...f, mimeType: 'application/octet-stream' }));
}

/** The content of 4 MB of flash after the build was written over old content, or over none. */
export function flashed(files, old) {
  const flash = Buffer.alloc(4 << 20, old);
  for (const { offset, buffer } of files) {
    flash.fill(0xff, offset, Math.ceil((offset + buffer.length) / 4096) * 4096);
    buffer.copy(flash, offset);
  }
  return flash;
}
