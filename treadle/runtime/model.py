"""A compiled model that can be called and saved, and `load`, which opens the folder of one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn, Protocol, Self, SupportsIndex, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from treadle.artifact.artifact import Artifact, is_artifact
from treadle.artifact.manifest import Manifest, Tensor, dynamic_calls
from treadle.backends.c.executor import CpuProgram, ThreadPool
from treadle.backends.c.open_artifact import open_program as open_cpu
from treadle.backends.call_lock import CallLock, forks
from treadle.backends.cuda.device_array import DeviceArray, LentArray, is_on_device
from treadle.backends.cuda.driver import LEGACY_STREAM
from treadle.backends.cuda.executor import CudaProgram, check_out
from treadle.backends.cuda.open_artifact import open_program as open_cuda
from treadle.backends.dlpack import HasDLPack, as_array
from treadle.backends.interface import TensorSpec
from treadle.backends.memory import Memory, memory_of
from treadle.backends.timeline import EVENTS, LaunchNames, Recorder, Timeline, most_events
from treadle.errors import TreadleError
from treadle.shapes.dim import Dim
from treadle.shapes.states import given_of, made_of
from treadle.support.publishing import publish
from treadle.target.options import Device, gpu_number

Array = NDArray[Any]
Input = ArrayLike | HasDLPack | LentArray
"""What an input may be: an array, what NumPy makes one of, or an array of another library in the CPU's memory; of a
model on a GPU also one in the GPU's memory, by DLPack or `__cuda_array_interface__`."""


class Program(Protocol):
    """An artifact's kernels, loaded for a device, with memory for their calls."""

    def run(self, arrays: Sequence[Array], /) -> list[Array]:
        """The outputs for one array an input, in order."""
        ...

    def clear_states(self) -> None:
        """Sets all states to 0."""
        ...

    def close(self) -> None:
        """Gives the memory back; the program cannot run afterwards."""
        ...


class TracedProgram(Program, Protocol):
    """One whose launches have times."""

    def trace(self, recorder: Recorder | None) -> None:
        """Records the launches of each call from now on; None ends that."""
        ...


class Model:
    """A compiled model; its kernels are loaded when it is first called.

    ```python
    m = load("m.treadle")
    (y,) = m(x)          # or m(x=x)
    ```
    Used in a `with` statement, it is closed at the end. `target` is the name of its target, `inputs` and `outputs` have
    names, shapes and types in the model's order, `metadata` is what the model's exporter attached.

    Inputs are arrays of NumPy or of any library that lends memory by DLPack (`__dlpack__`): they are not copied if they
    are contiguous, aligned to an element, and of the model's shape. Outputs are new arrays of NumPy, which lends them
    by DLPack in turn, where it has their type.

    A model on a GPU also takes arrays there (PyTorch's, CuPy's, any with `__dlpack__` or `__cuda_array_interface__`),
    which stay there, and then gives `DeviceArray`s, without waiting for the GPU: see `docs/gpus.md`.

    A model with states (`treadle.compile(..., states=...)`) keeps them from call to call: `lengths` says how much they
    hold, `reset` and `rewind` forget. Two conversations take two models, which share their weights if they were loaded
    from one folder.

    Threads may share a model, whose calls, `open` and `close` run one at a time, since they use the same memory. On the
    CPU and on the emulator a forked child may call its copy; CUDA does not allow that on a GPU.
    """

    def __init__(
        self, artifact: Artifact, threads: int | ThreadPool | None = None, *, device: Device | None = None,
        rebuild: bool = False,
    ):  # fmt: skip
        """`artifact`, ready to be called.

        `device` (cuda only) is the GPU: its number, `"cuda:1"`, or a `torch.device`; default: the first.

        `threads` (cpu only) is the number of threads of a call, or a `ThreadPool`, whose threads several models share;
        default: the variable TREADLE_NUM_THREADS. With `rebuild` the kernels are compiled again from their text, and
        the compiled ones are not used.
        """
        check_threads(threads, artifact.manifest.target, artifact.manifest.kind)
        self._gpu = 0 if device is None else gpu_number(device)
        if device is not None and artifact.manifest.kind != "cuda":
            message = f"a GPU does not run what is compiled for {artifact.manifest.target}"
            raise TreadleError(message, "device", "a model for a target whose kernels are CUDA")
        self.artifact = artifact
        self.rebuild = rebuild
        self.threads = threads
        self._program: Program | None = None
        self._recorder: Recorder | None = None
        self._is_closed = False
        manifest = artifact.manifest
        self._dynamic = dynamic_calls(manifest)
        self._inputs = given_of(manifest.inputs, manifest.states)[: len(self._dynamic.inputs)]
        self._outputs = made_of(manifest.outputs, manifest.states)[: len(self._dynamic.outputs)]
        self._names = tuple(tensor.name for tensor in self._inputs)
        self._calls = CallLock(type(self).__name__)
        self._waiting = _Worker()

    def __repr__(self) -> str:
        signature = f"{', '.join(map(str, self.inputs))} -> {', '.join(map(str, self.outputs))}"
        return f"{type(self).__name__}({self.target}: {signature}; {self.folder})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """A copy would share the memory of its calls, and what is unpickled would be a program of unknown origin."""
        accepted = "its folder: `save(path)`, and `treadle.load(path)` where another model or process needs it"
        raise TreadleError("a compiled model cannot be pickled or copied", type(self).__name__, accepted)

    @property
    def folder(self) -> Path:
        """The artifact's folder."""
        return self.artifact.folder

    @property
    def manifest(self) -> Manifest:
        """The artifact's manifest."""
        return self.artifact.manifest

    @property
    def target(self) -> str:
        """The name of the target, such as `cpu` or `sm_80`."""
        return self.manifest.target

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Name, shape and type of each input, in the model's order; of one whose shape changes, the largest."""
        return self._inputs

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """Name, shape and type of each output, in the model's order; of one whose shape changes, the largest."""
        return self._outputs

    @property
    def symbols(self) -> tuple[Dim, ...]:
        """The dimensions that change from call to call, with their ranges."""
        return self.manifest.symbols

    @property
    def states(self) -> tuple[str, ...]:
        """The names of the inputs that the model keeps itself, as the model has them."""
        return tuple(self.manifest.inputs[state.argument].name for state in self.manifest.states)

    @property
    def lengths(self) -> Mapping[str, int]:
        """The dimensions that are extents of states alone, each with what it is now: how many positions they hold."""
        return dict(self._dynamic.lengths)

    def reset(self) -> None:
        """Empties all states, after a call that is running: their lengths are the least, their elements 0."""
        self._calls.call(self._reset)

    def rewind(self, **lengths: int) -> None:
        """Forgets what states hold behind these positions, after a call that is running: `model.rewind(past=12)`; all
        positions without any. Elements stay as they are.

        TreadleError for a dimension that is none of `lengths`, and for more positions than there are.
        """
        self._calls.call(lambda: self._dynamic.rewind(lengths or None))

    @property
    def metadata(self) -> Mapping[str, str]:
        """The free-form properties that the model's exporter attached."""
        return self.manifest.metadata

    @property
    def memory(self) -> Memory:
        """Bytes that a call with the largest shapes takes, by what they are for."""
        return memory_of(self.manifest)

    @property
    def peak_memory(self) -> int:
        """Bytes that a call with the largest shapes takes, beside the caller's inputs and the code: `memory.peak`."""
        return self.memory.peak

    def __call__(self, *arrays: Input, out: Any = None, stream: Any = None, **named: Input) -> tuple[Any, ...]:
        """The outputs, in the model's order, for inputs in order or by name (both may be mixed, as in a call).

        Shapes and types must match exactly, or lie in the ranges of `symbols`; else TreadleError names the input and
        what is accepted. TreadleError, too, if the target's device is absent.

        out:    of a model on a GPU: for each output, in order, an array there that it is written to, and that the call
                gives back, or None for a new one; with a stream, which its readers follow
        stream: of a model on a GPU: the handle of the stream (`torch.cuda.current_stream().cuda_stream`) behind whose
                work the call is queued, and that waits for it. Without one, arrays wait as DLPack and
                `__cuda_array_interface__` say

        To an input of one of these two names its keyword belongs; `run` has both then.
        """
        for name, value in (("out", out), ("stream", stream)):
            if name in self._names and value is not None:
                named[name] = value
        buffers = None if "out" in self._names else out
        return tuple(self._run(self._ordered(arrays, named), buffers, None if "stream" in self._names else stream))

    def run_async(self, *arrays: Input, **named: Input) -> Future[tuple[Any, ...]]:
        """A call that runs in another thread: what it gives, or raises, is the future's.

        Inputs are checked now, with the errors of a call, and read later: do not change them until the future is done.
        Calls of one model run one after the other, in the order in which they were made, since they use the same
        memory; those of several models run at the same time. `close` waits for all of them.
        """
        given = self._bound(self._ordered(arrays, named))[0]
        return self._waiting.submit(lambda: tuple(self._run(given)))

    def run(
        self, inputs: Mapping[str, Input], *, out: Mapping[str, object] | None = None, stream: int | None = None
    ) -> dict[str, Any]:
        """As a call, with any input names, and the outputs by name, as the buffers in `out`."""
        names = [tensor.name for tensor in self.outputs]
        if out is not None and (unknown := sorted(set(out) - set(names))):
            raise TreadleError(f"there is no output '{unknown[0]}'", "out", names)
        buffers = None if out is None else [out.get(name) for name in names]
        results = self._run(self._ordered((), inputs), buffers, stream)
        return {tensor.name: array for tensor, array in zip(self.outputs, results, strict=True)}

    def arguments(self, inputs: Mapping[str, Input]) -> list[Array]:
        """What `open()`'s program takes for these inputs: in their largest shapes unless it takes them densely, and the
        extents."""
        return self._dynamic.arguments(*self._bound(self._ordered((), inputs)))

    def trace(self, events: int = EVENTS) -> Timeline:
        """Records, from now on, when each launch of a call ran, and who computed which part of it.

        ```python
        with model.trace() as timeline:  # or timeline = model.trace(), and timeline.stop()
            model(x)
        timeline.save("t.json")  # for ui.perfetto.dev
        ```
        The kernels are loaded first. Up to `events` events are kept, the newest, each 40 bytes: of a CPU one for each
        share of a launch, of which there are up to four a thread, and one for the launch. `timeline.dropped` says how
        many had no room. A model that is not traced pays nothing for it.

        TreadleError for a model that was closed, one that is traced already, one on the emulator, and for less room
        than a launch takes.
        """
        return self._calls.call(lambda: self._traced(events))

    def save(self, path: str | Path) -> None:
        """Writes the model as a folder that `treadle.load` reads, in one step.

        An earlier artifact or an empty folder is replaced, and models that were loaded from it still work; TreadleError
        for any other folder, or if it cannot be written.
        """
        publish(Path(path), self.artifact.copy_to, replace=is_artifact)

    def close(self) -> None:
        """Frees memory, with what states hold, and the model's own threads, after a call that is running, and those of
        `run_async`; a later call loads the kernels again. Threads of a `ThreadPool` go on.

        Code of a CPU stays loaded until the process ends, once for equal libraries: about 50 KB and 5 of the 65530
        mappings that Linux allows a process.
        """
        self._waiting.close()
        self._calls.call(self._close)

    def open(self) -> Program:
        """Loads the kernels now instead of at the first call; TreadleError if the target's device is absent."""
        return self._calls.call(self._opened)

    def _close(self) -> None:
        """As `close`; the caller has the lock. A later call after an interrupted one opens another program."""
        program, self._program = self._program, None
        self._is_closed = True
        self._dynamic.rewind()
        if program is not None:
            program.close()

    def _run(self, given: Sequence[Input], out: Sequence[object] | None = None, stream: object = None) -> list[Any]:
        """The outputs of a call, or the caller's own buffers for them."""
        handle = None if stream is None else _stream_handle(stream)
        results = self._calls.call(lambda: self._results(given, out, handle))
        return results if out is None else [new if own is None else own for own, new in zip(out, results, strict=True)]

    def _buffers(self, program: Program, out: Any, stream: int | None) -> list[LentArray | None]:
        """The caller's arrays that outputs are written to."""
        if not isinstance(out, Sequence) or len(out) != len(self.outputs):
            given = (
                f"{len(cast('Sequence[object]', out))} arrays"
                if isinstance(out, Sequence)
                else f"a {type(out).__name__}"
            )
            accepted = (
                f"a tuple with one for each of {', '.join(tensor.name for tensor in self.outputs)}, or None for it"
            )
            raise TreadleError(f"out is {given}", "call", accepted)
        buffers = list[LentArray | None]()
        for tensor, array in zip(self.outputs, out, strict=True):
            where = f"output '{tensor.name}'"
            if array is not None and not is_on_device(array):
                raise TreadleError(f"the buffer is a {type(array).__name__} on the host", where, "an array on the GPU")
            buffers.append(None if array is None else _lent(program, array, where, stream))
        return buffers

    def _arrays(self, given: Sequence[Input], stream: int | None) -> list[Any]:
        """An array for each input, in order: on the host, or where the model runs; the caller has the lock."""
        if not any(map(is_on_device, given)):
            return list(given)
        if self.manifest.kind != "cuda":
            first = next(n for n, value in enumerate(given) if is_on_device(value))
            raise _on_device(f"input '{self._names[first]}'")
        program, names = self._opened(), self._names
        return [
            _lent(program, value, f"input '{name}'", stream) if is_on_device(value) else value
            for name, value in zip(names, given, strict=True)
        ]

    def _reset(self) -> None:
        """As `reset`; the caller has the lock."""
        self._dynamic.rewind()
        if self._program is not None:
            self._program.clear_states()

    def _results(self, given: Sequence[Input], out: Sequence[object] | None, stream: int | None) -> list[Any]:
        """The outputs of a call; the caller has the lock."""
        arrays = self._arrays(given, stream)
        values = self._dynamic.bind(arrays)
        program = self._opened()
        self.artifact.check_mapped()
        if isinstance(program, CudaProgram):
            if out is not None and stream is None:
                accepted = "stream=torch.cuda.current_stream().cuda_stream, behind whose work it is written"
                raise TreadleError("out is given without a stream", "call", accepted)
            buffers = None if out is None else self._buffers(program, out, stream)
            return self._on_gpu(program, arrays, values, buffers, stream)
        if out is not None or stream is not None:
            what = "out" if out is not None else "a stream"
            raise TreadleError(f"{what} is given to a model for {self.target}", "call", "that of a model on a GPU")
        if not self.symbols and not self.manifest.found:
            return program.run(arrays)
        given = self._dynamic.arguments(arrays, values)
        if not isinstance(program, CpuProgram):
            made = program.run(given)
            self._dynamic.advance(values)
            return self._dynamic.results(made, values)
        outputs = program.run(given, self._dynamic.shapes(values))
        self._dynamic.advance(values)
        results = self._dynamic.results(outputs, values)
        for position, (output, result) in enumerate(zip(outputs, results, strict=False)):
            if not np.may_share_memory(output, result):
                program.recycle(position, output)
        return results

    def _on_gpu(
        self, program: CudaProgram, arrays: Sequence[Array], values: Mapping[str, int],
        out: Sequence[LentArray | None] | None, stream: int | None,
    ) -> list[Any]:  # fmt: skip
        """The outputs of a call on a GPU; where shapes change, each is copied into its buffer."""
        if not self.symbols and not self.manifest.found:
            return program.run(arrays, out, stream)
        if out is not None and self.manifest.found:
            raise TreadleError("the outputs' shapes depend on data", "out", "a call without it")
        if out is not None:
            shapes = self._dynamic.result_shapes(values)
            specs = [TensorSpec(t.name, s, np.dtype(t.dtype)) for t, s in zip(self.outputs, shapes, strict=True)]
            check_out(specs, out, [array for array in arrays if isinstance(array, LentArray)])
        nowhere = None if out is None else [None] * len(program.outputs)
        made = program.run(self._dynamic.arguments(arrays, values), nowhere, stream)
        self._dynamic.advance(values)
        results = self._dynamic.results(made, values)
        for result, buffer in zip(results, out or (), strict=False):
            if buffer is not None:
                cast("DeviceArray", result).write_to(buffer)
        return results

    def _traced(self, events: int) -> Timeline:
        """As `trace`; the caller has the lock."""
        where = f"{type(self).__name__}.trace"
        if self._is_closed:
            raise TreadleError("the model was closed", where, "an open one: call it, or `open` it, before")
        if self._recorder is not None:
            raise TreadleError("the model is traced already", where, "the end of its timeline: `stop()`")
        program = self._traceable()
        workers = program.threads if isinstance(program, CpuProgram) else 0
        if events < most_events(workers):
            least = f"{most_events(workers)} upwards, as many as one launch has"
            raise TreadleError(f"room for {events} events", where, least)
        recorder = Recorder(events)
        program.trace(recorder)
        self._recorder = recorder

        return Timeline(
            recorder, workers, lambda: self.launch_names(program), lambda: self._calls.call(self._untraced),
            title=f"model for {self.target}",
        )  # fmt: skip

    def _untraced(self) -> None:
        """Ends the recording; the caller has the lock."""
        self._recorder = None
        if self._program is not None:
            self._traceable().trace(None)

    def _traceable(self) -> TracedProgram:
        """The program, whose launches have times; the caller has the lock."""
        program = self._opened()
        assert isinstance(program, CpuProgram | CudaProgram)
        return program

    def _opened(self) -> Program:
        """The program; the caller has the lock."""
        self._is_closed = False
        if self._program is None:
            self._program = self.open_program()
            if self._recorder is not None:
                self._traceable().trace(self._recorder)
        return self._program

    def open_program(self) -> Program:
        """Loads the kernels for the device that runs them, without the lock that `open` takes."""
        if self.manifest.kind == "cpu":
            return open_cpu(self.artifact, self.threads, rebuild=self.rebuild)
        return open_cuda(self.artifact, device=self._gpu, rebuild=self.rebuild)

    def launch_names(self, program: TracedProgram) -> LaunchNames:
        """What a timeline calls the launches: kernels by their names, where the program says them."""
        return LaunchNames({}, {})

    def _ordered(self, arrays: tuple[Input, ...], named: Mapping[str, Input]) -> list[Input]:
        """What is given for each input, in order: an array, or what is on a device."""
        if len(arrays) > len(self._names):
            raise self._misfit(f"{len(arrays)} inputs given, {len(self._names)} needed")
        given = dict(zip(self._names, arrays, strict=False))
        for name, array in named.items():
            if name in given:
                raise self._misfit(f"input '{name}' is given by position and by name")
            given[name] = array
        for name in given:
            if name not in self._names:
                raise self._misfit(f"there is no input '{name}'")
        for tensor in self.inputs:
            if tensor.name not in given:
                raise TreadleError("the input is missing", f"input '{tensor.name}'", self._dynamic.described(tensor))
        pairs = [(given[name], f"input '{name}'") for name in self._names]
        return [value if is_on_device(value) else as_array(cast("ArrayLike", value), where) for value, where in pairs]

    def _bound(self, given: Sequence[Input]) -> tuple[list[Any], Mapping[str, int]]:
        """The arrays of a call, and the symbols' values."""
        is_host = not any(map(is_on_device, given))
        arrays: list[Any] = [*given] if is_host else self._calls.call(lambda: self._arrays(given, None))
        return arrays, self._dynamic.bind(arrays)

    def _misfit(self, message: str) -> TreadleError:
        """What a call with other inputs raises."""
        return TreadleError(message, "call", "; ".join(map(self._dynamic.described, self.inputs)) or "no inputs")


class _Worker:
    """The thread of a model's asynchronous calls, which is there from the first one on; a forked child has its own."""

    def __init__(self) -> None:
        self._lock = CallLock("CompiledModel.run_async")
        self._executor: ThreadPoolExecutor | None = None
        self._thread = list[int]()
        self._forks = forks()

    def submit(self, call: Callable[[], tuple[Any, ...]]) -> Future[tuple[Any, ...]]:
        """Makes the call after those that were submitted before."""
        return self._lock.call(lambda: self._opened().submit(call))

    def close(self) -> None:
        """Waits for the calls, unless one of them asks for it, and ends the thread."""
        executor = self._lock.call(self._take)
        if executor is not None:
            executor.shutdown(wait=threading.get_ident() not in self._thread)

    def _opened(self) -> ThreadPoolExecutor:
        """The executor; the caller has the lock."""
        if self._executor is None or self._forks != forks():
            self._thread, self._forks = thread, _ = list[int](), forks()
            # Its thread ends with it, and so must know nothing that knows it.
            self._executor = ThreadPoolExecutor(1, "treadle-call", lambda: thread.append(threading.get_ident()))
        return self._executor

    def _take(self) -> ThreadPoolExecutor | None:
        """The executor of this process, for the last time; the caller has the lock."""
        executor, self._executor = self._executor, None
        return executor if self._forks == forks() else None


def _lent(program: Program, value: object, where: str, stream: int | None) -> LentArray:
    """An array on a device, for a call of a program that runs there; TreadleError otherwise."""
    if not isinstance(program, CudaProgram):
        raise _on_device(where)
    return program.lent(value, where, stream)


def _on_device(where: str) -> TreadleError:
    return TreadleError("the array is on a CUDA device", where, "an array in the CPU's memory")


def _stream_handle(stream: object) -> int:
    """The handle of a caller's stream; 0 stands for CUDA's legacy default stream, as PyTorch gives it."""
    if not isinstance(stream, int) or isinstance(stream, bool) or stream < 0:
        accepted = "its handle as a number, such as torch.cuda.current_stream().cuda_stream"
        raise TreadleError(f"the stream is a {type(stream).__name__}", "stream", accepted)
    return stream or LEGACY_STREAM


def load(
    path: str | Path, threads: int | ThreadPool | None = None, *, device: Device | None = None, rebuild: bool = False
) -> Model:
    """A model that `treadle compile` or `save` wrote, for the CPU or a GPU of this machine.

    An artifact is a program: load only what you would run. Its digests find damage, not malice. With `rebuild=True` its
    kernels are compiled here, from its own text and headers, and the compiled code in it is never loaded: for another
    processor or system, and for those who have read the text. Without it, a library that this system cannot load is
    rebuilt, too.

    threads: cpu: threads of a call, or a `ThreadPool` that several models share; default: the variable
             TREADLE_NUM_THREADS
    device:  cuda: the GPU, as a number, "cuda:1" or a torch.device; default: the first

    TreadleError if the manifest is missing or damaged. The other files are checked when they are read, at the first
    call.
    """
    return Model(Artifact(Path(path)), threads, device=device, rebuild=rebuild)


def check_threads(threads: int | ThreadPool | None, target: str, kind: str) -> None:
    """TreadleError for a number of threads below 1, and for a pool of threads for kernels that do not run on them."""
    if isinstance(threads, ThreadPool):
        if kind != "cpu":
            message = f"a thread pool does not run what is compiled for {target}"
            raise TreadleError(message, "threads", "a target whose kernels are C, such as cpu")
    elif threads is not None and threads < 1:
        raise TreadleError(f"threads is {threads}", "model", "a number from 1 upwards")
