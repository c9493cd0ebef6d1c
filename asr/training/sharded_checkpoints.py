"""Checkpoints that several processes write together by torch's distributed checkpoints (DCP).

``update-N.ckpt`` is a file as ever, without its tensors; it names the folder ``update-N.parts``, to which each process
writes its parts of them, and the digests of the files there. It is written last. Reading runs no code.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import pickle
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path, PosixPath
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import metadata as dcp_metadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load as load_parts
from torch.distributed.checkpoint.state_dict_saver import async_save as begin_to_save_parts
from torch.distributed.checkpoint.state_dict_saver import save as save_parts
from torch.distributed.tensor import DTensor

from asr.run.folder import PARTS

OF_OWNERS = "optimizer_states"
"""Where processes hold whole tensors that the others do not have."""
CLASSES = {
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): _StorageInfo,
    ("torch", "Size"): torch.Size,
    (PosixPath.__module__, "PosixPath"): PosixPath,
    ("torch.serialization", "_get_layout"): torch.serialization._get_layout,
    **{
        (dcp_metadata.__name__, name): getattr(dcp_metadata, name)
        for name in (
            *("Metadata", "MetadataIndex", "StorageMeta", "TensorStorageMetadata", "ChunkStorageMetadata"),
            *("TensorProperties", "_MEM_FORMAT_ENCODING"),
        )
    },
}
"""What the metadata of tensors are made of; pickle would import anything that a file names."""


def save(
    checkpoint: Mapping[str, Any],
    path: Path,
    write: Callable[[Any, Path], None],
    stager: Stager | None = None,
    group: dist.ProcessGroup | None = None,
) -> Callable[[], None]:
    """Begin to write a checkpoint, each process its parts; all processes must call this.

    Args:
        checkpoint: plain data and tensors; those that are no DTensors are the first process's, but in `OF_OWNERS`.
        path: of the file; the folder is beside it.
        write: writes plain data to a file, in one step.
        stager: copies what is saved, so that it may change while it is written in the background; None: nothing is
            written before the completion.
        group: of all processes, on the CPU; in the background it must be used for nothing else.

    Returns:
        What completes the checkpoint, to be called by all processes. It raises an OSError if the checkpoint cannot be
        written; an existing file is unchanged.
    """
    rank, folder = dist.get_rank(), _free_folder(path)
    tensors: dict[str, Tensor] = {}
    rest = _without_tensors(checkpoint, (), tensors)
    mine = {key: x for key, x in tensors.items() if rank == 0 or isinstance(x, DTensor) or OF_OWNERS in key}
    options: Any = {"storage_writer": FileSystemWriter(folder, sync_files=True), "process_group": group}
    written: Callable[[], Any] = partial(save_parts, mine, **options)
    if stager is not None:
        saving: Any = begin_to_save_parts(mine, async_stager=stager, **options)
        rest, written = copy.deepcopy(rest), saving.result

    def complete() -> None:
        try:
            written()
        except CheckpointException as error:
            for cause, _ in error.failures.values():
                if isinstance(cause, OSError):
                    raise OSError(cause.errno, cause.strerror, str(folder)) from error
            raise
        # each process what it has written, at the same time
        digests = {file.name: _digest(file) for file in folder.glob(f"__{rank}_*")}
        gathered: list[dict[str, str]] = [{} for _ in range(dist.get_world_size())]
        dist.all_gather_object(gathered, digests, group=group)
        if rank == 0:
            files = {name: digest for each in gathered for name, digest in each.items()}
            files[".metadata"] = _digest(folder / ".metadata")
            write({**rest, PARTS: {"folder": folder.name, "files": files}}, path)

    return complete


class Stager(DefaultStager):
    """Copies a state to memory of the host, which the next copy uses again; pinned, if this process uses a GPU."""

    def __init__(self) -> None:
        pinned = torch.cuda.is_initialized()
        # asynchronous staging has a stream of its own, which does not wait for the update that is being computed
        options = {"use_shared_memory": False, "use_async_staging": False}
        super().__init__(StagingOptions(use_pinned_memory=pinned, use_non_blocking_copy=pinned, **options))

    @torch.no_grad()
    def stage(self, state_dict: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Return a copy, complete: DTensors as such, though torch (2.13) copies none that is a view of a part."""
        parts = {key: x.to_local() if isinstance(x, DTensor) else x for key, x in state_dict.items()}
        # torch (2.11) stages once and then closes its stager
        copies = self._state_dict_stager.stage(parts, non_blocking=self._config.use_non_blocking_copy)
        if self._config.use_non_blocking_copy:
            torch.cuda.synchronize()
        for key, x in state_dict.items():
            if isinstance(x, DTensor):
                like: Any = x.new_empty(x.size(), device="cpu")
                like.to_local().set_(copies[key])
                copies[key] = like
        return dict(copies)


def _free_folder(path: Path) -> Path:
    """Return a new folder for the parts of a checkpoint: an earlier file of its name may be in use until the end."""
    names = (path.with_suffix(f".{number}.{PARTS}" if number else f".{PARTS}") for number in itertools.count())
    chosen = [next(name for name in names if not name.exists()) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(chosen)
    assert chosen[0] is not None
    return chosen[0]


def completed(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the content of a checkpoint's file with all of its tensors, whole and on the CPU.

    Raises:
        ValueError: a part is missing or damaged.
    """
    parts = content.pop(PARTS)
    folder = path.resolve().parent / Path(parts["folder"]).name
    for name, digest in parts["files"].items():
        if not (folder / name).is_file() or _digest(folder / name) != digest:
            raise ValueError(f"{path} is damaged: {folder / name} is missing, or its checksum does not match")
    try:
        reader = _Reader(folder)
        known = reader.read_metadata().state_dict_metadata
        tensors = {
            key: torch.empty(x.size, dtype=x.properties.dtype)
            for key, x in known.items()
            if isinstance(x, dcp_metadata.TensorStorageMetadata)
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that one process loads alone, as it should
            load_parts(tensors, storage_reader=reader, no_dist=True)
    except (pickle.UnpicklingError, AttributeError) as error:
        raise ValueError(f"{folder} holds more than tensors ({error}); such files are not opened") from None
    for key, tensor in tensors.items():
        *parents, last = json.loads(key)
        node: Any = content
        for parent in parents:
            node = node[parent] if isinstance(node, list) else node.setdefault(parent, {})
        node[last] = tensor
    return content


def _without_tensors(value: Any, path: tuple[Any, ...], tensors: dict[str, Tensor]) -> Any:
    """Return plain data without the tensors in its dicts, which are collected by their paths."""
    if isinstance(value, list | tuple):
        return [_without_tensors(x, (*path, place), tensors) for place, x in enumerate(value)]
    if not isinstance(value, dict):
        return value
    tensors |= {json.dumps([*path, key]): x.detach() for key, x in value.items() if isinstance(x, Tensor)}
    others = {key: x for key, x in value.items() if not isinstance(x, Tensor)}
    return {key: _without_tensors(x, (*path, key), tensors) for key, x in others.items()}


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "blake2b").hexdigest()


class _Reader(FileSystemReader):
    """Reads parts, and metadata that hold nothing else."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> dcp_metadata.Metadata:
        """Return the metadata.

        Raises:
            UnpicklingError: there is something else.
        """
        with (Path(self.path) / ".metadata").open("rb") as file:
            metadata: dcp_metadata.Metadata = _Unpickler(file).load()
        return metadata


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) not in CLASSES:
            raise pickle.UnpicklingError(f"{module}.{name}")
        return CLASSES[module, name]
