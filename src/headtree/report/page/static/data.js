"use strict";
/* The parts of the page's data: base64, deflated; JSON text and typed arrays. */
const HT = {};

/** Count a promise as work under way; while there is none, the page says so: `html[data-settled]`. */
HT.track = (() => {
  const {dataset} = document.documentElement;
  let n = 0;
  return promise => {
    n += 1;
    delete dataset.settled;
    const done = () => { n -= 1; if (n === 0) dataset.settled = ""; };
    promise.then(done, done);
    return promise;
  };
})();

HT.data = (() => {
  const TYPES = {
    uint8: Uint8Array, uint16: Uint16Array, int32: Int32Array, float32: Float32Array, float64: Float64Array,
  };
  const ALIGNMENT = 8;
  const known = new Map();
  /** When all of the file has been read; the first part comes before the code, the others after it. */
  const whole = document.readyState === "loading"
    ? new Promise(resolve => document.addEventListener("DOMContentLoaded", resolve, {once: true})) : Promise.resolve();

  function bytesOf(text) {
    if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
    return Uint8Array.from(atob(text), c => c.charCodeAt(0));
  }

  async function unpack(name) {
    const find = () => document.getElementById(`part-${name}`);
    if (!find()) await whole;
    if (!find()) return null;
    const packed = bytesOf(find().textContent);
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    const buffer = await new Response(stream).arrayBuffer();
    const headerSize = new DataView(buffer).getUint32(0, true);
    const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, ALIGNMENT, headerSize)));
    const part = {text: header.text, arrays: {}, shapes: {}};
    for (const [key, [dtype, shape, offset]] of Object.entries(header.arrays)) {
      const n = shape.reduce((a, b) => a * b, 1);
      part.arrays[key] = new TYPES[dtype](buffer, ALIGNMENT + headerSize + offset, n);
      part.shapes[key] = shape;
    }
    return part;
  }

  /** A part of the data, unpacked when first asked for; null if the page has no such part. */
  function part(name) {
    if (!known.has(name)) known.set(name, unpack(name));
    return known.get(name);
  }

  /** Two codes in a byte, the first in its upper half, as one each. */
  function nibbles(bytes, n) {
    const codes = new Uint8Array(n);
    for (let i = 0; i < n; i++) codes[i] = i & 1 ? bytes[i >> 1] & 15 : bytes[i >> 1] >> 4;
    return codes;
  }

  /** Codes of matrix `head` of (head, row, column) matrices of 8 or 4 bits. */
  function codes(array, shape, bits, head) {
    const n = shape[1] * shape[2], perHead = bits === 8 ? n : (n + 1) >> 1;
    const own = array.subarray(head * perHead, (head + 1) * perHead);
    return bits === 8 ? own : nibbles(own, n);
  }

  return {part, codes};
})();
