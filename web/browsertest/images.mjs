// Firmware images for tests, with the structure of ESP-IDF's: header, one segment with the
// application's descriptor, checksum and SHA-256.
import { createHash } from 'node:crypto';

const chips = { esp32: 0, esp32c3: 5, esp32s3: 9, esp32p4: 0x12 };

/** An app image of about the given size. */
export function appImage({ chip = 'esp32s3', version = '2.9.0', size = 4096, seed = '', project = 'xiaozhi' } = {}) {
  const length = Math.max(256 + 32, size - 80) & ~3;
  const data = Buffer.alloc(length);
  data.writeUInt32LE(0xabcd5432, 0);
  data.write(version, 16, 31, 'latin1');
  data.write(project, 48, 'latin1');
  data.write('08:33:45', 80, 'latin1');
  data.write('Aug  8 2026', 96, 'latin1');
  data.write('v6.0.2', 112, 'latin1');
  createHash('sha256').update(`${chip} ${version} ${size} ${seed}`).digest().copy(data, 144);
  const header = Buffer.alloc(32);
  header.set([0xe9, 1, 2, 0x4f]);
  header.writeUInt16LE(chips[chip], 12);
  header.writeUInt16LE(0xffff, 17);
  header[23] = 1;
  header.writeUInt32LE(0x3c010020, 24);
  header.writeUInt32LE(length, 28);
  const padding = Buffer.alloc(16 - (32 + length) % 16);
  padding[padding.length - 1] = data.reduce((sum, b) => sum ^ b, 0xef);
  const body = Buffer.concat([header, data, padding]);
  return Buffer.concat([body, createHash('sha256').update(body).digest()]);
}

/** A whole flash with the app, a partition table, and no bootloader: an image without a usable layout. */
export function mergedBinary(app) {
  const flash = Buffer.alloc(0x20000, 0xff);
  flash.set([0xaa, 0x50, 0x00, 0x10], 0x8000);
  flash.writeUInt32LE(0x20000, 0x8004);
  flash.writeUInt32LE(0x100000, 0x8008);
  flash.fill(0, 0x800c, 0x8020).write('ota_0', 0x800c, 'latin1');
  return Buffer.concat([flash, app]);
}
