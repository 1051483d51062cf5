// Runs the model of MODEL.wasm and MODEL.weights in a browser, or in Node: one thread, no other files, no packages.
//
//     import { load } from "./MODEL.mjs";
//     const model = await load();
//     const { y } = model.run({ x: new Float32Array(8) });        // y.data, y.shape
//     const { y } = model.run({ x: values }, { n: 5 });           // a call in which dimension n has this extent
//
// Inputs are typed arrays, row-major; outputs are new ones. `inputs`, `outputs` and `dimensions` say what there is.

const DESCRIPTION = {DESCRIPTION};

const ARRAYS = {
    bool: Uint8Array, int8: Int8Array, uint8: Uint8Array, int16: Int16Array, uint16: Uint16Array, int32: Int32Array,
    uint32: Uint32Array, int64: BigInt64Array, uint64: BigUint64Array, float32: Float32Array, float64: Float64Array,
    float16: Uint16Array, bfloat16: Uint16Array,
};
const ALIGNMENT = 64;
const POINTER = 4;

/** The array type of a tensor's elements; bytes for types of 8 bits and less that JavaScript lacks. */
function arrayOf(tensor) {
    return ARRAYS[tensor.dtype] ?? Uint8Array;
}

async function bytesOf(url) {
    if (url.protocol === "file:") {
        const { readFile } = await import("node:fs/promises");
        return new Uint8Array(await readFile(url));
    }
    const answer = await fetch(url);
    if (!answer.ok) throw new Error(`${url}: ${answer.status} ${answer.statusText}`);
    return new Uint8Array(await answer.arrayBuffer());
}

/** Loads the model from the folder of `base` (default: this file's). Throws an Error that says what is wrong. */
export async function load(base = import.meta.url) {
    const { instance } = await WebAssembly.instantiate(await bytesOf(new URL("MODEL.wasm", base)), {});
    const weights = DESCRIPTION.weights ? await bytesOf(new URL("MODEL.weights", base)) : new Uint8Array(0);
    return new Model(instance.exports, weights);
}

class Model {
    #c;
    #model;
    #weights = 0;
    #extents;
    #shape;

    constructor(c, weights) {
        this.#c = c;
        c._initialize();
        if (weights.length !== DESCRIPTION.weights)
            throw new Error(`MODEL.weights has ${weights.length} bytes instead of ${DESCRIPTION.weights}`);
        if (weights.length) {
            this.#weights = this.#room(weights.length);
            this.#bytes(this.#weights, weights.length).set(weights);
        }
        this.#extents = this.#room(8 * (DESCRIPTION.dimensions.length + 1));
        this.#shape = this.#room(POINTER * 65);
        const made = this.#room(POINTER);
        this.#check(c.MODEL_create(made, this.#weights, 1)); // compares the weights with their digest
        this.#model = this.#words(made, 1)[0];
        c.free(made);
    }

    /** Name, dtype, shape (the largest), bytes of each; `padded`: it has the largest shape in every call. */
    get inputs() {
        return DESCRIPTION.inputs;
    }

    get outputs() {
        return DESCRIPTION.outputs;
    }

    /** Name, least, greatest, multiple of each dimension that changes; `kept`: it is the length of states. */
    get dimensions() {
        return DESCRIPTION.dimensions;
    }

    /** The outputs of a call, by name: `{ data, shape }`. Dimensions have their greatest extents unless others are given. */
    run(inputs, extents = {}) {
        this.#bind(extents);
        const taken = [];
        const take = (bytes) => {
            taken.push(this.#room(Math.max(bytes, 1)));
            return taken[taken.length - 1];
        };
        try {
            const given = this.inputs.map((tensor, i) => this.#place(tensor, i, inputs[tensor.name], take));
            const made = this.outputs.map((tensor) => take(tensor.bytes));
            const pointers = [given, made].map((each) => {
                const at = take(POINTER * each.length);
                this.#words(at, each.length).set(each);
                return at;
            });
            const shapes = this.outputs.map((tensor, i) => this.#shapeOf("output", tensor, i));
            this.#check(this.#c.MODEL_run_at(this.#model, this.#extents, ...pointers));
            const results = this.outputs.map((tensor, i) => [
                tensor.name, { data: this.#copy(tensor, shapes[i], made[i]), shape: shapes[i] },
            ]);
            return Object.fromEntries(results);
        } finally {
            taken.forEach((pointer) => this.#c.free(pointer));
        }
    }

    /** The shape of an input in a call with these extents. */
    inputShape(name, extents = {}) {
        this.#bind(extents);
        const at = this.inputs.findIndex((tensor) => tensor.name === name);
        if (at < 0) throw new Error(`there is no input '${name}'`);
        return this.#shapeOf("input", this.inputs[at], at);
    }

    /** How long what the model keeps between calls is, by a dimension's name. */
    length(name) {
        return Number(this.#c.MODEL_length(this.#model, this.#dimension(name)));
    }

    /** Forgets what is kept behind a length; all of it without one. */
    rewind(name, length) {
        this.#check(this.#c.MODEL_rewind(this.#model, this.#dimension(name), BigInt(length)));
    }

    /** Empties what is kept. */
    reset() {
        this.#check(this.#c.MODEL_reset(this.#model));
    }

    #dimension(name) {
        const at = this.dimensions.findIndex((dimension) => dimension.name === name);
        if (at < 0) throw new Error(`there is no dimension '${name}'`);
        return at;
    }

    #bind(extents) {
        Object.keys(extents).forEach((name) => this.#dimension(name));
        const values = new BigInt64Array(this.#c.memory.buffer, this.#extents, this.dimensions.length);
        this.dimensions.forEach((each, i) => (values[i] = BigInt(extents[each.name] ?? each.greatest)));
    }

    #shapeOf(kind, tensor, i) {
        this.#check(this.#c[`MODEL_${kind}_shape`](this.#model, i, this.#extents, this.#shape));
        return [...this.#words(this.#shape, tensor.shape.length)];
    }

    #place(tensor, i, value, take) {
        if (value === undefined) throw new Error(`input '${tensor.name}' is missing`);
        const shape = tensor.padded ? tensor.shape : this.#shapeOf("input", tensor, i);
        const elements = shape.reduce((a, b) => a * b, 1);
        const type = arrayOf(tensor);
        if (!(value instanceof type) || value.length !== elements)
            throw new Error(`input '${tensor.name}' is no ${type.name} of ${elements} elements (${tensor.dtype}[${shape}])`);
        const pointer = take(tensor.bytes);
        new type(this.#c.memory.buffer, pointer, elements).set(value);
        return pointer;
    }

    #copy(tensor, shape, pointer) {
        const elements = (tensor.padded ? tensor.shape : shape).reduce((a, b) => a * b, 1);
        return new (arrayOf(tensor))(this.#c.memory.buffer, pointer, elements).slice();
    }

    // Memory grows, and views of it end then: each is made where it is used.
    #bytes(pointer, length) {
        return new Uint8Array(this.#c.memory.buffer, pointer, length);
    }

    #words(pointer, length) {
        return new Uint32Array(this.#c.memory.buffer, pointer, length);
    }

    #room(bytes) {
        const pointer = this.#c.aligned_alloc(ALIGNMENT, Math.ceil(bytes / ALIGNMENT) * ALIGNMENT) >>> 0;
        if (!pointer) throw new Error("memory ran out");
        return pointer;
    }

    #check(code) {
        if (code) throw new Error(c_message(this.#c, code));
    }
}

/** What a code of the library means. */
function c_message(c, code) {
    const bytes = new Uint8Array(c.memory.buffer, c.MODEL_message(code));
    return new TextDecoder().decode(bytes.slice(0, bytes.indexOf(0)));
}
