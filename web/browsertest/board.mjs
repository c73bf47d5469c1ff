// An ESP32-C3 or ESP32 at a fake serial port, inside the page: its ROM loader and flasher stub as
// esptool-js uses them (SLIP, registers, RAM, deflated flash blocks), and after the reset the
// firmware's Improv. The flash has old content at first: parts that are neither written nor erased
// keep it.
//
// install runs in the browser before the page's scripts; it must not use anything defined outside
// of it.
export function install({ chip = 'esp32c3', old = 0xa5, refusePort = false } = {}) {
  const le32 = (b, at) => (b[at] | b[at + 1] << 8 | b[at + 2] << 16 | b[at + 3] << 24) >>> 0;
  const bytes32 = n => [n & 255, n >>> 8 & 255, n >>> 16 & 255, n >>> 24 & 255];
  const magic = { esp32c3: 0x1b31506f, esp32: 0x00f01d83 }[chip];
  const spi = { esp32c3: 0x60002000, esp32: 0x3ff42000 }[chip];
  const spiOffsets = { esp32c3: { usr2: 0x20, w0: 0x58 }, esp32: { usr2: 0x24, w0: 0x80 } }[chip];
  const board = window.board = { flash: new Uint8Array(4 << 20).fill(old), erased: false, writes: [], faults: [], wifi: null, mode: 'idle', ram: 0 };

  class Port {
    readable = null;
    writable = null;
    #dtr = false;
    #rts = false;
    #regs = new Map([[0x40001000, magic]]);
    #stub = false;
    #slip = null; // bytes of the packet in progress
    #escaped = false;
    #download = null;
    #improv = [];
    #out;

    async open() {
      if (this.readable) throw new DOMException('The port is already open.', 'InvalidStateError');
      this.readable = new ReadableStream({ start: c => { this.#out = c; } });
      this.writable = new WritableStream({ write: async chunk => { for (const b of chunk) await this.#receive(b); } });
    }

    async close() {
      if (!this.readable) throw new DOMException('The port is already closed.', 'InvalidStateError');
      if (this.readable.locked || this.writable.locked) throw new TypeError('Cannot cancel a locked stream');
      this.readable = this.writable = null;
    }

    getInfo() { return { usbVendorId: 0x10c4, usbProductId: 0xea60 }; }
    async getSignals() { return {}; }

    // Reset ends when RTS falls; DTR decides whether BOOT is held then.
    async setSignals({ dataTerminalReady, requestToSend }) {
      if (dataTerminalReady !== undefined) this.#dtr = dataTerminalReady;
      if (requestToSend === undefined) return;
      if (this.#rts && !requestToSend) {
        board.mode = this.#dtr ? 'loader' : 'app';
        this.#stub = false;
        this.#slip = null;
      }
      this.#rts = requestToSend;
    }

    #send(bytes) { try { this.#out.enqueue(new Uint8Array(bytes)); } catch { /* no reader */ } }

    async #receive(b) {
      if (board.mode === 'loader') return this.#receiveSlip(b);
      if (board.mode === 'app') this.#receiveImprov(b);
    }

    async #receiveSlip(b) {
      if (b === 0xc0) {
        const packet = this.#slip;
        this.#slip = packet?.length ? null : [];
        if (packet?.length) await this.#command(packet);
      } else if (this.#slip) {
        if (this.#escaped) this.#slip.push(b === 0xdc ? 0xc0 : 0xdb);
        else if (b !== 0xdb) this.#slip.push(b);
        this.#escaped = !this.#escaped && b === 0xdb;
      }
    }

    #sendSlip(bytes) {
      const out = [0xc0];
      for (const b of bytes) if (b === 0xc0) out.push(0xdb, 0xdc); else if (b === 0xdb) out.push(0xdb, 0xdd); else out.push(b);
      this.#send([...out, 0xc0]);
    }

    #answer(op, value = 0, fault = 0) {
      const status = this.#stub ? [fault ? 1 : 0, fault] : [fault ? 1 : 0, fault, 0, 0];
      this.#sendSlip([1, op, status.length, 0, ...bytes32(value), ...status]);
      if (fault) board.faults.push([op, fault]);
    }

    async #command(p) {
      const op = p[1], size = p[2] | p[3] << 8, sum = le32(p, 4), data = p.slice(8);
      if (p[0] !== 0 || data.length !== size) return this.#answer(op, 0, 5);
      switch (op) {
        case 0x08: for (let i = 0; i < 8; i++) this.#answer(op, 0x20120707); return;
        case 0x09: this.#writeRegister(le32(data, 0), le32(data, 4)); return this.#answer(op);
        case 0x0a: return this.#answer(op, this.#regs.get(le32(data, 0)) ?? 0);
        case 0x05: return this.#answer(op);
        case 0x07: board.ram += data.length - 16; return this.#answer(op, 0, this.#bad(data, sum));
        case 0x06: this.#answer(op); this.#stub = true; return this.#sendSlip([0x4f, 0x48, 0x41, 0x49]); // "OHAI"
        case 0x0d: return this.#answer(op);
        case 0xd0:
          if (!this.#stub) return this.#answer(op, 0, 5);
          board.flash.fill(0xff); board.erased = true;
          return this.#answer(op);
        case 0x10: return this.#answer(op, 0, this.#begin(data));
        case 0x11: return this.#answer(op, 0, await this.#block(data, sum));
        case 0x12: return this.#answer(op, 0, this.#download ? 7 : 0); // all of it must be there by now
      }
      this.#answer(op, 0, 5);
    }

    #bad(data, sum) {
      const content = data.slice(16);
      return le32(data, 0) !== content.length || content.reduce((x, b) => x ^ b, 0xef) !== sum ? 7 : 0;
    }

    // The SPI controller runs one command: read the flash's id (0x9f).
    #writeRegister(at, value) {
      this.#regs.set(at, value);
      if (at !== spi) return;
      this.#regs.set(spi, 0);
      if ((this.#regs.get(spi + spiOffsets.usr2) & 255) === 0x9f) this.#regs.set(spi + spiOffsets.w0, 0x1640ef);
    }

    #begin(data) {
      const [size, blocks, blockSize, offset] = [0, 4, 8, 12].map(at => le32(data, at));
      if (offset % 4096 || offset + size > board.flash.length) return 6;
      board.flash.fill(0xff, offset, Math.ceil((offset + size) / 4096) * 4096);
      this.#download = { size, blocks, blockSize, offset, seq: 0, packed: [] };
      return 0;
    }

    async #block(data, sum) {
      const d = this.#download;
      if (!d || le32(data, 4) !== d.seq || this.#bad(data, sum)) return 7;
      d.packed.push(new Uint8Array(data.slice(16)));
      if (++d.seq < d.blocks) return 0;
      const plain = new Uint8Array(await new Response(new Blob(d.packed).stream().pipeThrough(new DecompressionStream('deflate'))).arrayBuffer());
      this.#download = null;
      if (plain.length !== d.size) return 7;
      board.flash.set(plain, d.offset);
      board.writes.push([d.offset, plain.length]);
      return 0;
    }

    // Improv, as implemented by components/fleet_esp.
    #sendImprov(type, data) {
      const packet = [...new TextEncoder().encode('IMPROV'), 1, type, data.length, ...data];
      this.#send([...packet, packet.reduce((s, b) => s + b & 255, 0), 10]);
    }

    #result(command, texts) {
      const list = texts.flatMap(t => { const b = [...new TextEncoder().encode(t)]; return [b.length, ...b]; });
      this.#sendImprov(4, [command, list.length, ...list]);
    }

    #receiveImprov(b) {
      const p = this.#improv, header = 'IMPROV\x01';
      p.push(b);
      if (p.length <= header.length && b !== header.charCodeAt(p.length - 1)) { p.length = 0; return; }
      if (p.length < 10 || p.length < 10 + p[8]) return;
      this.#improv = [];
      if (p[7] === 3) this.#rpc(p[9], p.slice(11, 11 + p[10]));
    }

    #rpc(command, data) {
      const state = board.wifi ? 4 : 2, app = board.flash.slice(0x40000 + 32);
      const text = (at, n) => new TextDecoder().decode(app.slice(at, at + n)).split('\0')[0];
      switch (command) {
        case 1: {
          const name = data.slice(1, 1 + data[0]), word = data.slice(2 + data[0]);
          board.wifi = [name, word].map(b => new TextDecoder().decode(new Uint8Array(b)));
          this.#sendImprov(1, [3]);
          this.#sendImprov(1, [4]);
          return this.#result(1, []);
        }
        case 2: this.#sendImprov(1, [state]); return state === 4 && this.#result(2, []);
        case 3: return this.#result(3, [text(48, 32), text(16, 32), 'ESP32-C3', 'esp32c3-supermini']);
        case 4: this.#result(4, ['lab', '-48', 'YES']); return this.#result(4, []);
      }
      this.#sendImprov(2, [2]);
    }
  }

  const serial = { requestPort: async () => {
    if (refusePort) throw new DOMException('No port selected by the user.', 'NotFoundError');
    return board.port = new Port();
  }, getPorts: async () => [], addEventListener() {}, removeEventListener() {} };
  Object.defineProperty(navigator, 'serial', { value: serial, configurable: true });
}
