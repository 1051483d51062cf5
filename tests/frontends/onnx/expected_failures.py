"""Cases of ONNX's suite that Treadle refuses, by reason: names as shell patterns, and what the error says.

Every other case has to pass. `test_node_conformance.py` asks each of these for its error, and `make conformance` writes
the reasons to docs/conformance.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch


@dataclass(frozen=True)
class Failure:
    """What the error says, as a regular expression, and whose."""

    error: str
    cases: Sequence[str]


_NO_OPSET = "the model imports no version of ONNX's operators"
"""Of models whose only operators are those of another domain."""

EXPECTED: Mapping[str, Failure] = {
    "Strings are no elements of a tensor of numbers.": Failure(
        r"element type string is not supported|operator (StringConcat|StringSplit|StringNormalizer|RegexFullMatch"
        rf") is not supported|{_NO_OPSET}",
        (
            "test_string_*", "test_regex_full_match_*", "test_strnorm*", "test_equal_string*",
            "test_ai_onnx_ml_label_encoder_*",
        ),
    ),
    "Sequences and optionals: an artifact takes and gives tensors.": Failure(
        r"operator (Sequence\w+|SplitToSequence|Optional\w*) is not supported|is a (sequence|optional)_type",
        (
            "test_sequence_*", "test_split_to_sequence_*", "test_optional_*", "test_identity_sequence",
            "test_identity_opt", "test_if_seq", "test_if_opt", "test_loop13_seq", "test_loop16_seq_none",
        ),
    ),
    "Files of images are decoded before a model, not in it.": Failure(
        "operator ImageDecoder is not supported", ("test_image_decoder_*",)
    ),
    "Random numbers: ONNX does not say which.": Failure(
        "operator (Bernoulli|RandomUniformLike) is not supported", ("test_bernoulli*",)
    ),
    "Training.": Failure(
        f"training_mode|{_NO_OPSET}",
        (
            "test_training_dropout", "test_training_dropout_mask", "test_training_dropout_default*", "test_adagrad*",
            "test_adam*", "test_momentum*", "test_gradient_of_add*", "test_nesterov_momentum",
        ),
    ),
    "The domain ai.onnx.ml: trees, encoders, binarisation.": Failure(
        _NO_OPSET,
        ("test_ai_onnx_ml_array_feature_extractor", "test_ai_onnx_ml_binarizer", "test_ai_onnx_ml_tree_ensemble_*"),
    ),
}  # fmt: skip


def reason_of(name: str) -> str | None:
    """Why a case is refused; None if it has to pass."""
    fitting = [reason for reason, each in EXPECTED.items() if any(fnmatch(name, pattern) for pattern in each.cases)]
    return fitting[-1] if fitting else None


def error_of(name: str) -> str | None:
    """What the error of a refused case says, as a regular expression; None if the case has to pass."""
    reason = reason_of(name)
    return None if reason is None else EXPECTED[reason].error
