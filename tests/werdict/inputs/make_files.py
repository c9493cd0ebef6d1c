"""Makes the files of other toolkits below ``files/`` by those toolkits' own writing code.

    python tests/werdict/inputs/make_files.py FOLDER

FOLDER has checkouts named icefall, wenet, speechbrain, whisper, open_asr_leaderboard and NeMo, of which the last may be
only transcribe_utils.py and metrics/wer.py. Needs editdistance, kaldialign, meeteval, simplejson and torch. What each
toolkit counts itself is in ``files/own_numbers.json``, by toolkit: errors and words.
"""

import ast
import contextlib
import importlib.util
import io
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import types
from collections import defaultdict
from pathlib import Path
from typing import Any

FILES = Path(__file__).parent / "files"
# id, speaker, reference, hypothesis: a single letter, quotes of both kinds, nothing recognized, other scripts
SAID = [
    ("anna-anna-1", "anna", "A BIRD DON'T SING", "A BIRD DON'T SING"),
    ("anna-anna-2", "anna", "I", "A"),
    ("en-GB-en-GB-1", "en-GB", 'SHE SAID "NO" TWICE', "SHE SAID NO TWICE TWICE"),
    ("en-GB-en-GB-2", "en-GB", "NOTHING WAS HEARD HERE", ""),
    ("zoë-zoë-1", "zoë", "CAFÉ 中文 ÜBER", "CAFE 中文 ÜBER UND"),
    ("zoë-zoë-2", "zoë", "THE LAST ONE", "THE LAST ONE"),
]


def functions(source: Path, *names: str, **scope: Any) -> types.SimpleNamespace:
    """Run these functions and classes of a file, without the imports around them."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if getattr(node, "name", None) in names]
    for node in tree.body:
        for part in ast.walk(node):
            if isinstance(part, ast.FunctionDef):
                part.returns = None
                for argument in (*part.args.args, *part.args.kwonlyargs):
                    argument.annotation = None
    exec(compile(tree, str(source), "exec"), scope)
    return types.SimpleNamespace(**{name: scope[name] for name in names})


def icefall(checkout: Path) -> tuple[int, int]:
    import kaldialign

    scope = {
        "kaldialign": kaldialign,
        "defaultdict": defaultdict,
        "logging": logging,
        "Dict": dict,
        "Tuple": tuple,
        "List": list,
    }
    names = ("store_transcripts", "store_transcripts_and_timestamps", "write_error_stats")
    own = functions(checkout / "icefall" / "utils.py", *names, **scope)
    rows = [(id, said.split(), recognized.split()) for id, _, said, recognized in SAID]
    own.store_transcripts(FILES / "recogs-test-greedy_search.txt", rows)
    timed = [(*row, [], [0.04 * place for place in range(len(row[2]))]) for row in rows]
    own.store_transcripts_and_timestamps(FILES / "recogs-test-timed.txt", timed)
    own.store_transcripts(
        FILES / "recogs-cer.txt", [(id, list("".join(said)), list("".join(found))) for id, said, found in rows]
    )
    report = io.StringIO()
    own.write_error_stats(report, "test", rows, enable_log=False)
    inserted, deleted, substituted, words = map(
        int, re.search(r"(\d+) ins\w+, (\d+) del\w+, (\d+) sub\w+, over (\d+)", report.getvalue()).groups()
    )
    return inserted + deleted + substituted, words


def nemo(checkout: Path) -> tuple[int, int]:
    import editdistance

    folder = checkout / "nemo" / "collections" / "asr"
    source = folder / "parts" / "utils" / "transcribe_utils.py"
    utils = types.SimpleNamespace(Hypothesis=type("Hypothesis", (), {}))
    own = functions(source, "write_transcription", rnnt_utils=utils, Path=Path, json=json, logging=logging)
    manifest = FILES / "manifest.json"
    lines = [
        {"audio_filepath": "long.wav", "offset": 2.5 * place, "duration": 2.5, "text": row[2], "speaker": row[1]}
        for place, row in enumerate(SAID)
    ]
    manifest.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for postfix, texts in (("canary", [row[3] for row in SAID]), ("parakeet", [row[2] for row in SAID])):
        config = types.SimpleNamespace(
            append_pred=True,
            pred_name_postfix=postfix,
            output_filename=str(FILES / "nemo.json"),
            audio_dir=None,
            dataset_manifest=str(manifest),
        )
        own.write_transcription(texts, config, "model")
        manifest.write_text((FILES / "nemo.json").read_text())
    manifest.unlink()
    metric = functions(folder / "metrics" / "wer.py", "word_error_rate", editdistance=editdistance).word_error_rate
    num_words = sum(len(row[2].split()) for row in SAID)
    return round(num_words * metric([row[3] for row in SAID], [row[2] for row in SAID])), num_words


def leaderboard(checkout: Path) -> tuple[int, int]:
    sys.path.insert(0, str(checkout))
    import normalizer
    from normalizer import eval_utils as own

    # without its libraries of data sets
    normalizer.data_utils = types.SimpleNamespace(normalizer=normalizer.EnglishTextNormalizer())
    sys.modules["normalizer.data_utils"] = normalizer.data_utils
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        texts = [row[2] for row in SAID], [row[3] for row in SAID]
        path = own.write_manifest(
            *texts, "nvidia/canary", "hf-audio/esb", "ami", "test", audio_length=[2.5] * len(SAID)
        )
        (FILES / "leaderboard.jsonl").write_bytes(Path(path).read_bytes())
        halves = [
            (row[2], " ".join(words), row[0], place)
            for row in SAID
            for place, words in enumerate((row[3].split()[:2], row[3].split()[2:]))
        ]
        said, recognized, ids, places = zip(*reversed(halves), strict=True)
        chunked = own.write_manifest(
            said,
            recognized,
            "nvidia/canary",
            "hf-audio/esb",
            "ami",
            "chunked",
            audio_length=[1.25] * len(said),
            extra_fields={"parent_id": ids, "chunk_index": places},
        )
        (FILES / "leaderboard_chunks.jsonl").write_bytes(Path(chunked).read_bytes())
        with contextlib.redirect_stdout(io.StringIO()):
            _, scores = own.score_results("results")
    of_chunks, score = (scores[key] for key in sorted(scores))
    assert of_chunks == score
    errors = score["ins"] + score["del"] + score["sub"]
    return errors, round(100 * errors / score["wer"])


def wenet(checkout: Path) -> tuple[int, int]:
    with tempfile.TemporaryDirectory() as folder:
        for name, place in (("ref", 2), ("hyp", 3)):
            Path(folder, name).write_text("".join(f"{row[0]} {row[place]}\n" for row in SAID))
        program = checkout / "tools" / "compute-wer.py"
        for name, flags in (("wenet", []), ("wenet_v2", ["--v=2", "--maxw=2"])):
            words = [sys.executable, program, "--cs=1", *flags, f"{folder}/ref", f"{folder}/hyp"]
            (FILES / f"{name}.txt").write_bytes(subprocess.run(words, check=True, capture_output=True).stdout)
    num, _, *errors = map(
        int,
        re.search(r"Overall -> .*N=(\d+) C=(\d+) S=(\d+) D=(\d+) I=(\d+)", (FILES / "wenet.txt").read_text()).groups(),
    )
    return sum(errors), num


def speechbrain(checkout: Path) -> tuple[int, int]:
    modules = {}
    for name, path in (("edit_distance", "utils/edit_distance.py"), ("wer", "dataio/wer.py")):
        spec = importlib.util.spec_from_file_location(name, checkout / "speechbrain" / path)
        modules[name] = importlib.util.module_from_spec(spec)
        sys.modules["speechbrain"] = sys.modules["speechbrain.utils"] = types.SimpleNamespace(
            edit_distance=modules.get("edit_distance"), __path__=[]
        )
        sys.modules["speechbrain.utils.edit_distance"] = modules["edit_distance"]
        spec.loader.exec_module(modules[name])
    said = {row[0]: row[2].split() for row in SAID}
    # the last was not scored, as one that was skipped
    recognized = {row[0]: row[3].split() for row in SAID[:-1]}
    edit, wer = modules["edit_distance"], modules["wer"]
    details = edit.wer_details_by_utterance(said, recognized, compute_alignments=True, scoring_mode="present")
    summary = edit.wer_summary(details)
    with (FILES / "wer_speechbrain.txt").open("w") as file:
        wer.print_wer_summary(summary, file)
        wer.print_alignments(details, file)
    return summary["num_edits"], summary["num_scored_tokens"]


def whisper(checkout: Path) -> None:
    scope = {"os": os, "json": json, "TextIO": io.TextIOBase}
    own = functions(checkout / "whisper" / "utils.py", "ResultWriter", "WriteJSON", **scope)
    (FILES / "whisper").mkdir(exist_ok=True)
    for id, _, _, text in SAID:
        segments = [{"id": 0, "start": 0.0, "end": 2.5, "text": f" {text}"}] if text else []
        own.WriteJSON(str(FILES / "whisper"))({"text": f" {text}", "segments": segments, "language": "en"}, f"{id}.wav")


def meeteval() -> None:
    import meeteval.io

    rows = [
        {"session_id": id, "speaker": speaker, "start_time": 0.0, "end_time": 2.5, "words": recognized}
        for id, speaker, _, recognized in SAID
        if recognized
    ]
    lines = meeteval.io.SegLST(rows)
    lines.dump(FILES / "seglst.json")
    meeteval.io.STM.new(lines).dump(FILES / "meeteval.stm")
    words = [
        {**row, "words": word, "start_time": 0.5 * place, "end_time": 0.5 * place + 0.25}
        for row in rows
        for place, word in enumerate(row["words"].split())
    ]
    with (FILES / "meeteval.ctm").open("w") as file:
        for line in meeteval.io.CTM(
            [meeteval.io.CTMLine(row["session_id"], 1, row["start_time"], 0.25, row["words"]) for row in words]
        ):
            file.write(line.serialize() + "\n")


def kaldi_and_trn() -> None:
    """Write words and (SPEAKER-UTTERANCE), as ESPnet2's asr.sh joins them, and Kaldi's ids and words."""
    for name, place in (("ref", 2), ("hyp", 3)):
        (FILES / f"{name}.trn").write_text("".join(f"{row[place]}\t({row[0]})\n" for row in SAID))
        (FILES / f"{name}.scp").write_text("".join(f"{row[0]} {row[place]}\n" for row in SAID))


def main(folder: Path) -> None:
    FILES.mkdir(exist_ok=True)
    own = {
        "icefall": icefall(folder / "icefall"),
        "wenet": wenet(folder / "wenet"),
        "speechbrain": speechbrain(folder / "speechbrain"),
        "nemo": nemo(folder / "NeMo"),
        "leaderboard": leaderboard(folder / "open_asr_leaderboard"),
    }
    whisper(folder / "whisper")
    meeteval()
    kaldi_and_trn()
    (FILES / "own_numbers.json").write_text(json.dumps(own) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
