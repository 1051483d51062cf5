"use strict";
// Documents of an export as the server would give them: treadle/tools/explore_export.py says how they are packed.

const CHUNK = 4096; // strings of the table in a file
const PLACE = "\u0001"; // where a value stands in a line

async function inflated(content) {
  if (typeof DecompressionStream === "undefined") throw new Error("This browser has no DecompressionStream, as all have it since 2023.");
  const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
}

function summed(differences) {
  let sum = 0;
  return differences.map((each) => (sum += each));
}

// The strings of the table with some numbers, whose files `load` reads.
async function stringsOf(numbers, load) {
  const chunks = [...new Set(numbers.map((number) => Math.floor(number / CHUNK)))];
  const tables = new Map(await Promise.all(chunks.map(async (chunk) => [chunk, await load(`strings-${chunk}`)])));
  return numbers.map((number) => tables.get(Math.floor(number / CHUNK))[number % CHUNK]);
}

async function unpackedText({ lines }, values, load) {
  const templates = await stringsOf(summed(lines), load);
  const put = (template, line) => {
    const places = values.lines[line];
    return template.split(PLACE).reduce((text, rest, n) => text + values.names[places[n - 1]] + rest);
  };
  return { text: templates.map(put).join("\n") };
}

async function unpackedValues(packed, load) {
  let known = 0;
  const at = [];
  const lines = packed.lines.map((line, number) => line.map((back) => {
    const value = known - back;
    if (value === known) {
      known++;
      at.push(number);
    }
    return value;
  }));
  const found = { lines, at, names: await stringsOf(summed(packed.names), load) };
  for (const column of ["type", "op", "function", "nodes"]) {
    found[column] = summed(packed[column]);
    found[column.toUpperCase()] = (await stringsOf(summed(packed[column.toUpperCase()]), load)).map((text) => JSON.parse(text));
  }
  return found;
}

async function unpackedNumbers({ keys, values, ...rest }, load) {
  const held = await stringsOf(summed(values), load);
  return { ...rest, values: Object.fromEntries(summed(keys).map((key, n) => [key, JSON.parse(held[n])])) };
}

// A document as it was before it was packed; `load` gives others by name.
async function unpacked(name, content, load) {
  const packed = await inflated(content);
  const [kind, number] = name.split("-");
  if (kind === "text" && packed.lines) return unpackedText(packed, await load(`values-${number}`), load);
  if (kind === "values") return unpackedValues(packed, load);
  if (kind === "numbers") return unpackedNumbers(packed, load);
  return packed;
}
