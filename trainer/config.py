"""Every option of a training run, with its unit and its check, and the one error a user's mistake raises.

Imported by the config, the charts and the trainer alike, so it imports neither torch nor anything of this repository.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Hashable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Literal, Self, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

Strategy = Literal["FULL_SHARD", "HYBRID_SHARD", "SHARD_GRAD_OP", "NO_SHARD"]
Device = Literal["cuda", "cpu"]
DataFormat = Literal["text", "jsonl", "tokens"]
Decay = Literal["cosine", "linear", "constant"]


class ConfigError(Exception):
    """A user's mistake, in one sentence: what was wrong, the value, what is allowed and what to do."""


class Model(BaseModel):
    """A part of the configuration: frozen, closed to unknown keys, its text never coerced into numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class TrainerConfig(Model):
    """One training run, flat, as the run's YAML file and its flags spell it.

    Every path is relative to `shared_dir`. Tokens, steps, bytes and seconds are named in the field or in its text.
    """

    shared_dir: str = Field(
        "/fsx", description="Absolute folder that every rank sees: data, models and runs lie in it."
    )
    run: str = Field(
        "run", pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", description="Folder below `runs` for what this run writes."
    )
    device: Device = Field("cuda", description="`cuda` uses NCCL, `cpu` uses gloo. Neither replaces the other.")
    peak_tflops_per_gpu: float | None = Field(
        None, gt=0, description="Dense bf16 peak of one GPU, the denominator of MFU. Without it no MFU is reported."
    )

    metrics_port: int | None = Field(
        None, ge=1024, le=65535, description="Port where local rank 0 serves Prometheus metrics; null serves none."
    )

    model: str = Field(description="Folder with Hugging Face's config.json, tokenizer.json and safetensors files.")
    model_parameters: int = Field(
        gt=0, lt=10**14, description="Parameters the model has. A model of another size is refused at start."
    )
    initial_weights: Literal["pretrained", "random"] = Field(
        "pretrained",
        description="`pretrained` reads the safetensors files of `model`; `random` draws weights from `seed`.",
    )

    data: str = Field(description="Folder, or one file, with the training data.")
    data_format: DataFormat = Field(
        description="`text`: UTF-8 *.txt, one document a file; `jsonl`: *.jsonl with a `text` in every line; "
        "`tokens`: *.bin of little-endian token ids, made by `python -m trainer.tokenize`."
    )
    held_out_data: str | None = Field(
        None, description="Folder or file in the same format, never trained on, to evaluate on."
    )
    evaluate_every_steps: int | None = Field(
        None, gt=0, description="Steps between evaluations on `held_out_data`; the end of a run always evaluates."
    )

    sequence_length: int = Field(4096, ge=2, description="Tokens in a sequence.")
    micro_batch_size: int = Field(1, gt=0, description="Sequences a rank runs at a time.")
    global_batch_size: int = Field(gt=0, description="Sequences in a step, over all ranks.")
    steps: int | None = Field(
        None, gt=0, description="Optimizer steps of the run. Exactly one of `steps` and `epochs`."
    )
    epochs: int | None = Field(None, gt=0, description="Passes over the data. Exactly one of `steps` and `epochs`.")

    learning_rate: float = Field(2e-5, gt=0, description="Peak learning rate.")
    warmup_steps: int = Field(0, ge=0, description="Steps of linear warm-up to the peak.")
    decay: Decay = Field("cosine", description="Shape of the decay from the peak, after the warm-up, to the end.")
    final_learning_rate_fraction: float = Field(
        0.1, ge=0, le=1, description="Learning rate at the end, as a fraction of the peak."
    )
    weight_decay: float = Field(0.1, ge=0, description="AdamW's decay; norms and biases are not decayed.")
    beta1: float = Field(0.9, ge=0, lt=1, description="AdamW's first moment.")
    beta2: float = Field(0.95, ge=0, lt=1, description="AdamW's second moment.")
    gradient_clip_norm: float | None = Field(
        1.0, gt=0, description="Global gradient norm to clip at; null does not clip."
    )
    seed: int = Field(0, ge=0, description="Seed of random weights and of the data order.")

    strategy: Strategy = Field(
        "FULL_SHARD", description="How parameters, gradients and optimizer state are shared out."
    )
    shard_group_size: int | None = Field(
        None, gt=1, description="Ranks in a shard group; HYBRID_SHARD needs it, and only it."
    )
    precision: Literal["bf16", "fp32"] = Field(
        "bf16", description="Arithmetic of the blocks. Masters and reductions are fp32."
    )
    activation_checkpointing: Literal["none", "full"] = Field(
        "none", description="`full` recomputes every block in the backward pass."
    )

    checkpoint_every_steps: int = Field(
        500, gt=0, description="Steps between checkpoints; the end of a run always saves."
    )
    checkpoints_to_keep: int = Field(2, gt=0, description="Newest checkpoints to keep.")

    @field_validator("shared_dir")
    @classmethod
    def _shared_dir_is_absolute(cls, value: str) -> str:
        if not PurePosixPath(value).is_absolute():
            raise ValueError("must be an absolute path; start it with /")
        return value

    @field_validator("model", "data", "held_out_data")
    @classmethod
    def _path_stays_in_shared_dir(cls, value: str | None) -> str | None:
        if value is not None and (
            not value or PurePosixPath(value).is_absolute() or ".." in PurePosixPath(value).parts
        ):
            raise ValueError(
                "must be a path below shared_dir, without a leading / and without ..; "
                "write models/llama2-7b for /fsx/models/llama2-7b"
            )
        return value

    @model_validator(mode="after")
    def _options_agree(self) -> Self:
        if (self.steps is None) == (self.epochs is None):
            given = "neither" if self.steps is None else f"steps: {self.steps} and epochs: {self.epochs}"
            raise ValueError(
                f"steps, epochs: exactly one of the two sets the length of the run, got {given}; keep one of them"
            )
        if (self.strategy == "HYBRID_SHARD") != (self.shard_group_size is not None):
            raise ValueError(
                f"shard_group_size: goes with strategy HYBRID_SHARD and no other, got strategy {self.strategy} and "
                f"shard_group_size {self.shard_group_size}; set it to the GPUs of a node for HYBRID_SHARD, or remove it"
            )
        if (self.evaluate_every_steps is not None) and self.held_out_data is None:
            raise ValueError(
                f"evaluate_every_steps: {self.evaluate_every_steps} needs held_out_data, which is absent; "
                "name it, or remove both"
            )
        if self.steps is not None and self.warmup_steps > self.steps:
            raise ValueError(
                f"warmup_steps: must not exceed steps {self.steps}, got {self.warmup_steps}; shorten the warm-up"
            )
        return self

    @classmethod
    def load(cls, path: Path, flags: Sequence[str] = ()) -> Self:
        """The run that `path` describes, with `--field=value` flags laid over single fields.

        Raises:
            ConfigError: the file or a flag is not what this class accepts.
        """
        values = read_yaml(path)
        overrides = parse_flags(flags, cls)
        source = str(path) if not overrides else f"{path} with {' '.join(flags)}"
        return validate(cls, values | overrides, source=source)


AnyModel = TypeVar("AnyModel", bound=Model)


class _Loader(yaml.SafeLoader):
    """YAML as people write it: a key twice is an error, 2e-5 is a number as in YAML 1.2, no alias."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event: yaml.AliasEvent = self.peek_event()  # type: ignore[no-untyped-call]
            where = f"line {event.start_mark.line + 1}: " if event.start_mark else ""
            raise ConfigError(f"{where}aliases (*{event.anchor}) are not allowed; write it out")
        node: yaml.Node | None = super().compose_node(parent, index)
        return node

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        # In YAML 1.1 a leading zero makes a number octal, so that 020 would be 16.
        if re.fullmatch(r"[-+]?0[0-9_]+", node.value):
            raise ConfigError(
                f"line {node.start_mark.line + 1}: {node.value} must not begin with a zero; "
                "write the number without it, or text in quotes"
            )
        number: int = super().construct_yaml_int(node)
        return number

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = str(self.construct_object(key_node, deep=True))
            if key in seen:
                raise ConfigError(
                    f"line {key_node.start_mark.line + 1}: `{key}` stands twice in the same mapping; keep one"
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
# PyYAML follows YAML 1.1, where 2e-5 is text for want of a dot: https://yaml.org/spec/1.2.2/#1032-tag-resolution
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*([.][0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        ConfigError: no such file, not a file, not UTF-8, not YAML, a key twice, empty, or not a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; check the path, it is taken from {Path.cwd()}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: must be YAML text in UTF-8, got binary data; name the YAML file itself") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}; name a YAML file that you can read") from None
    except ValueError:
        raise ConfigError(f"{str(path)!r}: is not a path; name a YAML file") from None
    try:
        values = yaml.load(text, Loader=_Loader)  # noqa: S506, a SafeLoader
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"{path}: {where}not valid YAML: {problem}; mend that line") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: holds a value that cannot be read ({error}); correct it") from None
    if values is None:
        raise ConfigError(f"{path}: is empty; start from one of the files beside it that this repository ships")
    if not isinstance(values, dict):
        raise ConfigError(
            f"{path}: must be a mapping of `key: value` lines, got {_shown(values)}; see the shipped files for the form"
        )
    if strangers := [key for key in values if not isinstance(key, str)]:
        raise ConfigError(f"{path}: a key must be text, got {_shown(strangers[0])}; put it in quotes or mend it")
    return values


def parse_flags(flags: Sequence[str], model: type[Model]) -> dict[str, Any]:
    """The fields that `--field=value` flags set, each value read as YAML.

    Raises:
        ConfigError: a flag of another form, an unknown field, a field twice.
    """
    values: dict[str, Any] = {}
    for flag in flags:
        name, equals, text = flag.removeprefix("--").partition("=")
        if not flag.startswith("--") or not equals:
            raise ConfigError(f"{flag}: a flag has the form --field=value; write it so")
        if name not in model.model_fields:
            raise ConfigError(f"--{name}: {_no_such_option(name, model)}")
        if name in values:
            raise ConfigError(f"--{name}: is given twice; keep one of the two")
        try:
            values[name] = yaml.load(text, Loader=_Loader) if text else ""  # noqa: S506, a SafeLoader
        except (yaml.YAMLError, ConfigError, ValueError, RecursionError):
            values[name] = text
    return values


def validate(model: type[AnyModel], values: Any, *, source: str, context: dict[str, Any] | None = None) -> AnyModel:
    """`values` as a `model`.

    Raises:
        ConfigError: the first thing that the model refuses, in one sentence that starts with `source` and the field.
    """
    try:
        return model.model_validate(values, context=context)
    except ValidationError as error:
        raise ConfigError(f"{source}: {_sentence(error, model)}") from None


def _sentence(error: ValidationError, model: type[Model]) -> str:
    """The first of pydantic's errors in the product's words: field, what is allowed, the value, the fix."""
    # An unknown key is named first: a misspelt key shows up as a missing one too, and only the first helps.
    details = sorted(error.errors(include_url=False), key=lambda detail: detail["type"] != "extra_forbidden")[0]
    path = _field_path(details["loc"])
    kind, context, value = details["type"], details.get("ctx", {}), details["input"]
    got = f"got {_shown(value)}"
    match kind:
        case "extra_forbidden":
            owner, name = _owner(model, details["loc"]), str(details["loc"][-1])
            return f"{path}: {_no_such_option(name, owner)}"
        case "missing":
            owner, name = _owner(model, details["loc"]), str(details["loc"][-1])
            field = owner.model_fields.get(name)
            purpose = f" ({field.description.rstrip('.')})" if field and field.description else ""
            return f"{path}: is missing{purpose}; add it"
        case "value_error":
            said = str(context["error"])
            if path and ", got" not in said:
                rule, semicolon, remedy = said.partition(";")
                said = f"{rule}, {got}{semicolon}{remedy}"
            return f"{path}: {said}" if path else said
        case "literal_error":
            return f"{path}: must be one of {context['expected'].replace(' or ', ', ')}, {got}; choose one of those"
        case "string_pattern_mismatch":
            return f"{path}: must match {context['pattern']}, {got}; change it"
        case "int_type" | "int_from_float" | "int_parsing":
            return f"{path}: must be a whole number, {got}; write it without quotes or a fraction"
        case "float_type" | "float_parsing" | "finite_number":
            return f"{path}: must be a finite number, {got}; write it without quotes"
        case "string_type":
            return f"{path}: must be text, {got}; put it in quotes"
        case "bool_type" | "bool_parsing":
            return f"{path}: must be true or false, {got}; write one of the two without quotes"
        case "model_type" | "dict_type" | "model_attributes_type":
            return (
                f"{path}: must be a mapping of `key: value` lines, {got}; see docs/ and the shipped files for the form"
            )
        case "list_type" | "tuple_type":
            return f"{path}: must be a list, {got}; write `- item` lines or [a, b]"
    # Bounds and lengths: pydantic's own wording is a sentence that starts with "Input should be".
    said = (
        details["msg"]
        .replace("Input should", "must")
        .replace("List should", "must")
        .replace("Tuple should", "must")
        .replace("String should", "must")
    )
    return f"{path}: {said[0].lower()}{said[1:]}, {got}; change the value"


def _no_such_option(name: str, model: type[Model]) -> str:
    allowed = list(model.model_fields)
    near = difflib.get_close_matches(name, allowed, n=1)
    hint = f"did you mean `{near[0]}`?" if near else f"allowed here: {', '.join(allowed)}; remove it or rename it"
    return f"there is no option `{name}`; {hint}"


def _field_path(loc: Sequence[int | str]) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
    return path.removeprefix(".")


def _owner(model: type[Model], loc: Sequence[int | str]) -> type[Model]:
    """The model whose field the last part of `loc` names."""
    for part in loc[:-1]:
        if isinstance(part, int) or part not in model.model_fields:
            continue
        nested = [
            a for a in _leaves(model.model_fields[part].annotation) if isinstance(a, type) and issubclass(a, Model)
        ]
        model = nested[0] if nested else model
    return model


def _leaves(annotation: Any) -> list[Any]:
    arguments = get_args(annotation)
    return [leaf for argument in arguments for leaf in _leaves(argument)] if arguments else [annotation]


def _shown(value: Any) -> str:
    """A value as its author wrote it, cut to a length that leaves the sentence readable."""
    if isinstance(value, int) and abs(value) >= 10**50:
        return "a number of more than fifty digits"
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}…"
