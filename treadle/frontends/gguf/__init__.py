"""Language models in GGUF files, as llama.cpp reads them."""

from treadle.frontends.gguf.decoder import write_decoder

__all__ = ["write_decoder"]
