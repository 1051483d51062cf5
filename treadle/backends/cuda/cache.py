"""A folder of compiled kernels, addressed by what they were compiled from."""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

_DIGEST_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True)
class CubinCache:
    """Compiled kernels in `folder`, which is created when something is stored.

    An entry is a digest and the bytes that it covers, written to a temporary file and renamed: a reader
    sees all of it or nothing. An entry that is damaged counts as absent, and is replaced by the next
    `store`.
    """

    folder: Path

    @staticmethod
    def key(*parts: str) -> str:
        """The name of the entry for what `parts` say: text, compiler, options. Part borders matter."""
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def load(self, key: str) -> bytes | None:
        """The bytes stored under `key`; None if there are none, or if they are damaged."""
        try:
            entry = self._path(key).read_bytes()
        except FileNotFoundError:
            return None
        digest, payload = entry[:_DIGEST_BYTES], entry[_DIGEST_BYTES:]
        return payload if hashlib.sha256(payload).digest() == digest else None

    def store(self, key: str, payload: bytes) -> None:
        """Stores `payload` under `key`, in place of what was there."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as file:
            temporary = Path(file.name)
            try:
                file.write(hashlib.sha256(payload).digest() + payload)
                file.close()
                temporary.replace(path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key[2:]}.cubin"
