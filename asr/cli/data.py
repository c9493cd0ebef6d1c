"""A composed config → prepared data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from asr.cli.errors import ConfigError
from asr.cli.parts import DataParts, build_encoder, data_parts, part
from asr.console import PlainConsole
from asr.data.manifests.source_files import visible_files
from asr.data.preparation.fingerprint import describe_source, fingerprint
from asr.data.preparation.prepare import View, prepare
from asr.data.preparation.prepared import PreparedData
from asr.data.preparation.table import print_table
from asr.training.processes import is_first_process
from asr.training.run_folder import usable_folder
from asr.training.unreadable import check_share

# lengths whose subsampled lengths tell one encoder from another
PROBED_FRAMES = range(512)
LAYOUT = 2  # of the files of prepared data
# options of prepare functions that change how fast, not what
SPEED_ONLY = ("num_jobs",)


def prepare_data(
    config: Mapping[str, Any], parts: DataParts | None = None, quiet: bool = False, may_prepare: bool = True
) -> PreparedData:
    """Return the data of a run, prepared now if they are missing.

    Args:
        config: of the run.
        parts: of its data side, if they are built already.
        quiet: print no table.
        may_prepare: False: refuse missing data.

    Raises:
        ConfigError: they are missing and may not be prepared.
        ValueError: they cannot be prepared.
    """
    check_share(config["data"].get("max_unreadable", 0))
    if not isinstance(config["data"].get("source"), str | None):
        raise ConfigError(f"data.source must be a path, or null, given {config['data']['source']!r}")
    parts = parts or data_parts(config)
    folder = usable_folder(config["data"].get("dir"), "data.dir")
    encoder = build_encoder(config, parts.features.num_features)

    def output_frames(num_frames: int) -> int:
        return int(encoder.output_frames(torch.tensor(num_frames)))

    view = View(parts.text, parts.limits, parts.features, parts.tokenizer_trainer, output_frames)
    lengths = encoder.output_frames(torch.tensor(PROBED_FRAMES)).tolist()
    data = config["data"]
    view_name = fingerprint(
        {key: data[key] for key in ("text", "limits")}
        | {key: config[key] for key in ("features", "tokenizer")}
        | {"frames": lengths, "layout": LAYOUT}
    )
    options = {name: value for name, value in data["prepare"].items() if name not in SPEED_ONLY}
    make_corpus = part(config, "data.prepare", source=data.get("source"))
    source_files = getattr(getattr(make_corpus, "func", None), "source_files", visible_files)
    corpus_name = fingerprint({"prepare": options, "source": describe_source(data.get("source"), source_files)})
    prepared = prepare(folder, corpus_name, make_corpus, view, view_name, may_prepare)
    if not quiet and is_first_process():
        print_table(prepared, PlainConsole())
    return prepared
